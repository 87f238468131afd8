"""What a search result's JSON must hold before anything of it is believed.

A file may have been edited by hand or cut by another program. Whatever is wrong is named by its
field here, not by a plot or a report that meets it much later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

_ROUNDING = 1e-9  # shares are sums and quotients of floats


def check_result(data: Mapping[str, Any]) -> None:
    """Raise unless every field of a search result has its type and lies in its range.

    Args:
        data: the whole of the JSON.

    Raises:
        KeyError: if a field is missing.
        ValueError: naming the first field that is wrong, its value and what it must be.
    """
    for name, (holds, rule) in _RULES.items():
        _check(name, data[name], holds, rule)
    for domain, facts in data["per_domain"].items():
        for name, (holds, rule) in _DOMAIN_RULES.items():
            _check(f"per_domain[{domain!r}][{name!r}]", facts[name], holds, rule)
    curve = data["curve"]
    sizes = curve["sizes"]
    for name, (holds, rule) in _CURVE_RULES.items():
        _check(f"curve[{name!r}]", curve[name], holds, rule)
    if data["format"].endswith("/2"):
        _check_expected(data)
        worth = curve.get(_WORTH)
        _check(f"curve[{_WORTH!r}]", worth, _or_none(_list_of(_number)), "numbers or null")
    lines = {name: curve[name] for name in _CURVE_RULES if name not in ("sizes", _BY_DOMAIN)}
    lines[_WORTH] = curve.get(_WORTH)
    lines |= {f"{_BY_DOMAIN}[{name!r}]": line for name, line in curve[_BY_DOMAIN].items()}
    for name, line in lines.items():
        if line is not None and len(line) != len(sizes):
            raise ValueError(
                f"the search result is damaged: curve {name} holds {len(line)} figures for "
                f"{len(sizes)} sizes; search again"
            )
    if data["k"] not in sizes:
        raise ValueError(
            f"the search result is damaged: the chosen k={data['k']} is none of the curve's "
            "sizes; search again"
        )


def _check_expected(data: Mapping[str, Any]) -> None:
    """Check what only the objective throughput has."""
    _check("draft_length", data["draft_length"], _whole, "a whole number from 0 on")
    _check("expected", data["expected"], _mapping, "an object")
    expected = data["expected"]
    for name, (holds, rule) in _EXPECTED_RULES.items():
        _check(f"expected[{name!r}]", expected[name], holds, rule)
    for name in ("k", "draft_length"):
        if expected["chosen"][name] != data[name]:
            raise ValueError(
                f"the search result is damaged: expected['chosen'][{name!r}] is "
                f"{expected['chosen'][name]}, but {name} is {data[name]}; search again"
            )


def _check(name: str, value: Any, holds: Callable[[Any], bool], rule: str) -> None:
    if not holds(value):
        raise ValueError(
            f"the search result is damaged: {name} must be {rule}, got {value!r:.80}; search again"
        )


def _whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value < 1 << 63


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST and math.isfinite(value)


def _share(value: Any) -> bool:
    return _number(value) and -_ROUNDING <= value <= 1 + _ROUNDING


def _saved(value: Any) -> bool:
    return _number(value) and value <= 1 + _ROUNDING


def _interval(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(map(_share, value))
        and value[0] <= value[1] + _ROUNDING
    )


def _point(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 3
        and _whole(value[0], 1)
        and _share(value[1])
        and _saved(value[2])
    )


def _list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(map(holds, value))


def _or_none(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or holds(value)


def _mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _of_mappings(value: Any) -> bool:
    return _mapping(value) and all(map(_mapping, value.values()))


def _settings(value: Any) -> bool:
    # These two are read again by the plot.
    return (
        _mapping(value)
        and _or_none(_share)(value.get("min_coverage"))
        and _mapping(value.get("latency", {}))
    )


def _sizes(value: Any) -> bool:
    return bool(_list_of(lambda size: _whole(size, 1))(value) and value) and all(
        a < b for a, b in pairwise(value)
    )


def _lines(value: Any) -> bool:
    return _mapping(value) and all(map(_list_of(_share), value.values()))


def _figures(value: Any) -> bool:
    return _mapping(value) and all(
        _number(value.get(name)) and value[name] >= 0
        for name in ("coverage", "tokens_per_round", "tokens_per_second", "speedup")
    )


def _option(value: Any) -> bool:
    return (
        _mapping(value)
        and _whole(value.get("k"), 1)
        and _whole(value.get("draft_length"))
        and _figures(value.get("search"))
        and _or_none(_figures)(value.get("heldout"))
    )


def _plain(value: Any) -> bool:
    return _mapping(value) and _number(value.get("tokens_per_second"))


_LARGEST = 1e300  # an int beyond it fits no float
_BY_DOMAIN = "domain_coverage"
_WORTH = "heldout_utility"
_Rules = dict[str, tuple[Callable[[Any], bool], str]]
_SHARE = "a share in [0, 1]"
_PAIR = "an interval [low, high] of shares in [0, 1]"
_SHARES = "a list of shares in [0, 1]"
_POINT = "[k, coverage, reduction]"

_RULES: _Rules = {
    "k": (lambda value: _whole(value, 1), "a whole number from 1 on"),
    "vocabulary": (_mapping, "an object"),
    "utility": (_number, "a finite number"),
    "coverage": (_share, _SHARE),
    "coverage_interval": (_interval, _PAIR),
    "heldout_coverage": (_or_none(_share), f"{_SHARE} or null"),
    "heldout_interval": (_or_none(_interval), f"{_PAIR} or null"),
    "per_domain": (_of_mappings, "an object with an object for each domain"),
    "reduction": (_saved, "a number up to 1"),
    "front": (_list_of(_point), f"a list of {_POINT}"),
    "gap_to_exact": (lambda value: _number(value) and value >= 0, "a number from 0 on"),
    "study": (_or_none(_mapping), "an object or null"),
    "method": (lambda value: value in ("exact", "tpe"), "'exact' or 'tpe'"),
    "settings": (_settings, "an object, with min_coverage a share and latency an object"),
    "curve": (_mapping, "an object"),
    "usual": (_or_none(_point), f"{_POINT} or null"),
}

_ADVICE = ("trim", "do not trim", "do not draft")
_OPTION = "an object with k, draft_length, and figures of search and heldout"

_EXPECTED_RULES: _Rules = {
    "advice": (lambda value: value in _ADVICE, f"one of {', '.join(map(repr, _ADVICE))}"),
    "judged_on": (lambda value: value in ("search", "heldout"), "'search' or 'heldout'"),
    "plain": (_plain, "an object with tokens_per_second"),
    "chosen": (_option, _OPTION),
    "trimmed": (_or_none(_option), f"{_OPTION}, or null"),
    "full": (_option, _OPTION),
    "beyond_measured": (lambda value: isinstance(value, bool), "true or false"),
    "by_length": (_list_of(_option), f"a list of {_OPTION}"),
    "interval": (
        lambda value: _list_of(_number)(value) and len(value) == 2 and value[0] <= value[1],
        "an interval [low, high] of numbers",
    ),
}

_DOMAIN_RULES: _Rules = {
    "weak": (lambda value: isinstance(value, bool), "true or false"),
    "floor": (_or_none(_share), f"{_SHARE} or null"),
    **{
        f"{prefix}{name}": rule
        for prefix in ("", "heldout_")
        for name, rule in {
            "tokens": (_whole, "a whole number from 0 on"),
            "coverage": (_or_none(_share), f"{_SHARE} or null"),
            "interval": (_or_none(_interval), f"{_PAIR} or null"),
        }.items()
    },
}

_CURVE_RULES: _Rules = {
    "sizes": (_sizes, "an ascending list of whole numbers from 1 on"),
    "coverage": (_list_of(_share), _SHARES),
    "heldout_coverage": (_or_none(_list_of(_share)), f"{_SHARES} or null"),
    "reduction": (_list_of(_saved), "a list of numbers up to 1"),
    "utility": (_list_of(_number), "a list of finite numbers"),
    "feasible": (_list_of(lambda value: isinstance(value, bool)), "a list of true and false"),
    _BY_DOMAIN: (_lines, f"an object with {_SHARES} for each domain"),
}
