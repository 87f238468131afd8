"""Matplotlib's drawings as SVG inside a page: real text, the page's colours, no foreign ids.

A drawing is painted in colours that stand for roles; each becomes a variable of the page's style
sheet, so that one drawing is read on light and on dark ground.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from xml.etree import ElementTree

from .report_blocks import Block, Notes, Plot, shown

INK, GRID, PAPER = "#a10001", "#a10002", "#a10003"
SERIES = ("#a20001", "#a20002", "#a20003", "#a20004", "#a20005", "#a20006")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
MARKERS = "os^Dvp"
NAME = 28  # characters of a name beside an axis

_VARIABLES = {INK: "--ink", GRID: "--grid", PAPER: "--paper"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES, 1)
}
_SVG = "{http://www.w3.org/2000/svg}"
_WIDTH = 5.4  # inches; about what a phone shows at its own size of text
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name with dollar signs is no formula
    "font.size": 10,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.edgecolor": GRID,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.edgecolor": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


def draw(
    key: str, title: str, words: str, paint: Callable[[Any], None], *, height: float = 3.4
) -> Block:
    """Draw a plot for a page; figures that cannot be drawn become a note that says why.

    Args:
        key: unique in the page; the ids inside the drawing begin with it.
        title: what stands above it.
        words: what it shows, for those who do not see it.
        paint: draws on the axes that it is given, in the colours of this module.
        height: in inches; it is 5.4 wide.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    image = io.BytesIO()
    # The caller's own settings of Matplotlib must not show in the page, nor ours in his figures.
    with (
        matplotlib.style.context(["default", {**_STYLE, "svg.hashsalt": key}]),
        warnings.catch_warnings(),
    ):
        # Of glyphs that its own font lacks: the browser has others.
        warnings.simplefilter("ignore", UserWarning)
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.subplots()
        try:
            paint(axes)
            if len(axes.get_legend_handles_labels()[1]) > 1:
                figure.legend(loc="outside lower center", ncols=2)
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            figure.savefig(image, format="svg", metadata=nothing)
        except (ValueError, TypeError, ArithmeticError, IndexError) as error:
            return Notes(title, (f"This could not be drawn: {error}",))
    return Plot(title, words, _for_page(image.getvalue(), key, title, words))


def _for_page(svg: bytes, key: str, title: str, words: str) -> str:
    """Return an SVG element for HTML: named, in the page's colours, its ids its own."""
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.attrib = {
            name.rpartition("}")[2]: _own(name, value, key)
            for name, value in element.attrib.items()
        }
    view = root.attrib["viewBox"]
    root.attrib = {
        "class": "plot",
        "viewBox": view,
        "role": "img",
        "aria-labelledby": f"{key}-title {key}-words",
    }
    for place, (tag, said) in enumerate((("title", title), ("desc", words))):
        element = ElementTree.Element(tag, {"id": f"{key}-{'words' if place else 'title'}"})
        element.text = said
        root.insert(place, element)
    return ElementTree.tostring(root, encoding="unicode")


def _own(name: str, value: str, key: str) -> str:
    """Return an attribute with the page's colours, and ids that no other drawing has."""
    if name == "id":
        return f"{key}-{value}"
    if name.endswith("href"):
        return f"#{key}-{value.removeprefix('#')}"
    value = re.sub(r"url\(#", f"url(#{key}-", value)
    return re.sub(
        r"#[0-9a-f]{6}",
        lambda found: f"var({_VARIABLES[found[0]]})" if found[0] in _VARIABLES else found[0],
        value,
    )


def over_sizes(axes: Any, sizes: Sequence[int]) -> None:
    """Scale the x axis to numbers of kept ids, logarithmic if they differ much."""
    wide = sizes[-1] > 5 * sizes[0]
    axes.set_xlabel("kept ids (logarithmic)" if wide else "kept ids")
    if wide:
        axes.set_xscale("log")
        round_ones = [d * 10**e for e in range(7) for d in (1, 2, 5)]
        axes.set_xticks([k for k in round_ones if sizes[0] <= k <= sizes[-1]])
    plain_ticks(axes.xaxis)


def whiskers(
    axes: Any,
    rows: Sequence[tuple[str, float, Sequence[float] | None]],
    form: str = "{:.2f}",
) -> None:
    """Draw one point a row with its interval, the value in figures beside it."""
    for at, (_, value, ends) in enumerate(rows):
        low, high = ends or (value, value)
        axes.plot([low, high], [at, at], "|-", color=INK, lw=1.4, ms=8)
        axes.plot(value, at, "o", color=SERIES[0], mec=PAPER, ms=8)
        axes.annotate(
            form.format(value),
            (value, at),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(rows)), short_names([name for name, *_ in rows]))
    axes.set_ylim(len(rows) - 0.5, -0.7)
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)


def short_names(names: Sequence[str]) -> list[str]:
    """Return names that fit beside an axis, no two the same: of equals one bar would vanish."""
    short: list[str] = []
    for name in names:
        said = shown(name)
        said = said if len(said) <= NAME else f"{said[: NAME - 1]}…"
        said = f" {said}" if said.startswith("_") else said  # or the legend leaves it out
        short.append(said if said not in short else f"{said} ({len(short) + 1})")
    return short


def times(factor: float, ends: Sequence[float] | None) -> list[float] | None:
    """Return an interval in another unit."""
    return None if ends is None else [factor * end for end in ends]


def tall(rows: int) -> float:
    """Return the height in inches of a plot with so many rows."""
    return min(1.5 + 0.42 * rows, 14.0)


def plain_ticks(axis: Any) -> None:
    """Write 10,000 and 2M rather than powers of ten."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    def said(value: float, _: Any) -> str:
        return f"{value / 1e6:g}M" if abs(value) >= 1e6 else f"{value:,.0f}"

    axis.set_major_formatter(FuncFormatter(said))
    axis.set_minor_formatter(NullFormatter())
