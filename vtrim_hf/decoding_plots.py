"""The picture of a `DecodeReport`: speed, where the time goes, and how far drafts are right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .decoding_meter import PARTS

if TYPE_CHECKING:
    from .decode_report import DecodeReport

_COLOURS = ("#4c78a8", "#f58518", "#eeca3b", "#b8b0ac", "#54a24b", "#9d755d")
_OURS, _PLAIN, _OTHER = "#4c78a8", "#b8b0ac", "#72b7b2"


def plot_report(report: DecodeReport, path: str | Path) -> None:
    """Draw a report into an image file, whose ending names the format.

    Args:
        report: the report.
        path: `.png`, `.svg`, `.pdf` or another format of Matplotlib.

    Raises:
        ValueError: if Matplotlib does not know the format.
    """
    from matplotlib.figure import Figure

    path = Path(path)
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    kind = path.suffix.removeprefix(".")
    known = figure.canvas.get_supported_filetypes()
    if kind not in known:
        raise ValueError(f"a plot's file must end in one of {sorted(known)}, got {path.name!r}")
    speed, parts, positions = figure.subplots(1, 3)
    _draw_speed(speed, report)
    _draw_parts(parts, report)
    _draw_positions(positions, report)
    figure.suptitle(f"{len(report.rows)} prompts on {report.machine.get('cpu') or 'this machine'}")
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(beside, format=kind)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _draw_speed(axes: Any, report: DecodeReport) -> None:
    entries = list(report.entries.values())
    colours = [
        _PLAIN if e.facts["kind"] == "plain" else _OURS if e is report.draft else _OTHER
        for e in entries
    ]
    bars = axes.barh([e.name for e in entries], [e.tokens_per_second for e in entries])
    for bar, colour in zip(bars, colours, strict=True):
        bar.set_color(colour)
    axes.bar_label(bars, [f"{e.speedup.median:.2f}x" for e in entries], padding=3)
    axes.axvline(report.plain.tokens_per_second, color="black", linewidth=0.8, linestyle=":")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set(title="Speed", xlabel="tokens/s (label: median speed-up)")


def _draw_parts(axes: Any, report: DecodeReport) -> None:
    entries = list(report.entries.values())
    names = [entry.name for entry in entries]
    left = [0.0] * len(entries)
    for part, colour in zip(PARTS, _COLOURS, strict=True):
        widths = [entry.share_by_part[part] * entry.ms_per_token for entry in entries]
        axes.barh(names, widths, left=left, color=colour, label=part.replace("_", " "))
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(title="Where the time goes", xlabel="ms a new token")
    axes.legend(fontsize="small")


def _draw_positions(axes: Any, report: DecodeReport) -> None:
    for entry in report.entries.values():
        shares = entry.acceptance_by_position
        if shares:
            label = f"{entry.name} ({entry.acceptance_length:.2f})"
            axes.plot(range(1, len(shares) + 1), shares, marker="o", label=label)
    axes.set(
        title="Acceptance",
        xlabel="position in the draft (label: acceptance length)",
        ylabel="share of drafts accepted so far",
        ylim=(0, 1.02),
    )
    axes.xaxis.get_major_locator().set_params(integer=True)
    if axes.lines:
        axes.legend(fontsize="small")
