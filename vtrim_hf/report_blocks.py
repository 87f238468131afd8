"""What a report's page is made of: sections of tables, plots and texts, all of it plain values.

Nothing here is HTML. Whatever comes from a file goes through `shown` or the functions below, and
the template escapes it once more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .card_words import visible

LONGEST_TEXT = 400
"""Characters of one value that a page shows; the file has the rest."""

MOST_ROWS = 200
"""Rows of one table."""


DAMAGED = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    ArithmeticError,
    OSError,
    RecursionError,
)
"""What a damaged file makes the readers and the makers of sections raise."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: what it says.
        kind: "text", "number" or "code".
        bar: a share from 0 to 1 that is drawn beside the text, or None.
    """

    text: str
    kind: str = "text"
    bar: float | None = None


@dataclass(frozen=True)
class Facts:
    """Names and values, one line each."""

    kind: ClassVar[str] = "facts"
    title: str
    rows: tuple[tuple[str, Cell], ...]
    folded: bool = False


@dataclass(frozen=True)
class Grid:
    """A table with a title, a line of column names, and a remark on what was left out."""

    kind: ClassVar[str] = "grid"
    title: str
    columns: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    remark: str = ""


@dataclass(frozen=True)
class Plot:
    """A drawing: finished SVG of our own making, and what it shows in words."""

    kind: ClassVar[str] = "plot"
    title: str
    words: str
    svg: str


@dataclass(frozen=True)
class Picture:
    """An image that lay in the folder, as a data URI."""

    kind: ClassVar[str] = "picture"
    title: str
    uri: str


@dataclass(frozen=True)
class Notes:
    """Sentences, one a line."""

    kind: ClassVar[str] = "notes"
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Listing:
    """Text as it stands in a file, such as a command or a recipe; folded away if it is long."""

    kind: ClassVar[str] = "listing"
    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True)
class Prose:
    """HTML that a Markdown renderer made of a file, with all HTML in it escaped."""

    kind: ClassVar[str] = "prose"
    title: str
    html: str


Block = Facts | Grid | Plot | Picture | Notes | Listing | Prose


@dataclass(frozen=True)
class Section:
    """What the page tells of one file, or of a few that belong together.

    Attributes:
        title: its heading.
        sources: the files it was read from, relative to the folder.
        blocks: what it shows.
        problem: what is missing or broken and why, in words; empty if nothing is.
        glance: the figures that the top of the page repeats.
    """

    title: str
    sources: tuple[str, ...]
    blocks: tuple[Block, ...] = ()
    problem: str = ""
    glance: tuple[tuple[str, str], ...] = ()


def damage(error: BaseException, what: str = "This file") -> str:
    """Return the sentence that says why a file is not shown.

    Args:
        error: one of `DAMAGED`.
        what: the file, as the sentence begins.
    """
    if isinstance(error, RecursionError):
        return f"{what} could not be shown: it is nested without end."
    said = str(error) if isinstance(error, ValueError | OSError) else repr(error)
    return f"{what} could not be shown, it is damaged or of another release: {shown(said)}"


def shown(value: Any, most: int = LONGEST_TEXT) -> str:
    """Return a text without signs that move or hide others, cut to a length.

    Line breaks, controls, marks of direction and lone surrogates are written as escapes.

    Example:
        >>> shown("one" * 100, 5)
        'oneon… (300 characters)'
    """
    text = value if isinstance(value, str) else str(value)
    said = visible(text[:most])
    return said if len(text) <= most else f"{said}… ({len(text):,} characters)"


def shown_lines(value: str, most: int = 40_000) -> str:
    """Return a text of several lines, each made safe to show."""
    lines = [shown(line, 2_000) for line in value[:most].expandtabs(4).splitlines()]
    return "\n".join([*lines, "…"] if len(value) > most else lines)


def text(value: Any) -> Cell:
    """Return a cell of text; nothing for None."""
    return Cell("" if value is None else shown(value))


def code(value: Any) -> Cell:
    """Return a cell that is set as code."""
    return Cell("" if value is None else shown(value), "code")


def token(value: Any) -> Cell:
    """Return the text of a token between quotes, so that its blanks are seen."""
    return Cell("" if value is None else f'"{shown(value)}"', "code")


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number."""
    # An int beyond the range of floats would break whatever computes with it.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 and math.isfinite(value)


def number(value: Any, form: str = ",.2f", unit: str = "") -> Cell:
    """Return a cell with a number; what is none is shown as the text that it is."""
    if not is_number(value):
        return Cell("" if value is None else shown(value))
    said = f"{value:,}" if isinstance(value, int) and form.endswith("f") else format(value, form)
    return Cell(f"{said} {unit}".strip(), "number")


def share(value: Any, places: int = 2) -> Cell:
    """Return a cell with a share in per cent."""
    return number(100 * value, f".{places}f", "%") if is_number(value) else text(value)


def interval(ends: Any, factor: float = 1.0, form: str = ".2f") -> Cell:
    """Return a cell with both ends of an interval."""
    if not isinstance(ends, Sequence) or len(ends) != 2 or not all(map(is_number, ends)):
        return text(None if ends is None else ends)
    low, high = (format(factor * end, form) for end in ends)
    return Cell(f"{low} to {high}", "number")


def value_cell(value: Any) -> Cell:
    """Return a cell for any JSON value: numbers with four digits, lists item by item."""
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if is_number(value):
        whole = isinstance(value, int) or (value == int(value) and abs(value) < 1e12)
        return number(value, ",.0f" if whole else ".4g")
    if isinstance(value, list | tuple):
        items = ", ".join(value_cell(item).text for item in value[:24])
        return Cell(shown(items + (", …" if len(value) > 24 else "")), "text")
    if isinstance(value, Mapping):
        pairs = list(value.items())[:24]
        items = ", ".join(f"{shown(name, 60)} {value_cell(held).text}" for name, held in pairs)
        return Cell(shown(items + (", …" if len(value) > 24 else "")), "text")
    return text(value)


def facts(title: str, pairs: Iterable[tuple[str, Cell]], *, folded: bool = False) -> Facts:
    """Return facts without those that say nothing."""
    rows = tuple((shown(name, 80), cell) for name, cell in pairs if cell.text)
    return Facts(title, rows, folded)


def grid(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]], remark: str = ""
) -> Grid:
    """Return a table; its columns are aligned as their first cells, long ones are cut."""
    held = [tuple(row) for row in rows]
    kept = tuple(held[:MOST_ROWS])
    if len(held) > MOST_ROWS:
        remark = f"{remark} {len(held) - MOST_ROWS:,} more rows are in the file.".strip()
    kinds = [
        next((row[at].kind for row in kept if row[at].text), "text") for at in range(len(columns))
    ]
    head = tuple(Cell(shown(name, 80), kind) for name, kind in zip(columns, kinds, strict=True))
    return Grid(title, head, kept, remark)
