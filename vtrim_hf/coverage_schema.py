"""The schema of `vtrim/coverage.json`: where it lies, and whether a value fits a schema.

The keywords of JSON schema 2020-12 that the schema uses are few, so they are checked here and no
package is needed for it. A keyword that is not known is an error, never skipped. This
module imports only the standard library; what loads torch is the package that it is part of. The
file itself is plain JSON, which any program reads, and any JSON schema library checks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

SCHEMA = "coverage.schema.json"

_SAID = frozenset({"$schema", "$defs", "title", "description"})  # these forbid nothing
_DEEPEST = 40


def card_file(name: str) -> Path:
    """Return the place of a file of `hub_cards`, in a wheel and in a checkout alike.

    Raises:
        FileNotFoundError: if there is no such file, which means a broken installation.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "hub_cards", package.parent / "hub_cards"):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"hub_cards/{name} is missing beside {package}: install the package again "
        "(`pip install --force-reinstall vtrim_hf`)"
    )


@lru_cache(maxsize=1)
def coverage_schema() -> Mapping[str, Any]:
    """Return the schema of `vtrim/coverage.json`."""
    schema: Mapping[str, Any] = json.loads(card_file(SCHEMA).read_text(encoding="utf-8"))
    return schema


def check_against(value: Any, schema: Mapping[str, Any]) -> None:
    """Raise unless a JSON value fits a schema.

    Args:
        value: what `json.loads` gives; numbers that JSON cannot write fit nothing.
        schema: a schema whose keywords are among those known here; `$ref` is to its own `$defs`.

    Raises:
        ValueError: naming the JSON path of the first misfit, the rule and the value; or the
            keyword that is not known here.

    Example:
        >>> check_against([1, "two"], {"type": "array", "items": {"type": "integer"}})
        Traceback (most recent call last):
        ...
        ValueError: $[1] must be of type integer, got 'two'
    """
    _check(value, schema, schema, "$", 0)


def _check(
    value: Any, rule: Mapping[str, Any], root: Mapping[str, Any], at: str, deep: int
) -> None:
    if deep > _DEEPEST:
        raise ValueError(f"{at} is nested deeper than {_DEEPEST} levels")
    if "$ref" in rule:
        named = root["$defs"][rule["$ref"].removeprefix("#/$defs/")]
        _check(value, named, root, at, deep + 1)
    for keyword, limit in rule.items():
        if keyword in _SAID or keyword in ("$ref", *_INSIDE):
            continue
        if keyword not in _RULES:
            raise ValueError(f"the schema's keyword {keyword!r} is not known: no value fits it")
        holds, text = _RULES[keyword]
        if not holds(value, limit):
            raise ValueError(f"{at} must {text.format(_said(limit))}, got {value!r:.80}")
    if isinstance(value, dict):
        _check_members(value, rule, root, at, deep)
    elif isinstance(value, list) and "items" in rule:
        for position, item in enumerate(value):
            _check(item, rule["items"], root, f"{at}[{position}]", deep + 1)


def _check_members(
    value: dict[Any, Any], rule: Mapping[str, Any], root: Mapping[str, Any], at: str, deep: int
) -> None:
    known, others = rule.get("properties", {}), rule.get("additionalProperties", True)
    for name, member in value.items():
        place = (
            f"{at}.{name}"
            if isinstance(name, str) and name.isidentifier()
            else f"{at}[{name!r:.80}]"
        )
        if "propertyNames" in rule:
            _check(name, rule["propertyNames"], root, f"the name {place}", deep + 1)
        if name in known:
            _check(member, known[name], root, place, deep + 1)
        elif others is False:
            raise ValueError(f"{place} is not known, {at} holds only {', '.join(sorted(known))}")
        elif others is not True:
            _check(member, others, root, place, deep + 1)


def _is_number(value: Any) -> bool:
    # A whole number may be too large for `isfinite`.
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value == int(value)


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: type(value) is dict and all(type(name) is str for name in value),
    "array": lambda value: type(value) is list,
    "string": lambda value: type(value) is str,
    "boolean": lambda value: type(value) is bool,
    "number": _is_number,
    "integer": _is_whole,
}


def _is_of(value: Any, types: str | list[str]) -> bool:
    return any(_TYPES[name](value) for name in ([types] if isinstance(types, str) else types))


def _same(value: Any, constant: Any) -> bool:
    return type(value) is type(constant) and bool(value == constant)


def _said(limit: Any) -> str:
    return ", ".join(map(str, limit)) if isinstance(limit, list) else str(limit)


_Rule = tuple[Callable[[Any, Any], bool], str]

# A rule about another type than the value's says nothing, as JSON schema has it.
_RULES: Mapping[str, _Rule] = {
    "type": (_is_of, "be of type {}"),
    "const": (_same, "be {}"),
    "enum": (lambda value, limit: any(_same(value, one) for one in limit), "be one of {}"),
    "minimum": (lambda value, limit: not _is_number(value) or value >= limit, "be at least {}"),
    "maximum": (lambda value, limit: not _is_number(value) or value <= limit, "be at most {}"),
    "minLength": (
        lambda value, limit: type(value) is not str or len(value) >= limit,
        "hold at least {} characters",
    ),
    "maxLength": (
        lambda value, limit: type(value) is not str or len(value) <= limit,
        "hold at most {} characters",
    ),
    "pattern": (
        lambda value, limit: (
            type(value) is not str or (bool(re.search(limit, value)) and "\n" not in value)
        ),
        "match {}",
    ),
    "minItems": (
        lambda value, limit: type(value) is not list or len(value) >= limit,
        "hold at least {} items",
    ),
    "maxItems": (
        lambda value, limit: type(value) is not list or len(value) <= limit,
        "hold at most {} items",
    ),
    "maxProperties": (
        lambda value, limit: type(value) is not dict or len(value) <= limit,
        "hold at most {} members",
    ),
    "required": (
        lambda value, limit: type(value) is not dict or all(name in value for name in limit),
        "hold {}",
    ),
}
_INSIDE = ("properties", "additionalProperties", "propertyNames", "items")
