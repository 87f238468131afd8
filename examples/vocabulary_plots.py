"""The pictures of the benchmarks of vocabularies."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from paper_figures import PAPER_BAND, PAPER_WIDTH
from vocabulary_runs import ALL

from vtrim_hf.vocabulary import write_atomically


def drawing() -> Any:
    """Return matplotlib's pyplot, which needs no screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(pyplot: Any, figure: Any, path: Path, dpi: int) -> None:
    """Write a picture, without what tells of this machine's software."""
    stream = io.BytesIO()
    figure.savefig(stream, dpi=dpi, format="png", metadata={"Software": None})
    pyplot.close(figure)
    write_atomically(path, stream.getvalue())


def draw_heat_map(found: Mapping[str, Any], path: Path) -> None:
    """Draw the coverage of each domain's vocabulary on every domain and ood set."""
    pyplot = drawing()
    rows = found["crossed"]
    ood = list(next(iter(rows.values()))["ood"])
    # A set may be called like a domain.
    columns = [*rows, *(f"ood: {name}" for name in ood)]
    values = np.array(
        [
            [row["domains"][name]["coverage"] for name in rows]
            + [row["ood"][name]["coverage"] for name in ood]
            for row in rows.values()
        ]
    )
    size = (1.8 + 0.72 * len(columns), 1.6 + 0.5 * len(rows))
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    image = axes.imshow(values, cmap="viridis", vmin=values.min(), vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right")
    axes.set_yticks(range(len(rows)), [f"{name} ({row['k']:,})" for name, row in rows.items()])
    axes.set_xlabel("tokens that the assistant says in (held-out)")
    axes.set_ylabel("vocabulary of (k*)")
    axes.set_title(f"Coverage, {found['facts']['target']}")
    if ood:
        axes.axvline(len(rows) - 0.5, color="white", linewidth=2)
    middle = (values.min() + 1) / 2
    for (i, j), value in np.ndenumerate(values):
        colour = "black" if value > middle else "white"
        axes.text(j, i, f"{value:.1%}", ha="center", va="center", color=colour, fontsize=7)
    figure.colorbar(image, ax=axes, format=lambda value, _: f"{value:.0%}")
    save(pyplot, figure, path, dpi=150)


def draw_stability(found: Mapping[str, Any], path: Path) -> None:
    """Draw k* and coverage against the number of conversations."""
    pyplot = drawing()
    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(7.5, 7), layout="constrained"
    )
    for name, one in found["domains"].items():
        sizes = [point["size"] for point in one["points"]]
        for axes, key in ((above, "k"), (below, "coverage")):
            middle, low, high = (
                [point[key][part] for point in one["points"]] for part in ("median", "q25", "q75")
            )
            style = "--" if name == ALL else "-"
            (line,) = axes.plot(sizes, middle, style, marker="o", markersize=3, label=name)
            axes.fill_between(sizes, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            if one["settled"][key] is not None:
                at = sizes.index(one["settled"][key])
                axes.plot(
                    sizes[at],
                    middle[at],
                    "o",
                    markersize=9,
                    fillstyle="none",
                    color=line.get_color(),
                )
    if found["facts"]["vocab_size"] == PAPER_WIDTH:
        above.axhspan(*PAPER_BAND, color="grey", alpha=0.5, label="the paper, from 10,000 on")
    above.set_ylabel("k*")
    above.set_title(f"{found['facts']['target']}; circles: settled")
    above.legend(fontsize=7, ncols=2)
    below.set_ylabel("held-out coverage")
    below.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    below.set_xlabel("conversations that were counted")
    below.set_xscale("log")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    save(pyplot, figure, path, dpi=130)
