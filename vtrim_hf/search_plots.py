"""The picture of a search: what each size covers against what it saves, or its speed-up."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .vocabulary import write_atomically

if TYPE_CHECKING:
    from .search_result import SearchResult

_LINE, _PALE, _HELD, _CHOSEN, _USUAL, _WEAK, _TEXT = (
    "#2563a8",
    "#b9cfe6",
    "#d97706",
    "#b91c1c",
    "#4b5563",
    "#d98a7e",
    "#1f2937",
)


def plot_search(result: SearchResult, path: Path, *, title: str | None = None) -> Path:
    """Draw a search result and write the image; see `SearchResult.plot`.

    Raises:
        ImportError: if matplotlib is not installed.
        ValueError: if the path's ending is no image format.
    """
    # A figure of its own and not pyplot's, whose state belongs to the caller.
    from matplotlib.figure import Figure

    several = len(result.per_domain) > 1
    height = max(4.6, 1.6 + 0.34 * len(result.per_domain)) if several else 4.6
    figure = Figure(figsize=(11.0 if several else 7.0, height), layout="constrained")
    if several:
        left, right = figure.subplots(1, 2, width_ratios=(1.55, 1.0))
        _draw_domains(right, result)
    else:
        left = figure.subplots()
    if result.expected is None:
        _draw_curve(left, result)
    else:
        _draw_speedups(left, result, result.expected)
    figure.suptitle(title or _title(result), fontsize=11, color=_TEXT)
    known = figure.canvas.get_supported_filetypes()
    kind = path.suffix.removeprefix(".").lower()
    if kind not in known:
        raise ValueError(f"the path must end in one of {', '.join(sorted(known))}, got {path}")
    image = io.BytesIO()
    figure.savefig(image, format=kind, dpi=160)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, image.getvalue())
    return path


def _title(result: SearchResult) -> str:
    width = result.vocabulary.vocab_size
    if result.expected is not None:
        return (
            f"{result.expected['advice'].capitalize()}: {result.k:,} of {width:,} tokens, "
            f"{result.draft_length} drafted a round"
        )
    return (
        f"Draft vocabulary: {result.k:,} of {width:,} tokens (cut by {1 - result.k / width:.1%})"
    )


def _draw_curve(axes: Any, result: SearchResult) -> None:
    curve = result.curve
    saved, covered = 100 * curve.reduction, 100 * curve.coverage
    feasible = curve.feasible
    if not feasible.all():
        axes.plot(saved, covered, color=_PALE, linewidth=2, label="misses a floor")
    axes.plot(
        np.where(feasible, saved, np.nan),
        covered,
        color=_LINE,
        linewidth=2,
        label="search part",
    )
    if curve.heldout_coverage is not None:
        axes.plot(
            saved,
            100 * curve.heldout_coverage,
            color=_HELD,
            linestyle=(0, (4, 2)),
            linewidth=1.5,
            label="held-out part",
        )
    least = result.settings.get("min_coverage") or 0.0
    if least:
        axes.axhline(100 * least, color=_TEXT, linewidth=0.9, linestyle=":")
        axes.annotate(
            f"least coverage {least:.1%}",
            (0.01, 100 * least),
            xycoords=("axes fraction", "data"),
            xytext=(0, -3),
            textcoords="offset points",
            verticalalignment="top",
            fontsize=8,
            color=_TEXT,
        )
    _mark(axes, result.reduction, result.coverage, result.k, "o", _CHOSEN, "chosen")
    points = [result.coverage, least or result.coverage]
    if result.usual is not None:
        usual = result.usual
        _mark(axes, usual.reduction, usual.coverage, usual.k, "s", _USUAL, "usual size")
        points.append(usual.coverage)
    if result.heldout_coverage is not None:
        points.append(result.heldout_coverage)
    # The part of the curve where the choice is made: half of what the marked points leave open.
    low = max(
        float(covered.min()) - 1, 100 * min(points) - max(6.0, 3 * (100 - 100 * min(points)))
    )
    axes.set_ylim(max(0.0, low), 100 + 0.04 * (100 - low))
    inside = covered >= low
    right = float(saved[inside].max()) if inside.any() else float(saved.max())
    left = min([float(saved.min()), *([100 * result.usual.reduction] if result.usual else [])])
    margin = 0.03 * (right - left) or 1.0
    axes.set_xlim(left - margin, right + 2 * margin)
    _name_sizes(axes, result, low)
    axes.set_xlabel(f"{_saved(result)} saved, % of a step with the whole vocabulary")
    axes.set_ylabel("assistant tokens covered, %")
    axes.grid(color="#e5e7eb", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", frameon=False, fontsize=9)


def _draw_speedups(axes: Any, result: SearchResult, expected: Mapping[str, Any]) -> None:
    """Draw what is expected of each size, with the draft length that is best for it."""
    # The whole head stands apart: what lies between was not weighed.
    cut = np.flatnonzero(result.curve.sizes < expected["full"]["k"])
    curve = result.curve.at(cut) if cut.size else result.curve
    feasible = curve.feasible
    if not feasible.all():
        axes.plot(curve.sizes, curve.utility, color=_PALE, linewidth=2, label="misses a floor")
    axes.plot(
        curve.sizes,
        np.where(feasible, curve.utility, np.nan),
        color=_LINE,
        linewidth=2,
        label="search part",
    )
    if curve.heldout_utility is not None:
        axes.plot(
            curve.sizes,
            curve.heldout_utility,
            color=_HELD,
            linestyle=(0, (4, 2)),
            linewidth=1.5,
            label="held-out part",
        )
    axes.axhline(1.0, color=_TEXT, linewidth=0.9, linestyle=":", label="no draft")
    part = expected["judged_on"]
    for name, marker, color in (("full", "s", _USUAL), ("chosen", "o", _CHOSEN)):
        option = expected[name]
        label = "whole head" if name == "full" else name
        axes.plot(
            option["k"],
            option[part]["speedup"],
            marker,
            color=color,
            markersize=8,
            markeredgecolor="white",
            linestyle="none",
            zorder=5,
            label=f"{label}: {option['k']:,} tokens, {option['draft_length']} drafted, "
            f"{option[part]['speedup']:.2f} times no draft",
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda size, _: f"{size:,.0f}")
    axes.set_xlabel("tokens in the draft's vocabulary")
    axes.set_ylabel("expected tokens a second, over no draft")
    axes.grid(color="#e5e7eb", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", edgecolor="none", framealpha=0.9, fontsize=9)


def _name_sizes(axes: Any, result: SearchResult, low: float) -> None:
    """Set small ticks on the curve that say how many tokens lie there."""
    curve = result.curve
    for size in (500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000):
        # After loading, not every size is there: the name goes to where it would be.
        saved = 100 * float(np.interp(size, curve.sizes, curve.reduction))
        covered = 100 * float(np.interp(size, curve.sizes, curve.coverage))
        if not curve.sizes[0] <= size <= curve.sizes[-1] or covered < low:
            continue
        axes.plot(saved, covered, "|", color=_TEXT, markersize=7, markeredgewidth=1.2, zorder=4)
        axes.annotate(
            f"{size // 1000}k" if size >= 1000 else str(size),
            (saved, covered),
            xytext=(5, 4),
            textcoords="offset points",
            fontsize=8,
            color=_TEXT,
        )


def _saved(result: SearchResult) -> str:
    kind = result.settings.get("latency", {}).get("kind")
    return {"flops": "operations", "bytes": "reading time", "measured": "time"}.get(kind, "cost")


def _mark(
    axes: Any, reduction: float, coverage: float, k: int, marker: str, color: str, name: str
) -> None:
    axes.plot(
        100 * reduction,
        100 * coverage,
        marker,
        color=color,
        markersize=8,
        markeredgecolor="white",
        linestyle="none",
        zorder=5,
        label=f"{name}: {k:,} tokens, {coverage:.2%} covered, {reduction:.1%} saved",
    )


def _draw_domains(axes: Any, result: SearchResult) -> None:
    names = list(result.per_domain)
    rows = np.arange(len(names))[::-1]
    lowest = 1.0
    held = any(facts["heldout_tokens"] for facts in result.per_domain.values())
    for row, name in zip(rows, names, strict=True):
        facts = result.per_domain[name]
        prefix = "heldout_" if facts["heldout_tokens"] else ""
        coverage, interval = facts[f"{prefix}coverage"], facts[f"{prefix}interval"]
        if coverage is None:
            axes.annotate("no tokens", (100, row), fontsize=8, color=_TEXT, ha="right")
            continue
        color = _WEAK if facts["weak"] else _LINE
        axes.barh(row, 100 * coverage, height=0.62, color=color)
        lowest = min(lowest, coverage, interval[0] if interval else coverage)
        if interval:
            ends = [100 * bound for bound in interval]
            axes.plot(ends, [row, row], "|-", color=_TEXT, linewidth=1.4, markersize=7)
        if facts["floor"]:
            lowest = min(lowest, facts["floor"])
            axes.plot([100 * facts["floor"]] * 2, [row - 0.36, row + 0.36], color=_TEXT, lw=1.6)
        axes.annotate(
            f"{coverage:.1%}" + (" weak" if facts["weak"] else ""),
            (100, row),
            xytext=(6, 0),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=9,
            color=_TEXT,
            annotation_clip=False,
        )
    axes.set_yticks(rows, names)
    low = 100 * lowest - max(1.0, 50 * (1 - lowest))
    axes.set_xlim(max(0.0, low), 100)
    part = "held-out part" if held else "search part"
    axes.set_xlabel(f"covered by the chosen vocabulary, % ({part})")
    axes.grid(axis="x", color="#e5e7eb", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
