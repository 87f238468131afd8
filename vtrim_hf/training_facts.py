"""What a published draft tells of its training: figures and fingerprints, no names of files."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .plain_facts import hub_id

TRAINING_JSON = "training_report.json"
"""Where `DraftTrainer` and `vtrim train` leave the report, in the draft's folder."""

WEIGHTS = "model.safetensors"
"""The weights that a report beside them is of."""

_SCHEMA = 1
_POINTS = 40
_SETTINGS = (
    "unroll_steps",
    "unroll_warmup",
    "step_decay",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_length",
    "max_minutes",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "max_grad_norm",
    "bf16",
    "feature_dtype",
    "seed",
)
_DATA = ("conversations", "sequences", "tokens", "assistant_tokens", "fingerprint")
_CALIBRATION = ("prompts", "proposals", "accepted", "log_loss_before", "log_loss_after")
_FINGERPRINTS = ("target", "tokenizer", "layers")
_START = ("id", "hash")  # a folder's name is somebody's own


def training_facts(report: Any, fingerprint: str) -> dict[str, Any]:
    """Return what is told of a training; unknown facts are None.

    Args:
        report: a `TrainingReport`, what it holds, its file, or the folder that the file lies in.
        fingerprint: of the vocabulary of the draft that it must be about.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no training report, or about a draft of another vocabulary.
    """
    held = _held(report)
    of = _mapping(held, "fingerprints")
    if of.get("vocabulary") != fingerprint:
        raise ValueError(
            f"the training report is of the vocabulary {str(of.get('vocabulary'))[:12]}, the "
            f"draft has {fingerprint[:12]}: give the report of the training that made this draft"
        )
    settings, data = _mapping(held, "settings"), _mapping(held, "data")
    best, seconds = _mapping(held, "best"), _mapping(held, "seconds")
    curve, evaluations = _points(held, "curve"), _points(held, "evaluations")
    kept = [point for point in evaluations if point.get("step") == best.get("step")]
    at_best: Mapping[str, Any] = kept[-1] if kept else {}
    last: Mapping[str, Any] = curve[-1] if curve else {}
    spent = {part: _minutes(value) for part, value in seconds.items()}
    spent = {part: value for part, value in spent.items() if value}
    return {
        "finished": held.get("finished"),
        "steps": last.get("step"),
        "epochs": last.get("epoch"),
        "tokens": held.get("tokens_seen"),
        "minutes": round(math.fsum(spent.values()), 2) if spent else None,
        "minutes_by_part": spent or None,
        "settings": {name: settings.get(name) for name in _SETTINGS},
        "start": _only(held.get("start"), _START),
        "data": {
            name: _data(data.get(part))
            for name, part in (("train", "train"), ("heldout", "evaluation"))
        },
        "datasets": _datasets(held.get("datasets")),
        "acceptance_length": best.get("acceptance_length"),
        "acceptance": at_best.get("acceptance"),
        "best_step": best.get("step"),
        "masked_share": held.get("masked_share"),
        "heldout_masked_share": at_best.get("masked_share"),
        "curve": _curve(evaluations, best.get("step")) or None,
        "calibration": _only(held.get("calibration"), _CALIBRATION),
        "fingerprints": _only(of, _FINGERPRINTS),
    }


def training_beside(draft: Path | None, fingerprint: str) -> dict[str, Any] | None:
    """Return the report in a draft's folder, None if there is none of this draft.

    A draft may have got another vocabulary since, or another draft may have been saved in its
    place: then the report is of its forerunner.

    Raises:
        ValueError: if the file is no training report.
    """
    if draft is None or not (draft / TRAINING_JSON).is_file():
        return None
    held = _held(draft)
    found = _mapping(held, "fingerprints").get("vocabulary")
    return dict(held) if found == fingerprint and is_of_weights(held, draft) else None


def is_of_weights(report: Mapping[str, Any], draft: Path) -> bool:
    """Tell whether a report may be of the weights in a draft's folder.

    A report of an earlier release, or one that `DraftTrainer` wrote, names no weights: it may.

    Args:
        report: what a `TrainingReport` holds.
        draft: the folder.
    """
    named = report.get("weights")
    return named is None or ((draft / WEIGHTS).is_file() and named == weights_hash(draft))


def weights_hash(draft: Path) -> str:
    """Return the sha256 (hex) of a draft's weights, whatever else lies beside them.

    Args:
        draft: the folder that it was saved in.

    Raises:
        FileNotFoundError: if it has no file of weights.
    """
    place = draft / WEIGHTS
    if not place.is_file():
        raise FileNotFoundError(f"{place} is missing: a draft that was saved or trained has it")
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _held(report: Any) -> Mapping[str, Any]:
    """Return what a report holds, however it is given."""
    if isinstance(report, str | Path):
        path = Path(report)
        path = path / TRAINING_JSON if path.is_dir() else path
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing: a draft that `vtrim train` or DraftTrainer trained has it"
            )
        try:
            held: Any = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no JSON: {error}") from error
    else:
        held = getattr(report, "data", report)
    if not isinstance(held, Mapping) or held.get("schema") != _SCHEMA:
        found = held.get("schema") if isinstance(held, Mapping) else type(held).__name__
        raise ValueError(
            f"a training report must have schema {_SCHEMA}, got {found!r:.80}: give a "
            f"TrainingReport, what it holds, or the {TRAINING_JSON} that a training wrote"
        )
    return held


def _mapping(held: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = held.get(name)
    return found if isinstance(found, Mapping) else {}


def _points(held: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = held.get(name)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _minutes(seconds: Any) -> float:
    known = isinstance(seconds, int | float) and math.isfinite(seconds)
    return round(seconds / 60, 2) if known else 0.0


def _data(facts: Any) -> dict[str, Any] | None:
    return _only(facts, _DATA)


def _only(facts: Any, names: tuple[str, ...]) -> dict[str, Any] | None:
    if not isinstance(facts, Mapping):
        return None
    known = {name: facts[name] for name in names if facts.get(name) is not None}
    return known or None


def _datasets(names: Any) -> list[str] | None:
    """Return the Hub ids among the names of what was trained on."""
    held = names if isinstance(names, list | tuple) else ()
    found = [hub_id(name, "data set") for name in held if isinstance(name, str)]
    return sorted({name for name in found if name}) or None


def _curve(points: list[Mapping[str, Any]], best: Any) -> list[dict[str, Any]]:
    """Return the evaluations, of many as many as are told, the best and the last among them."""
    known = [
        {
            "step": point.get("step"),
            "tokens": point.get("tokens"),
            "minutes": _minutes(point.get("seconds")),
            "acceptance_length": point["acceptance_length"],
        }
        for point in points
        if isinstance(point.get("acceptance_length"), int | float)
        and math.isfinite(point["acceptance_length"])
    ]
    if len(known) <= _POINTS:
        return known
    wanted = {round(at * (len(known) - 1) / (_POINTS - 1)) for at in range(_POINTS)}
    return [point for at, point in enumerate(known) if at in wanted or point["step"] == best]
