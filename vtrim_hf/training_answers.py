"""The target's answers to train on: kept for later trainings, and the same after a kill.

All answers of one target, template and greatest length to one source of data lie in one file: a
later training, of another vocabulary or of more prompts from there, finds them. Trainings on other
data add to files of their own, and two at once never to one. What a training is trained on is
copied out of its file into its own folder, so that it stays what it was.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .answers_file import FORMAT
from .chat_data import ChatSource, open_chat_data
from .chat_rendering import ChatRenderer
from .chat_rows import RECORD_COLUMN
from .embedded_models import cache_folder
from .feature_cache import features_folder
from .run_lock import RunLock
from .target_answers import answer_with_target, answering_settings
from .training_arguments import DraftTrainingArguments
from .training_report import TrainingReport
from .vocabulary import tokenizer_fingerprint, write_atomically

logger = logging.getLogger(__name__)

ANSWERS = "answers"
ANSWERING_SHARE = 0.5
"""Of a timed training's minutes, the most that answering may take."""

_HELD_OUT_SHARE = 0.2  # of that, the most for data that only chooses the best checkpoint
_SAVED_EVERY = 10.0  # seconds
_COPIED = "answers of a training"
_ANOTHER_FOLDER = "--feature-cache (feature_cache): two never add to one file of answers"


def answers_folder(feature_cache: str | None) -> Path:
    """Return the folder that answers are kept in.

    Args:
        feature_cache: the training's; in a folder that is named there they lie, too, and otherwise
            in `vtrim_hf/answers` of the user's cache.
    """
    if feature_cache in (None, "auto"):
        return cache_folder() / ANSWERS
    return features_folder(str(feature_cache)) / ANSWERS


