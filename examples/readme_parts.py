"""What README's tables have in common: where the measurements lie, and how figures are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "examples" / "evidence"


def read(name: str) -> Any:
    """Return the JSON of a measurement."""
    return json.loads((EVIDENCE / name).read_text(encoding="utf-8"))


def spread(found: dict[str, float]) -> str:
    """Return a median with its 95 % interval."""
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def percent(share: float, digits: int = 1) -> str:
    """Return a share for people."""
    return f"{share:.{digits}%}".replace("%", " %")


def scored(found: dict[str, float], metric: str) -> str:
    """Return a score with its 95 % interval, where that is not the score itself."""
    score, low, high = (percent(found[name]) for name in (metric, "low", "high"))
    same = found["low"] == found["high"] == found[metric]
    return score if same else f"{score} ({low} to {high})"


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table, with a line break at its end."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
