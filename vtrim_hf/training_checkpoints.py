"""Which checkpoint a training goes on from: the last one that was written to its end."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from .training_report import TrainingReport
from .vocabulary import write_atomically

logger = logging.getLogger(__name__)

STATE_JSON = "draft_training.json"
"""In each checkpoint: what the report held, what it was a training of, and sums not yet logged."""

_TRAINER_STATE = "trainer_state.json"  # Transformers writes it last
_FOLDER = re.compile(r"checkpoint-(\d+)")


def checkpoints(folder: str | Path) -> list[Path]:
    """Return the folders of checkpoints, the oldest first."""
    found = [(_FOLDER.fullmatch(path.name), path) for path in Path(folder).glob("checkpoint-*")]
    return [path for match, path in sorted((int(m[1]), p) for m, p in found if m) if match >= 0]


def step_of(checkpoint: str | Path) -> int:
    """Return the step that a checkpoint's folder is called by."""
    return int(Path(checkpoint).name.rpartition("-")[2])


def last_whole_checkpoint(folder: str | Path) -> Path | None:
    """Return the last checkpoint that was written to its end; None if there is none.

    What a kill left half-written behind it is removed: Transformers would take it up.
    """
    for path in reversed(checkpoints(folder)):
        if read_state(path) is not None and _json(path / _TRAINER_STATE) is not None:
            return path
        shutil.rmtree(path, ignore_errors=True)
    return None


def existing_checkpoint(folder: str | Path) -> Path:
    """Return the last checkpoint that was written to its end.

    Raises:
        ValueError: if there is none.
    """
    found = last_whole_checkpoint(folder)
    if found is None:
        raise ValueError(f"no whole checkpoint in {folder}: begin without resume_from_checkpoint")
    return found


def write_state(checkpoint: str | Path, report: TrainingReport, sums: torch.Tensor) -> None:
    """Write what `continued` reads, beside weights and Transformers' own files.

    Args:
        checkpoint: its folder.
        report: of the training.
        sums: of the steps since the last log, float32 [steps, 4], of all processes together; the
            next log's means are over these, too.
    """
    state = {
        "report": report.state(),
        "fingerprints": report.data["fingerprints"],
        "settings": report.data["settings"],
        "sums": sums.tolist(),
    }
    write_atomically(Path(checkpoint) / STATE_JSON, json.dumps(state).encode())


def read_state(checkpoint: str | Path) -> dict[str, Any] | None:
    """Return what `STATE_JSON` of a checkpoint holds; None if it is not there or not whole."""
    return _json(Path(checkpoint) / STATE_JSON)


def continued(checkpoint: str | Path, report: TrainingReport) -> torch.Tensor:
    """Let a report go on from a checkpoint; returns its sums, see `write_state`.

    Args:
        checkpoint: its folder.
        report: of the training that goes on, with its fingerprints and settings; of these, others
            than the checkpoint's are warned about.

    Raises:
        ValueError: if the checkpoint is not whole, or of another vocabulary, target or data.
    """
    state = read_state(checkpoint)
    if state is None:
        raise ValueError(
            f"{checkpoint} is no whole checkpoint of a draft's training ({STATE_JSON} is missing "
            "or broken): go on from another one"
        )
    fingerprints, settings = report.data["fingerprints"], report.data["settings"]
    for name, value in state["fingerprints"].items():
        if fingerprints.get(name) != value:
            raise ValueError(
                f"{checkpoint} is of another {name} ({str(value)[:12]}, now "
                f"{str(fingerprints.get(name))[:12]}): go on with what it was begun with, or "
                "begin anew in another output_dir"
            )
    changed = [
        f"{name} {value} -> {settings.get(name)}"
        for name, value in state["settings"].items()
        if settings.get(name) != value
    ]
    if changed:
        logger.warning("The training goes on with other settings: %s", ", ".join(changed))
    report.go_on(state["report"])
    # Checkpoints of earlier releases hold no sums.
    return torch.tensor(state.get("sums", []), dtype=torch.float32)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
