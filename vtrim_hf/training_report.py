"""`training_report.json`: how a training went, written anew in one step at every log."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .training_loss import METRIC, with_list
from .vocabulary import write_atomically

_SCHEMA = 1
PARTS = ("answers", "features", "training", "evaluation", "calibration")


class TrainingReport:
    """What is known of a training so far.

    Attributes:
        data: JSON-able: `settings`, `machine`, `fingerprints`, `data`, `seconds` by part,
            `longest_evaluation` in seconds, `tokens_seen`, `curve` and `evaluations` (each point
            with step, epoch, tokens and seconds so far), `best` (step and acceptance length of
            the best evaluation so far; once `finished`, of the weights that were taken, step 0
            being those that the training started from), `masked_share`, `finished`; and where
            there were such, `start` (the draft that was trained on: its Hub `id` or `name`, and a
            `hash` of its content), `calibration` and `answers` (prompts that were answered, of how
            many, and whether the time was over before the last). Saved with a draft: `weights`, a
            sha256 of its file of weights.

    Args:
        path: where `save` writes; None for nowhere.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._held_back = False
        self._running: tuple[str, float] | None = None
        self.data: dict[str, Any] = {
            "schema": _SCHEMA,
            "settings": {},
            "machine": {},
            "fingerprints": {},
            "data": {},
            "seconds": dict.fromkeys(PARTS, 0.0),
            "longest_evaluation": 0.0,
            "tokens_seen": 0,
            "masked_share": None,
            "best": None,
            "curve": [],
            "evaluations": [],
            "finished": False,
        }

    @property
    def seconds(self) -> float:
        """Spent so far, all parts."""
        return float(sum(self.data["seconds"].values()))

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the time that the block takes to a part."""
        self._running = part, time.monotonic()
        try:
            yield
        finally:
            self._count()
            self._running = None

    def add(self, kind: str, state: Any, found: dict[str, Any]) -> None:
        """Add a point to `curve` or `evaluations`; one of the same step is replaced.

        Args:
            kind: which of the two.
            state: Transformers' state of the trainer.
            found: figures of the point.
        """
        self._count()
        point = {
            "step": state.global_step,
            "epoch": state.epoch,
            "tokens": self.data["tokens_seen"],
            "seconds": round(self.seconds, 3),
            **with_list(found),
        }
        points = [old for old in self.data[kind] if old["step"] < point["step"]]
        self.data[kind] = [*points, point]
        best = self.data["best"]
        if kind == "evaluations" and (best is None or found[METRIC] > best[METRIC]):
            self.data["best"] = {"step": point["step"], METRIC: found[METRIC]}

    def finish(self, step: int) -> None:
        """Note that the training is over, and save.

        Args:
            step: whose weights were taken; `best` becomes their evaluation, None without one.
        """
        own = [point for point in self.data["evaluations"] if point["step"] == step]
        self.data["best"] = {"step": step, METRIC: own[-1][METRIC]} if own else None
        self.data["finished"] = True
        self.save()

    def hold_back(self) -> None:
        """Leave the report of an earlier training as it is until this one begins, see `begin`.

        A trainer that only evaluates has nothing to say that would be worth it.
        """
        earlier = self._earlier()
        self._held_back = earlier is not None and any(
            earlier[name] for name in ("finished", "curve", "evaluations")
        )

    def begin(self) -> None:
        """Take the file for this training's own from now on."""
        self._held_back = False

    def _earlier(self) -> dict[str, Any] | None:
        """Return what the file holds, None if it is no report."""
        if self.path is None or not self.path.is_file():
            return None
        try:
            return TrainingReport.load(self.path).data
        except ValueError:
            return None

    def count_interrupted(self) -> None:
        """Count what answers and features took in a call that was interrupted before."""
        earlier = self._earlier()
        if earlier is None or earlier["finished"]:
            return
        if earlier["fingerprints"] == self.data["fingerprints"]:
            for part in ("answers", "features"):
                self.data["seconds"][part] += earlier["seconds"].get(part, 0.0)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold so that the report can go on from there."""
        names = (
            "seconds",
            "longest_evaluation",
            "tokens_seen",
            "best",
            "curve",
            "evaluations",
        )
        return {name: self.data[name] for name in names}

    def go_on(self, state: dict[str, Any]) -> None:
        """Take up a checkpoint's state; what was answered and computed before stays counted."""
        seconds = self.data["seconds"]
        self.data.update(json.loads(json.dumps(state)))
        for part in ("answers", "features"):
            spent = self.data["seconds"].get(part, 0.0)
            self.data["seconds"][part] = max(spent, seconds[part])

    def save(self) -> None:
        """Write the file."""
        self._count()
        if self.path is None or self._held_back:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_plain(self.data), indent=2, allow_nan=False) + "\n"
        write_atomically(self.path, text.encode())

    def _count(self) -> None:
        """Add the time of the part that is running."""
        if self._running is not None:
            part, since = self._running
            now = time.monotonic()
            self.data["seconds"][part] += now - since
            self._running = part, now

    @classmethod
    def load(cls, path: Path) -> TrainingReport:
        """Read a file that `save` wrote.

        Raises:
            ValueError: if it is no such file.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is no JSON: {error}") from error
        if not isinstance(data, dict) or data.get("schema") != _SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"{path} is no training report of schema {_SCHEMA}, got {found!r}")
        report = cls(path)
        report.data.update(data)
        return report


def _plain(value: Any) -> Any:
    """Return JSON values; a loss that is no number any more becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
