"""The plots of a report's page: search, speed, time by part, acceptance, training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .card_words import percent
from .decode_report import DecodeReport
from .report_blocks import Block, is_number, shown
from .report_drawing import (
    DASHES,
    INK,
    MARKERS,
    NAME,
    PAPER,
    SERIES,
    draw,
    over_sizes,
    plain_ticks,
    short_names,
    tall,
    times,
    whiskers,
)
from .search_result import SearchResult


def front_plot(key: str, result: SearchResult, cost: str) -> Block:
    """Draw coverage against what a draft step saves, with the front that nothing beats."""
    curve = result.curve

    def paint(axes: Any) -> None:
        saved, covered = 100 * curve.reduction, 100 * curve.coverage
        if not curve.feasible.all():
            axes.plot(saved, covered, color=INK, lw=1, ls=":", label="misses a floor")
        allowed = np.where(curve.feasible, saved, np.nan)
        axes.plot(allowed, covered, color=SERIES[0], label="search part")
        if curve.heldout_coverage is not None:
            held = 100 * curve.heldout_coverage
            axes.plot(saved, held, color=SERIES[1], ls=DASHES[1], label="held-out part")
        step = max(1, len(result.front) // 24)
        front = np.asarray([(100 * p.reduction, 100 * p.coverage) for p in result.front[::step]])
        if front.size:
            axes.plot(*front.T, ".", color=SERIES[0], label="Pareto front (some of its sizes)")
        least = result.settings.get("min_coverage") or 0.0
        if least:
            axes.axhline(100 * least, color=INK, lw=1, ls="--", label=f"least: {percent(least)}")
        marks = [(result.reduction, result.coverage, result.k, "D", SERIES[2], "chosen")]
        if result.usual is not None:
            usual = result.usual
            marks.append((usual.reduction, usual.coverage, usual.k, "s", SERIES[3], "usual"))
        for x, y, k, marker, colour, name in marks:  # of a size outside, the legend tells
            axes.plot(
                100 * x,
                100 * y,
                marker,
                color=colour,
                mec=PAPER,
                ms=9,
                zorder=5,
                label=f"{name}: {k:,} ids, {percent(x)} saved",
            )
        points = [y for _, y, *_ in marks] + [least or 1.0]
        points += [] if result.heldout_coverage is None else [result.heldout_coverage]
        # The part of the curve where the choice is made.
        low = max(0.0, 100 * min(points) - max(6.0, 2 * (100 - 100 * min(points))))
        axes.set_ylim(low, 100 + 0.05 * (100 - low))
        inside = saved[covered >= low]
        ends = [*(inside if inside.size else saved), 100 * result.reduction]
        span = max(ends) - min(ends) or 1.0
        # The usual size may lie so far off that nothing else could be told apart.
        ends += [100 * x for x, *_ in marks if abs(100 * x - min(ends)) <= 2 * span]
        axes.set_xlim(min(ends) - 0.1 * span, max(ends) + 0.1 * span)
        axes.set_xlabel(f"{cost} of a draft step saved, %")
        axes.set_ylabel("tokens covered, %")

    words = (
        f"Coverage against the {cost} saved, for every allowed size; chosen are {result.k:,} ids "
        f"with {percent(result.coverage, 2)} covered and {percent(result.reduction)} saved."
    )
    return draw(key, "Coverage against what a draft step saves", words, paint, height=4.2)


def size_plot(key: str, result: SearchResult) -> Block:
    """Draw coverage, saving and utility over the number of kept ids."""
    curve = result.curve

    def paint(axes: Any) -> None:
        lines = [("coverage, search part", curve.coverage), ("cost saved", curve.reduction)]
        if curve.heldout_coverage is not None:
            lines.insert(1, ("coverage, held-out part", curve.heldout_coverage))
        if result.expected is None:
            lines.append(("utility, which the search maximises", curve.utility))
        for at, (name, values) in enumerate(lines):
            axes.plot(curve.sizes, values, color=SERIES[at], ls=DASHES[at], label=name)
        axes.axvline(result.k, color=INK, lw=1, ls=":", label=f"chosen: {result.k:,} ids")
        over_sizes(axes, curve.sizes.tolist())
        axes.set_ylabel("share")

    words = (
        f"Coverage and cost saved by number of kept ids, from {curve.sizes[0]:,} to "
        f"{curve.sizes[-1]:,}; the dotted line is at the chosen {result.k:,}."
    )
    return draw(key, "Search curve", words, paint, height=3.9)


def expected_plot(key: str, result: SearchResult) -> Block:
    """Draw the speed-up that is expected of each size, of a search for throughput."""
    curve = result.curve

    def paint(axes: Any) -> None:
        axes.plot(curve.sizes, curve.utility, color=SERIES[0], label="search part")
        if curve.heldout_utility is not None:
            axes.plot(
                curve.sizes,
                curve.heldout_utility,
                color=SERIES[1],
                ls=DASHES[1],
                label="held-out part",
            )
        axes.axhline(1, color=INK, lw=1, ls="--", label="no draft")
        axes.axvline(result.k, color=INK, lw=1, ls=":", label=f"chosen: {result.k:,} ids")
        over_sizes(axes, curve.sizes.tolist())
        axes.set_ylabel("expected speed-up")

    words = (
        f"Expected speed-up over no draft by number of kept ids; {result.k:,} are chosen, with "
        f"{result.draft_length} tokens drafted a round."
    )
    return draw(key, "Expected speed-up by size", words, paint, height=3.7)


def domains_plot(key: str, result: SearchResult) -> Block:
    """Draw how much of each domain the chosen vocabulary covers, held-out where there is any."""
    rows = []
    for name, known in result.per_domain.items():
        prefix = "heldout_" if known["heldout_tokens"] else ""
        if known[f"{prefix}coverage"] is not None:
            rows.append((name, known[f"{prefix}coverage"], known[f"{prefix}interval"]))

    def paint(axes: Any) -> None:
        whiskers(axes, [(name, 100 * value, times(100, ends)) for name, value, ends in rows])
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 99.0), min(high, 100.0 + 0.1 * (100.0 - min(low, 99.0))))
        axes.set_xlabel("tokens covered, % (whiskers: 95 % interval)")

    words = "; ".join(f"{shown(name, 60)} {percent(value, 2)}" for name, value, _ in rows)
    return draw(key, "Coverage by domain", words, paint, height=tall(len(rows)))


def speed_plot(key: str, spreads: Mapping[str, Any], baseline: str) -> Block:
    """Draw median speed-ups with their 95 % intervals.

    Args:
        key: unique in the page.
        spreads: by name, what has `median`, `low` and `high`.
        baseline: what they are against.
    """
    rows = [(name, one["median"], (one["low"], one["high"])) for name, one in spreads.items()]

    def paint(axes: Any) -> None:
        whiskers(axes, rows, form="{:.2f}x")
        axes.axvline(1, color=INK, lw=1, ls=":")
        axes.set_xlabel(f"times the speed of {shown(baseline, NAME)} (whiskers: 95 % interval)")

    words = "; ".join(
        f"{shown(name, 60)} {median:.2f} ({low:.2f} to {high:.2f})"
        for name, median, (low, high) in rows
    )
    return draw(key, "Speed-up, median over the prompts", words, paint, height=tall(len(rows)))


def parts_plot(key: str, report: DecodeReport) -> Block:
    """Draw where the time of a new token goes."""
    entries = list(report.entries.values())
    parts = list(entries[0].seconds_by_part)

    def paint(axes: Any) -> None:
        names = short_names([entry.name for entry in entries])
        left = np.zeros(len(entries))
        for at, (part, name) in enumerate(zip(parts, short_names(parts), strict=True)):
            widths = np.asarray([e.share_by_part[part] * e.ms_per_token for e in entries])
            axes.barh(
                names,
                widths,
                left=left,
                color=SERIES[at % len(SERIES)],
                edgecolor=PAPER,
                hatch=("", "", "//", "..", "", "xx")[at % 6],
                label=name.replace("_", " "),
            )
            left += widths
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds a new token")
        axes.grid(axis="y", visible=False)

    words = "; ".join(
        f"{shown(entry.name, 60)} {entry.ms_per_token:.1f} ms a new token" for entry in entries
    )
    return draw(key, "Time by part", words, paint, height=tall(len(entries)) + 0.7)


def positions_plot(key: str, shares: Mapping[str, Sequence[float]]) -> Block:
    """Draw the share of drafts accepted up to each position, by name."""

    def paint(axes: Any) -> None:
        names = short_names(list(shares))
        for at, (name, values) in enumerate(zip(names, shares.values(), strict=True)):
            axes.plot(
                range(1, len(values) + 1),
                values,
                color=SERIES[at % len(SERIES)],
                ls=DASHES[at % len(DASHES)],
                marker=MARKERS[at % len(MARKERS)],
                label=name,
            )
        if len(names) == 1:
            axes.set_title(names[0], fontsize=10)
        axes.set_ylim(0, 1.02)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("position in the draft")
        axes.set_ylabel("share accepted so far")

    words = "; ".join(
        f"{shown(name, 60)} {', '.join(f'{value:.3f}' for value in values)}"
        for name, values in shares.items()
    )
    return draw(key, "Acceptance by position", words, paint)


def training_plot(
    key: str,
    title: str,
    field: str,
    label: str,
    lines: Mapping[str, Sequence[Mapping[str, Any]]],
    best: Any = None,
) -> Block:
    """Draw a figure of a training over the tokens that it has read.

    Args:
        key: unique in the page.
        title: above the plot.
        field: name of the figure in the points.
        label: what the figure is.
        lines: points by the name of their line; those without the figure are left out.
        best: the step of the checkpoint that was kept.
    """
    known = {
        name: [p for p in points if is_number(p.get(field)) and is_number(p.get("tokens"))]
        for name, points in lines.items()
    }

    def paint(axes: Any) -> None:
        for at, (name, points) in enumerate(known.items()):
            if not points:
                continue
            axes.plot(
                [p["tokens"] for p in points],
                [p[field] for p in points],
                color=SERIES[at],
                ls="-",
                lw=1.2 if at == 0 else 2.0,
                marker="" if at == 0 and len(points) > 1 else MARKERS[at],
                label=name,
            )
            kept = [p for p in points if p.get("step") == best] if at else []
            for p in kept[-1:]:
                axes.plot(
                    p["tokens"], p[field], "D", color=SERIES[2], mec=PAPER, ms=9, label="kept"
                )
        axes.set_xlabel("tokens read")
        axes.set_ylabel(label)
        plain_ticks(axes.xaxis)

    ends = [
        f"{name}: from {points[0][field]:.3g} to {points[-1][field]:.3g}"
        for name, points in known.items()
        if points
    ]
    return draw(key, title, f"{label} over the tokens read; {'; '.join(ends)}.", paint)
