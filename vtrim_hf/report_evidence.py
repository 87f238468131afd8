"""Sections of a report's page for what benchmarks write: figures, a text, and pictures.

The figures of each benchmark have a form of their own, so they are shown as tables of whatever is
there; where they hold speed-ups or acceptance by position under the usual names, these are drawn.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from .report_blocks import (
    Block,
    Cell,
    Grid,
    Listing,
    Notes,
    Picture,
    Prose,
    Section,
    facts,
    grid,
    is_number,
    shown,
    shown_lines,
    value_cell,
)
from .report_files import Found, read_json
from .report_plots import positions_plot, speed_plot
from .report_speed import machine_facts

_MOST_TABLES = 60
_MOST_COLUMNS = 40
_DEEPEST = 6
_LARGEST = 4 << 20
_TYPES = {
    ".png": ("image/png", b"\x89PNG\r\n\x1a\n"),
    ".jpg": ("image/jpeg", b"\xff\xd8\xff"),
    ".jpeg": ("image/jpeg", b"\xff\xd8\xff"),
    ".svg": ("image/svg+xml", b"<"),
}


def figures_section(found: Found, key: str, *, plots: bool) -> Section:
    """Return the figures of a benchmark, whatever they are.

    Args:
        found: a JSON file.
        key: unique in the page.
        plots: whether to draw.

    Raises:
        ValueError: if it is no JSON, or larger than anybody reads.
    """
    size = found.path.stat().st_size
    if size > _LARGEST:
        raise ValueError(f"it has {size:,} bytes, of figures at most {_LARGEST:,} are shown")
    held = read_json(found.path)
    blocks: list[Block] = []
    if isinstance(held, Mapping):
        held = dict(held)
        command = held.pop("command", None)
        if isinstance(command, str):
            blocks.append(Listing("The command", shown_lines(command)))
        if plots:
            blocks += _drawn(held, key)
        machine = held.pop("machine", None)
        blocks += _tables(held, "Figures", 0)
        if machine is not None:
            blocks.append(machine_facts(machine))
    else:
        blocks += _tables({"figures": held}, "Figures", 0)
    if len(blocks) > _MOST_TABLES:
        left = len(blocks) - _MOST_TABLES
        more = Notes("More", (f"{left} more tables are in the file.",))
        blocks = [*blocks[:_MOST_TABLES], more]
    return Section(f"Figures: {shown(found.name, 120)}", (found.name,), tuple(blocks))


def _drawn(held: Mapping[str, Any], key: str) -> list[Block]:
    blocks: list[Block] = []
    spreads = held.get("over_plain")
    if isinstance(spreads, Mapping) and spreads and all(map(_is_spread, spreads.values())):
        blocks.append(speed_plot(f"{key}-speed", spreads, str(held.get("baseline", "plain"))))
    shares = held.get("acceptance_by_position")
    if isinstance(shares, Mapping) and any(shares.values()):
        known = {
            str(name): values
            for name, values in shares.items()
            if isinstance(values, list) and values and all(map(is_number, values))
        }
        if known:
            blocks.append(positions_plot(f"{key}-positions", known))
    return blocks


def _is_spread(value: Any) -> bool:
    names = ("median", "low", "high")
    return isinstance(value, Mapping) and all(is_number(value.get(name)) for name in names)


def _tables(held: Mapping[str, Any], title: str, deep: int) -> list[Block]:
    """Return JSON values as tables: plain ones together, alike ones as rows, others each alone."""
    plain: list[tuple[str, Cell]] = []
    blocks: list[Block] = []
    for name, value in held.items():
        place = shown(name, 80) if deep == 0 else f"{title} / {shown(name, 80)}"
        rows = _rows(value)
        if rows:
            blocks.append(_grid(place.replace("_", " "), rows))
        elif isinstance(value, Mapping) and value and not _is_flat(value) and deep < _DEEPEST:
            blocks += _tables(value, place, deep + 1)
        elif isinstance(value, Mapping) and value:
            pairs = [(str(inner), value_cell(one)) for inner, one in value.items()]
            blocks.append(facts(place.replace("_", " "), pairs))
        else:
            plain.append((str(name).replace("_", " "), value_cell(value)))
    found = facts(title.replace("_", " "), plain)
    return [found, *blocks] if found.rows else blocks


def _is_flat(value: Mapping[str, Any]) -> bool:
    return all(not isinstance(one, Mapping) and not _rows(one) for one in value.values())


def _rows(value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return named rows if a value is a table: mappings that are flat, in a mapping or a list."""
    if isinstance(value, Mapping):
        pairs = [(str(name), one) for name, one in value.items()]
    elif isinstance(value, list):
        pairs = [(str(at), one) for at, one in enumerate(value, 1)]
    else:
        return []
    if not pairs or not all(isinstance(one, Mapping) and _is_row(one) for _, one in pairs):
        return []
    return pairs


