"""What benchmarks read again of what they wrote: JSON objects and kept rows, if still whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vtrim_hf.kept_rows import KeptRows

HOLDERS = ("sets", "tasks", "domains")  # of figures, by name


def object_or_none(path: Path) -> dict[str, Any] | None:
    """Return the JSON object that a file holds; None if it is not there or holds none.

    For what is made anew without a loss.
    """
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # no UTF-8, no JSON, or brackets without an end
        return None
    return found if isinstance(found, dict) else None


def read_object(path: Path, parts: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Args:
        path: the file.
        parts: what must be an object in there, too, where it is there; so must be all that "sets",
            "tasks" and "domains" hold.

    Raises:
        SystemExit: naming the file, if it holds none.
    """
    found = object_or_none(path)
    if found is None:
        raise damaged(path, "it must hold a JSON object")
    for part in parts:
        if not isinstance(found.get(part, {}), dict):
            raise damaged(path, f"its {part!r} must be a JSON object")
        for name, value in found.get(part, {}).items():
            if part in HOLDERS and not isinstance(value, dict):
                raise damaged(path, f"its {part!r} must hold a JSON object for {name!r}")
    return found


def damaged(path: Path, rule: str) -> SystemExit:
    """Return what is said of a file that is not as it was written."""
    return SystemExit(f"{path} is damaged: {rule}; delete it, or put back what it was")


def check_rows_file(path: Path, parts: Sequence[str]) -> None:
    """Raise unless a file of kept rows holds nothing else than such rows.

    Args:
        path: the file.
        parts: what every row must have.

    Raises:
        SystemExit: naming the file and the line.
    """
    try:
        kept = KeptRows(path)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    _check_rows(kept, parts)


def kept_rows(output: Path, call: Mapping[str, Any], parts: Sequence[str]) -> KeptRows:
    """Open the rows of one call, as `KeptRows.beside` does.

    Args:
        output: the file that the call will write.
        call: everything that gives the rows.
        parts: what every row must have.

    Raises:
        SystemExit: naming the file and the line, if it holds anything else than such rows.
    """
    try:
        kept = KeptRows.beside(output, call)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    _check_rows(kept, parts)
    return kept


def _check_rows(kept: KeptRows, parts: Sequence[str]) -> None:
    for number, row in enumerate(kept.rows, 1):
        if missing := [part for part in parts if part not in row]:
            raise SystemExit(
                f"{kept.path}:{number} is no row of this benchmark, it must have {missing[0]!r}: "
                "delete the file to begin anew"
            )
