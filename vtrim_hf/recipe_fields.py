"""One section of a recipe, read field by field: types, ranges, names; every mistake is noted.

What a reader asks for is what a section may hold, so an unknown key needs no list of its own.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from .recipe_yaml import Entry, Located, Mistake

REQUIRED: Any = object()
"""The default of a field that must be given."""

MOST_WHOLE = 1_000_000_000
MOST = 1e9
"""No field needs more; what is beyond is a slip, and would overflow in the middle of a run."""


class Section:
    """A mapping of a recipe.

    Args:
        path: its place in the recipe, such as `domains.sql`; empty for the whole.
        entry: the mapping, or None where it is left out.
        mistakes: what is wrong is added to them.
        lines: the line of each field that is read is added to them, by its place.
    """

    def __init__(
        self, path: str, entry: Located | None, mistakes: list[Mistake], lines: dict[str, int]
    ) -> None:
        self.path = path
        self.line = 1 if entry is None else entry.line
        self.given = entry is not None
        self._mistakes, self._lines = mistakes, lines
        self._entries: dict[str, Entry] = {}
        self._asked: list[str] = []
        if entry is not None and isinstance(entry.value, dict):
            self._entries = entry.value
        elif entry is not None and entry.value is not None:
            name = path or "a recipe"
            self.wrong(f"{name} must be a mapping of fields, got {entry.kind}", entry.line)

    def wrong(self, text: str, line: int | None = None) -> None:
        """Note a mistake, by default on the section's own line."""
        self._mistakes.append(Mistake(self.line if line is None else line, text))

    def place(self, key: str) -> str:
        """Return a field's name in full."""
        return f"{self.path}.{key}" if self.path else key

    def line_of(self, key: str) -> int:
        """Return the line of a field, or the section's where it is left out."""
        entry = self._entries.get(key)
        return self.line if entry is None else entry.key_line

    def line_at(self, place: str) -> int:
        """Return the line of any field that was read, by its name in full."""
        return self._lines.get(place, self.line)

    def keys(self) -> list[str]:
        """Return the names of all fields that are given; all of them are known then."""
        self._asked += self._entries
        return list(self._entries)

    def has(self, key: str) -> bool:
        """Tell whether a field is given and is not null."""
        self._asked.append(key)
        entry = self._entries.get(key)
        return entry is not None and entry.located.value is not None

    def is_off(self, key: str) -> bool:
        """Tell whether a part that can be switched off is: it says false or null."""
        found = self.located(key)
        return found is not None and (found.value is None or found.value is False)

    def located(self, key: str) -> Located | None:
        """Return a field's value with its line, whatever it is."""
        self._asked.append(key)
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._lines[self.place(key)] = entry.key_line
        return Located(entry.located.value, entry.key_line)

    def section(self, key: str, *, required: bool = False) -> Section:
        """Return a field that is a mapping; an empty section where it is left out."""
        found = self.located(key)
        if required and found is None:
            self.wrong(f"{self.place(key)} is missing")
        if found is not None and found.value is None:
            found = Located({}, found.line)
        return Section(self.place(key), found, self._mistakes, self._lines)

    def text(self, key: str, default: Any = REQUIRED) -> Any:
        """Return a field that is text and not empty."""
        found = self._found(key, default)
        if found is None:
            return None if default is REQUIRED else default
        if not isinstance(found.value, str) or not found.value.strip():
            hint = "" if isinstance(found.value, dict | list) else "; put it in quotes"
            empty = "empty text" if isinstance(found.value, str) else _shown(found)
            self.wrong(f"{self.place(key)} must be text, got {empty}{hint}", found.line)
            return None if default is REQUIRED else default
        return found.value

    def texts(self, key: str, default: Any = (), *, may_be_empty: bool = False) -> Any:
        """Return a field that is one text or a list of texts, as a tuple."""
        found = self._found(key, default)
        if found is None:
            return () if default is REQUIRED else default
        items = found.value if isinstance(found.value, list) else [found]
        good = [item.value for item in items if isinstance(item.value, str) and item.value.strip()]
        if len(good) < len(items) or not (items or may_be_empty):
            odd = next((i for i in items if not isinstance(i.value, str)), found)
            got = _shown(odd) if items else "an empty list"
            self.wrong(f"{self.place(key)} must be text or a list of texts, got {got}", odd.line)
        return tuple(good)

    def choice(self, key: str, options: Sequence[str], default: str | None) -> Any:
        """Return a field that is one of some words."""
        found = self._found(key, default)
        if found is None:
            return default
        if found.value not in options:
            hint = did_you_mean(str(found.value), options)
            self.wrong(
                f"{self.place(key)} must be one of {', '.join(options)}, got "
                f"{_shown(found)}{hint}",
                found.line,
            )
            return default
        return found.value

    def flag(self, key: str, default: bool | None) -> Any:
        """Return a field that is true or false."""
        found = self._found(key, default)
        if found is None:
            return default
        if not isinstance(found.value, bool):
            self.wrong(f"{self.place(key)} must be true or false, got {_shown(found)}", found.line)
            return default
        return found.value

    def whole(
        self, key: str, default: int | None, *, least: int = 1, most: int = MOST_WHOLE
    ) -> Any:
        """Return a field that is a whole number in [least, most]."""
        found = self._found(key, default)
        if found is None:
            return default
        if type(found.value) is not int or not least <= found.value <= most:
            huge = type(found.value) is int and found.value > most
            limit = f"at most {most:,}" if huge else f"at least {least}"
            self.wrong(
                f"{self.place(key)} must be a whole number of {limit}, got {_shown(found)}",
                found.line,
            )
            return default
        return found.value

    def number(
        self,
        key: str,
        default: float | None,
        *,
        least: float = 0.0,
        most: float = MOST,
        above: float = -math.inf,
    ) -> Any:
        """Return a field that is a number in [least, most] and over `above`."""
        found = self._found(key, default)
        if found is None:
            return default
        value = _as_number(found.value)
        if value is None or not (least <= value <= most and above < value):
            low = f"above {above:g}" if above >= least else f"of at least {least:g}"
            self.wrong(
                f"{self.place(key)} must be a number {low} and at most {most:g}, got "
                f"{_shown(found)}",
                found.line,
            )
            return default
        return value

    def finish(self) -> None:
        """Note every field that nobody asked for."""
        known = list(dict.fromkeys(self._asked))
        for name, entry in self._entries.items():
            if name not in known:
                where = f"{self.path} has" if self.path else "a recipe has"
                hint = did_you_mean(name, known) or f"; it may hold {', '.join(known)}"
                self.wrong(f"{where} no field {name!r}{hint}", entry.key_line)

    def _found(self, key: str, default: Any) -> Located | None:
        """Return the field where there is a value to check; note it where one is missing."""
        found = self.located(key)
        if found is None:
            if default is REQUIRED:
                self.wrong(f"{self.place(key)} is missing")
            return None
        if found.value is None:
            if default is not None:
                self.wrong(f"{self.place(key)} is empty: give it a value", found.line)
            return None
        return found


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the name that was meant, or an empty text."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _as_number(value: Any) -> float | None:
    if isinstance(value, str):  # YAML takes 1e-3, which lacks a point, for text
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond all floats
        return None


def _shown(located: Located) -> str:
    if isinstance(located.value, dict | list) or located.value is None:
        return located.kind
    return f"{located.value!r:.60}"