def _is_row(value: Mapping[str, Any]) -> bool:
    return all(
        not isinstance(one, Mapping)
        and not (isinstance(one, list) and any(isinstance(item, Mapping | list) for item in one))
        for one in value.values()
    )


def _grid(title: str, rows: list[tuple[str, Mapping[str, Any]]]) -> Grid:
    columns = list(dict.fromkeys(str(name) for _, one in rows for name in one))
    remark = ""
    if len(columns) > _MOST_COLUMNS:
        remark = f"{len(columns) - _MOST_COLUMNS} more columns are in the file."
        columns = columns[:_MOST_COLUMNS]
    cells = [
        (Cell(shown(name, 80)), *(value_cell(one.get(column)) for column in columns))
        for name, one in rows
    ]
    return grid(title, ["", *(name.replace("_", " ") for name in columns)], cells, remark)


def words_section(found: Found, key: str, *, plots: bool) -> Section:  # noqa: ARG001
    """Return a Markdown text beside figures, with all HTML in it escaped.

    Args:
        found: the text.
        key: unique in the page.
        plots: whether to draw; there is nothing to draw.

    Raises:
        ValueError: if it is no UTF-8, or larger than anybody reads.
    """
    size = found.path.stat().st_size
    if size > _LARGEST:
        raise ValueError(f"it has {size:,} bytes, of a text at most {_LARGEST:,} are shown")
    said = shown_lines(found.path.read_text(encoding="utf-8"), _LARGEST)
    return Section(
        f"Text: {shown(found.name, 120)}", (found.name,), (Prose("As written", _rendered(said)),)
    )


def _rendered(markdown: str) -> str:
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False, "xhtmlOut": True, "maxNesting": 20})
    # What an image or a link names lies elsewhere: the text is shown, and nothing is fetched.
    reader.enable("table").disable(["image", "link", "autolink", "reference", "html_block"])
    rendered: str = reader.disable("html_inline").render(markdown)
    return rendered


def picture_section(found: Found, key: str, *, plots: bool) -> Section:  # noqa: ARG001
    """Return an image that lies beside figures, as a part of the page.

    Args:
        found: the image; of an SVG a browser runs no script and fetches nothing in an `img`.
        key: unique in the page.
        plots: whether to draw; there is nothing to draw.

    Raises:
        ValueError: if it is not what its ending says, or larger than a page should be.
    """
    kind, begin = _TYPES[found.path.suffix.lower()]
    data = found.path.read_bytes()
    if len(data) > _LARGEST:
        raise ValueError(
            f"it has {len(data):,} bytes, of a picture at most {_LARGEST:,} are shown"
        )
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(begin):
        raise ValueError(f"it is no {found.path.suffix.removeprefix('.').upper()} image")
    uri = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return Section(
        f"Picture: {shown(found.name, 120)}", (found.name,), (Picture(found.path.name, uri),)
    )
