"""Plain facts: JSON types only, nothing unknown, nothing that tells of somebody's own machine."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT_DOMAIN = "default"
"""What data is called that was counted without a name."""

_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
_FILE = re.compile(
    r"\.(jsonl?|ya?ml|csv|tsv|txt|md|parquet|arrow|gguf|safetensors|bin|pt|zip|gz|zst|xz)$",
    re.IGNORECASE,
)
_PATH = re.compile(r"~?[/\\]|~[\w.-]*/|[A-Za-z]:[/\\]|\.{1,2}([/\\]|$)|file:", re.IGNORECASE)

_ARCHITECTURES = re.compile(
    r"x86_64|amd64|arm64|aarch64|i[3-6]86|armv\d\w*|ppc64le|s390x|riscv64|loongarch64",
    re.IGNORECASE,
)

# What tokens say is theirs: a token may well begin with a slash.
_TEXTS = frozenset({"text"})


def domain_tag(name: str) -> str:
    """Return the tag that a card has for a domain: letters of any script, digits, `_`, `.`."""
    return re.sub(r"[^\w.]+", "-", name.lower()).strip("-") or DEFAULT_DOMAIN


def hub_id(name: str | None, what: str) -> str | None:
    """Return a name if it is the id of a repository, None if it is a path or nothing.

    A name without a namespace passes for none: it may be a folder, or an embedded model's.

    Args:
        name: an id, a path, or nothing.
        what: what is named, for the error.

    Raises:
        ValueError: if it is neither an id nor a path.

    Example:
        >>> hub_id("HuggingFaceTB/SmolLM2-135M-Instruct", "draft")
        'HuggingFaceTB/SmolLM2-135M-Instruct'
        >>> hub_id("/home/me/data.jsonl", "data set") is None
        True
    """
    if not name:
        return None
    text = str(name)
    if is_local_path(text) or re.fullmatch(r"[\w.-]+", text) or _exists(text):
        return None
    if text.count("/") > 1 and not re.search(r"[\s:?*\"<>|]", text):
        return None  # a path further down
    if not _HUB_ID.fullmatch(text) or len(text) > 96 or "--" in text or ".." in text:
        raise ValueError(
            f"the {what} must be named by its id on the Hub, NAMESPACE/NAME, got {text!r:.120}"
        )
    return text


def is_local_path(text: str) -> bool:
    """Whether a text reads like a place on somebody's machine."""
    return bool(_PATH.match(text) or (_FILE.search(text) and "\n" not in text))


def local_path_in(facts: Any, at: str = "$") -> tuple[str, str] | None:
    """Find a path of somebody's machine anywhere in JSON values.

    Texts of tokens are let be.

    Returns:
        The JSON path and the value of the first one, or None.
    """
    if isinstance(facts, str):
        return (at, facts) if is_local_path(facts) else None
    members: list[tuple[str, Any]] = []
    if isinstance(facts, Mapping):
        for name, value in facts.items():
            if _PATH.match(str(name)):
                return (f"the name in {at}", str(name))
            if name not in _TEXTS:
                members.append((f"{at}.{name}", value))
    elif isinstance(facts, list | tuple):
        members = [(f"{at}[{position}]", value) for position, value in enumerate(facts)]
    return next(
        (found for place, value in members if (found := local_path_in(value, place))), None
    )


def without_local_paths(facts: Any) -> Any:
    """Return JSON values without the members and items that are paths of a machine."""
    if isinstance(facts, Mapping):
        return {
            name: without_local_paths(value)
            for name, value in facts.items()
            if local_path_in({name: value if isinstance(value, str) else ""}) is None
        }
    if isinstance(facts, list | tuple):
        kept = [one for one in facts if not (isinstance(one, str) and is_local_path(one))]
        return [without_local_paths(one) for one in kept]
    return facts


def system_of(platform: Any) -> str | None:
    """Return the operating system and the architecture of what `platform.platform()` says.

    The rest tells which kernel somebody built, and on no two machines the same.

    Example:
        >>> system_of("Linux-6.8.0-45-generic-x86_64-with-glibc2.39")
        'Linux x86_64'
    """
    words = re.split(r"[- ]", platform) if isinstance(platform, str) else []
    if not words or not re.fullmatch(r"[A-Za-z]{1,20}", words[0]):
        return None
    known = [word for word in words[1:] if _ARCHITECTURES.fullmatch(word)]
    return " ".join([words[0], *known[:1]])


def plain(value: Any) -> Any:
    """Return a value as plain JSON types; members that are None, nan or infinite are left out.

    Raises:
        ValueError: for a type that JSON has not.
    """
    if isinstance(value, Mapping):
        kept = {str(name): plain(member) for name, member in value.items()}
        return {name: member for name, member in kept.items() if member is not None}
    if isinstance(value, list | tuple):
        return [member for member in map(plain, value) if member is not None]
    if value is None or isinstance(value, bool | str | int):
        # Subclasses too: of an enum, say, only the text is kept.
        for kind in (bool, int, str):
            if isinstance(value, kind):
                return kind(value)
        return None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "item"):  # a number of numpy or torch
        return plain(value.item())
    raise ValueError(f"a fact must be text, a number, a list or a mapping, got {value!r:.80}")


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long, or holds a null character
        return False
