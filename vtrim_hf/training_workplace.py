"""Where a training lies while it runs: which calls go on there, and one at a time.

The folder stands beside the output and is called by a hash of what a training cannot change and
still be the same one. Whether a call asks for the same training is asked three times:

    already there   The output's report has this call's digest as `call` (of all that was asked
                    for, the minutes and what comes after the training included), and names the
                    weights that lie there. Nothing is done.
    resumed         There is a folder of this call's name: a digest of the same without what comes
                    afterwards and, unless the target answers first, the minutes. It goes on from
                    the last whole checkpoint; one of other fingerprints, of weights or data that
                    changed under their names, is refused.
    taken up        The report in the folder is finished, of the fingerprints that were read now
                    and of the same settings, the minutes included. No step is taken.

What is left to the machine (bf16, tokens drafted in a row, the number of processes) is part of all
three: elsewhere a training begins anew, unless it is given as it was. `left_by_others` finds the
folder of such a one.

Time that was spent before counts once, for each of these knows what the others do not:

    `AnsweredData.count_interrupted`    answers, of a report that has no fingerprints yet
    `TrainingReport.count_interrupted`  answers and features, of an unfinished report of the same
                                        fingerprints
    `TrainingReport.go_on`              the rest, of the checkpoint; its answers and features only
                                        where they are more than was counted
    `_take_up` (`training_step`)        the finished report, in place of all that was counted

Steps after the last checkpoint are taken again; what they took before is forgotten with them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .run_lock import LOCK_FILE, RunLock

if TYPE_CHECKING:
    from .training_arguments import DraftTrainingArguments

# How long it takes, where it is kept and what is told of it changes no draft.
_DECIDE_NOTHING = {
    "feature_cache",
    "feature_tokens",
    "regenerate_batch_size",
    "report_to",
    "ddp_timeout",
}
_THE_MACHINE_DECIDES = ("unroll_steps", "acceptance_steps", "bf16", "optim", "world_size")


def deciding_settings(args: DraftTrainingArguments, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings that decide a training's result, those that are defaults included.

    A later release with other defaults must not take its training for that of an earlier one.

    Args:
        args: the settings.
        chosen: those that were given, among them such as this package does not know.
    """
    own = {name: getattr(args, name) for name in type(args).__annotations__}
    found = {**chosen, **own, **args.recorded()}
    return {name: value for name, value in found.items() if name not in _DECIDE_NOTHING}


def defaults_beside(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is decided by defaults, the same on every machine: what is left to it is None.

    Args:
        chosen: settings that were given; None for a default.

    Raises:
        ValueError: if no draft can be trained with them.
    """
    from .training_arguments import DraftTrainingArguments

    given = {name: value for name, value in chosen.items() if value is not None}
    found = deciding_settings(DraftTrainingArguments("unused", **given), given)
    found |= dict.fromkeys(_THE_MACHINE_DECIDES)
    left = {name: value for name, value in found.items() if name not in given}
    plain: dict[str, Any] = json.loads(json.dumps(left, default=str))
    return plain


def digest_of(call: Mapping[str, Any]) -> str:
    """Return the sha256 (hex) of what a call was asked for."""
    return hashlib.sha256(json.dumps(call, sort_keys=True, default=str).encode()).hexdigest()


def workplace_of(output: Path, call: Mapping[str, Any]) -> Path:
    """Return the folder that a call works in.

    With more minutes a training goes on where it is, and its learning rate follows the share of
    the time that is over then. Where the target answers first, the minutes decide what is trained
    on, and another time is another training.

    Args:
        output: where the draft will be saved.
        call: what decides the result, its `settings` as of `deciding_settings`.
    """
    settings = dict(call["settings"])
    minutes = settings.pop("max_minutes")
    settings["timed"] = minutes if settings["regenerate"] else minutes is not None
    digest = digest_of({**call, "settings": settings})
    return output.with_name(f".{output.name}.{digest[:12]}.training")


def tensorboard_folder(output: Path) -> Path:
    """Return where logs for TensorBoard go, a subfolder a training; they stay.

    It is `$TENSORBOARD_LOGGING_DIR`, where that is set.
    """
    own = os.environ.get("TENSORBOARD_LOGGING_DIR")
    return Path(own).expanduser() if own else output.with_name(f"{output.name}.tensorboard")


@contextmanager
def at_work(
    args: DraftTrainingArguments, workplace: Path, *, resume: bool, logs: Iterable[Path] = ()
) -> Iterator[None]:
    """Hold a workplace for this call; of several processes the main one does.

    Args:
        args: of the training.
        workplace: its folder.
        resume: keep what is there; otherwise it goes before any process looks at it.
        logs: folders that go with it.

    Raises:
        ValueError: if another call is at work there.
    """
    with ExitStack() as held:
        with args.main_process_first(local=False, desc="workplace"):
            if args.process_index == 0:
                held.enter_context(RunLock(workplace, "--output"))
                held.callback(_remove_empty, workplace)
                if not resume:
                    _empty(workplace)
                    for folder in logs:
                        shutil.rmtree(folder, ignore_errors=True)
        yield


def remove_workplace(workplace: Path) -> None:
    """Remove a workplace, unless another call is at work there."""
    if workplace.is_dir():
        with suppress(ValueError), RunLock(workplace):
            shutil.rmtree(workplace, ignore_errors=True)


def left_by_others(output: Path, workplace: Path) -> dict[Path, int]:
    """Return what interrupted trainings of other settings left beside an output, with its bytes.

    Somebody's hours are in it, and with the same settings they go on, so it is not removed.

    Args:
        output: where a draft was saved.
        workplace: of the call that made it.
    """
    ours = re.compile(rf"\.{re.escape(output.name)}\.[0-9a-f]{{12}}\.training")
    found = {}
    for place in sorted(output.absolute().parent.glob(".*.training")):
        folder = output.with_name(place.name)
        if ours.fullmatch(folder.name) and folder.name != workplace.name and _is_left(folder):
            files = [path for path in folder.rglob("*") if path.is_file()]
            found[folder] = sum(path.stat().st_size for path in files)
    return found


def _is_left(workplace: Path) -> bool:
    """Tell whether no call is at work in a workplace."""
    if not workplace.is_dir():
        return False
    try:
        with RunLock(workplace):
            return True
    except ValueError:
        return False


def finished_draft(output: Path, digest: str) -> dict[str, Any] | None:
    """Return the report of a draft that the same call has trained and saved, if it is there."""
    from .training_facts import WEIGHTS, is_of_weights

    report = finished_report(output)
    if report is None or report.get("call") != digest or not (output / WEIGHTS).is_file():
        return None
    return report if is_of_weights(report, output) else None


def finished_report(folder: Path) -> dict[str, Any] | None:
    """Return the report of a training in a folder; None unless it came to its end."""
    from .training_facts import TRAINING_JSON
    from .training_report import TrainingReport

    place = folder / TRAINING_JSON
    if not place.is_file():
        return None
    try:
        report = TrainingReport.load(place).data
    except ValueError:
        return None
    return report if report["finished"] else None


def _empty(workplace: Path) -> None:
    """Remove all but the lock, which a second call would otherwise make anew beside ours."""
    for path in workplace.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK_FILE:
            path.unlink()


def _remove_empty(workplace: Path) -> None:
    """Remove a workplace in which nothing but the lock is left, as after a mistake in a call."""
    if workplace.is_dir() and [path.name for path in workplace.iterdir()] == [LOCK_FILE]:
        shutil.rmtree(workplace, ignore_errors=True)