class AnsweredData:
    """Lets the target answer the data of one training.

    Args:
        target: the target.
        fingerprint: tells targets apart.
        tokenizer: the target's.
        args: the settings.
        rendering: `chat_template` and `template_kwargs`, see `ChatRenderer`.
        split: of a data set that has several.
        report: takes the time, how many prompts were answered, and is saved meanwhile.
    """

    def __init__(
        self,
        target: Any,
        fingerprint: str,
        tokenizer: Any,
        args: DraftTrainingArguments,
        rendering: Mapping[str, Any],
        split: str | None,
        report: TrainingReport,
    ) -> None:
        self._target, self._tokenizer, self._args = target, tokenizer, args
        self._rendering, self._split, self._report = dict(rendering), split, report
        self._place = Path(args.output_dir or ".")
        self._opened: dict[int, tuple[ChatSource, str | None]] = {}
        # All that `answer_with_target` lets decide an answer.
        self._settings = _digest(
            FORMAT,
            fingerprint,
            tokenizer_fingerprint(tokenizer),
            answering_settings(
                target,
                tokenizer,
                ChatRenderer(tokenizer, **self._rendering),
                args.regenerate_tokens,
            ),
        )
        self._folder = answers_folder(args.feature_cache)

    def file(self, data: object) -> Path:
        """Return the file that answers to `data` are kept in, in a folder of its own.

        A file or folder is known by its place: when prompts are added there, those that are
        answered stay so. Rows that have no name share one file.
        """
        source, _ = self._open(data)
        place = source.name if source.identity is None else source.identity()
        if isinstance(data, str | os.PathLike):
            path = Path(data).expanduser()
            place = str(path.resolve() if path.exists() else data)
        return self._folder / _digest(self._settings, place, self._split)[:16] / f"{ANSWERS}.jsonl"

    def count_interrupted(self, *data: object) -> None:
        """Count what answering took in a call that was killed before it was done.

        Args:
            *data: all that is to be answered; None for nothing.
        """
        found = [self._open(one)[1] for one in data if one is not None]
        wanted = None if None in found else _digest(*found)
        self._report.data["answering"] = wanted
        path = self._report.path
        if wanted is None or path is None or not path.is_file():
            return
        try:
            earlier = TrainingReport.load(path).data
        except ValueError:
            return
        # With fingerprints it is of a call whose data was read: `TrainingReport` counts that one.
        if earlier.get("answering") == wanted and not earlier["fingerprints"]:
            self._report.data["seconds"]["answers"] += earlier["seconds"][ANSWERS]

    def rows(self, data: object, part: str, name: str) -> Path:
        """Return a file of the answers to the prompts of `data`, as chat data.

        A training whose time allows no more prompts is content with those that are answered, and
        after a kill it is trained on the same ones.

        Args:
            data: see `answer_with_target`.
            part: what it is for, "train" or "evaluation".
            name: of the file, in the training's folder.

        Raises:
            ValueError: if another run adds to the same file of answers now; or as
                `answer_with_target` documents.
        """
        place, (_, key) = self._place / name, self._open(data)
        if self._args.local_process_index > 0:  # the main process has made it
            return place
        known = _head(place)
        if known is None or key is None or known["of"] != key:
            file = self.file(data)
            # Refused before anything is written: a call that may not answer leaves nothing.
            with (
                RunLock(file.parent, _ANOTHER_FOLDER),
                self._report.timed(ANSWERS),
                _saved_meanwhile(self._report),
            ):
                known = self._answered(data, file, part, place, key)
        self._report.data.setdefault(ANSWERS, {})[part] = known["facts"]
        return place

    def _answered(
        self, data: object, file: Path, part: str, place: Path, key: str | None
    ) -> dict[str, Any]:
        args, wishes = self._args, dict(self._rendering)
        if args.max_minutes is not None:
            share = ANSWERING_SHARE * (_HELD_OUT_SHARE if part == "evaluation" else 1.0)
            spent = self._report.data["seconds"][ANSWERS]
            wishes["seconds"] = max(0.0, 60.0 * args.max_minutes * share - spent)
        found = answer_with_target(
            self._target,
            self._tokenizer,
            data,
            file,
            batch_size=args.regenerate_batch_size,
            max_new_tokens=args.regenerate_tokens,
            limit=args.regenerate_limit,
            split=self._split,
            progress=not args.disable_tqdm,
            **wishes,
        )
        rows = list(found)
        there = self._length(data) if found.stopped else len(rows)
        facts = {"answered": len(rows), "prompts": there, "stopped": found.stopped}
        if found.stopped:
            logger.warning(
                "%d of %s prompts are answered: answering takes at most %.0f %% of a timed "
                "training. More minutes answer more of them, a limit (--limit, regenerate_limit) "
                "leaves more of the time for training",
                len(rows),
                "all" if there is None else there,
                100 * ANSWERING_SHARE,
            )
        known: dict[str, Any] = {"of": key, "facts": facts}
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        lines.insert(0, json.dumps({RECORD_COLUMN: _COPIED, **known}))
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, ("\n".join(lines) + "\n").encode())
        return known

    def _length(self, data: object) -> int | None:
        """Return how many rows are to be answered; None if they may be read only once."""
        source, key = self._open(data)
        number = source.length
        if number is None and key is not None:
            number = sum(1 for _ in source)
        return min(
            (n for n in (number, self._args.regenerate_limit) if n is not None), default=None
        )

    def _open(self, data: object) -> tuple[ChatSource, str | None]:
        """Return data, and what decides which answers it has; None if that cannot be known."""
        if id(data) not in self._opened:
            source, key = open_chat_data(data, split=self._split), None
            if source.identity is not None:
                limit = self._args.regenerate_limit
                key = _digest(self._settings, source.identity(), self._split, limit)
            self._opened[id(data)] = source, key
        return self._opened[id(data)]


def _digest(*facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=repr).encode()).hexdigest()


def _head(place: Path) -> dict[str, Any] | None:
    """Return the first line of a training's own file of answers; None if there is none."""
    if not place.is_file():
        return None
    with place.open(encoding="utf-8") as file:
        try:
            known = json.loads(file.readline())
        except ValueError:
            return None
    is_ours = isinstance(known, dict) and known.get(RECORD_COLUMN) == _COPIED
    return known if is_ours else None


@contextmanager
def _saved_meanwhile(report: TrainingReport) -> Iterator[None]:
    """Save a report every few seconds: what a killed call has spent is spent."""
    done = threading.Event()

    def save() -> None:
        while not done.wait(_SAVED_EVERY):
            report.save()

    saving = threading.Thread(target=save, daemon=True)
    report.save()
    saving.start()
    try:
        yield
    finally:
        done.set()
        saving.join()
        report.save()
