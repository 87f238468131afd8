"""Modules of `evaluate` that come with the package, and where they lie.

Each folder is what the repository of such a module on the Hub is: NAME.py, which `evaluate` loads,
its card README.md, and the module that computes, which needs neither `evaluate` nor this package.
A folder stands alone, as people without the package load it, so none imports from another and what
two of them need is written twice.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["METRICS", "metric_path"]

METRICS = ("acceptance_length", "call_match", "entity_f1", "number_match", "token_coverage")
"""Names of the modules."""


def metric_path(name: str) -> str:
    """Return the folder of a module, for `evaluate.load`, which needs no network for it.

    Args:
        name: one of `METRICS`.

    Raises:
        ValueError: if there is no such module.

    Example:
        ```python
        coverage = evaluate.load(metric_path("token_coverage"))
        coverage.compute(predictions=[[5, 7, 5]], kept_ids=[5])["token_coverage"]  # 2 of 3
        ```
    """
    if name not in METRICS:
        raise ValueError(f"name must be one of {', '.join(METRICS)}, got {name!r}")
    return str(Path(__file__).parent / name)
