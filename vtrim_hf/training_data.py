"""Chat data as token sequences for training: rendered and masked as counting does, kept small.

Token ids and the mask of the assistant's own are held side by side for all sequences, four bytes
and one a token; features come later and from elsewhere.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .batch_counting import KEPT_SKIPS, SkippedRow, SkippedRows
from .chat_data import ChatSource, open_chat_data
from .chat_messages import MalformedRow
from .chat_rendering import ChatRenderer
from .chat_rows import ANSWER_IDS_COLUMN, RECORD_COLUMN, Conversation, read_row
from .training_split import answered_prompts, by_prompt, held_out
from .vocabulary import tokenizer_fingerprint

FIRST_DRAFTED = 2
"""A draft's first guess is for the third token: its features are of the one before the last."""


@dataclass(frozen=True, eq=False)
class TrainingSequences:
    """Encoded conversations; items are `{"index", "input_ids", "assistant_mask"}`.

    Attributes:
        ids: token ids of all sequences, int32 [tokens].
        mask: whether each is the assistant's, bool [tokens].
        starts: where each sequence starts, and the end, int64 [sequences + 1].
        conversations: hashes of the conversations that they came from.
        prompts: hashes of all that these answer, see `answered_prompts`.
        skipped: malformed rows.
        silent: conversations in which there is nothing to draft.
        cut: sequences that were cut at the longest length.
        template_hash: of the chat template, or None.
    """

    ids: np.ndarray
    mask: np.ndarray
    starts: np.ndarray
    conversations: frozenset[bytes] = frozenset()
    prompts: frozenset[bytes] = frozenset()
    skipped: SkippedRows = field(default_factory=SkippedRows)
    silent: int = 0
    cut: int = 0
    template_hash: str | None = None

    @classmethod
    def from_pairs(
        cls, pairs: Iterable[tuple[np.ndarray, np.ndarray]], **facts: Any
    ) -> TrainingSequences:
        """Put (ids, mask) pairs side by side."""
        pairs = list(pairs)
        lengths = np.array([0, *(ids.size for ids, _ in pairs)], dtype=np.int64)
        none = np.empty(0, dtype=np.int64)
        return cls(
            np.concatenate([none, *(ids for ids, _ in pairs)]).astype(np.int32),
            np.concatenate([none, *(mask for _, mask in pairs)]).astype(bool),
            lengths.cumsum(),
            **facts,
        )

    def __len__(self) -> int:
        return int(self.starts.size - 1)

    def __getitem__(self, index: int) -> dict[str, Any]:
        start, end = self.starts[index], self.starts[index + 1]
        return {
            "index": int(index),
            "input_ids": self.ids[start:end],
            "assistant_mask": self.mask[start:end],
        }

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence, int64 [sequences]."""
        return np.diff(self.starts)

    @property
    def assistant_tokens(self) -> int:
        """Tokens that are the assistant's."""
        return int(self.mask.sum())

    @property
    def fingerprint(self) -> str:
        """The sha256 (hex) of all ids, masks and lengths, which data and template decide."""
        digest = hashlib.sha256(self.starts.astype("<i8").tobytes())
        digest.update(self.ids.astype("<i4").tobytes())
        digest.update(np.packbits(self.mask).tobytes())
        return digest.hexdigest()

    def facts(self) -> dict[str, Any]:
        """Return what a report says of them."""
        return {
            "conversations": len(self.conversations),
            "sequences": len(self),
            "tokens": int(self.ids.size),
            "assistant_tokens": self.assistant_tokens,
            "longest": int(self.lengths.max(initial=0)),
            "skipped_rows": len(self.skipped),
            "silent_conversations": self.silent,
            "cut_sequences": self.cut,
            "fingerprint": self.fingerprint,
        }


def read_sequences(
    dataset: object,
    tokenizer: Any,
    *,
    max_length: int,
    vocab_size: int,
    heldout: float = 0.0,
    chat_template: str | bool | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    split: str | None = None,
    progress: bool = True,
) -> tuple[TrainingSequences, TrainingSequences]:
    """Encode chat data: conversations of any shape that counting reads.

    Rows of a text column, which counting reads as well, are left out: in them there is no prompt.
    Of a row with the target's own ids only the last answer is trained on; one with ids of several
    answers is left out, too, for the ids between them are unknown. Rows that are left out are
    noted as skipped.

    Args:
        dataset: see `open_sources`.
        tokenizer: the target's.
        max_length: tokens of a sequence at most; what comes after them is cut off.
        vocab_size: the target's width; a larger id is an error.
        heldout: share of conversations that is kept apart, by their hashes, as counting does it;
            of few, at least one (and up to 16). All answers to one prompt stay together, in
            whichever turn.
        chat_template: see `ChatRenderer`.
        template_kwargs: see `ChatRenderer`.
        split: of a data set that has several.
        progress: show a bar on a terminal.

    Returns:
        The sequences to train on, and those held out.

    Raises:
        ValueError: if there is nothing to train on, an id lies beyond `vocab_size`, answers are of
            another tokenizer, or the rows are chats and there is no chat template.
    """
    renderer = ChatRenderer(
        tokenizer, chat_template=chat_template, template_kwargs=template_kwargs
    )
    source = open_sources(dataset, split=split)
    reader = _Reader(source, renderer, tokenizer, max_length, vocab_size)
    with _bar(source, progress) as bar:
        for _ in reader.rows():
            bar.update(1)
    if not reader.found:
        first = f"; the first rows: {reader.skipped}" if reader.number else ""
        raise ValueError(
            f"{source.name} holds no assistant turn that a draft could be trained on{first}"
        )
    groups = by_prompt(reader.prompts)
    apart = {one for key in held_out(set(groups), heldout) for one in groups[key]}
    parts = []
    for wanted in (False, True):
        kept = {key: pairs for key, pairs in reader.found.items() if (key in apart) is wanted}
        facts: dict[str, Any] = {
            "template_hash": renderer.template_hash,
            "prompts": frozenset(one for key in kept for one in reader.prompts[key]),
        }
        if not wanted:
            facts.update(skipped=reader.skipped, silent=reader.silent, cut=reader.cut)
        pairs = [pair for of_one in kept.values() for pair in of_one]
        parts.append(TrainingSequences.from_pairs(pairs, conversations=frozenset(kept), **facts))
    if heldout and not len(parts[0]):
        raise ValueError(
            f"{source.name} holds a single conversation, or only such as begin with one prompt, "
            "so that none can be held out to choose the best checkpoint by: give others, too, or "
            "eval_dataset"
        )
    return parts[0], parts[1]


def open_sources(dataset: object, *, split: str | None = None) -> ChatSource:
    """Open what `open_chat_data` does, or a list of paths and Hub ids, one after another.

    Args:
        dataset: one source, or several by name.
        split: of data sets that have several.
    """
    if not (
        isinstance(dataset, Sequence)
        and not isinstance(dataset, str)
        and len(dataset)
        and all(isinstance(one, str | os.PathLike) for one in dataset)
    ):
        return open_chat_data(dataset, split=split)
    sources = [open_chat_data(one, split=split) for one in dataset]
    lengths = [source.length for source in sources]
    return ChatSource(
        ", ".join(source.name for source in sources),
        lambda: itertools.chain.from_iterable(sources),
        length=None if None in lengths else sum(length or 0 for length in lengths),
    )


def _bar(source: ChatSource, progress: bool) -> Any:
    from huggingface_hub.utils.tqdm import tqdm

    return tqdm(  # type: ignore[no-untyped-call]
        total=source.length, desc="reading", unit="row", disable=None if progress else True
    )


class _Reader:
    """Reads rows; keeps the sequences of each conversation, and notes the rows without any."""

    def __init__(
        self,
        source: ChatSource,
        renderer: ChatRenderer,
        tokenizer: Any,
        max_length: int,
        vocab_size: int,
    ) -> None:
        self._source, self._renderer, self._tokenizer = source, renderer, tokenizer
        self._max_length, self._vocab_size = max_length, vocab_size
        self._tokenizer_hash: str | None = None
        self._first: list[SkippedRow] = []
        self.found: dict[bytes, list[tuple[np.ndarray, np.ndarray]]] = {}
        self.prompts: dict[bytes, tuple[bytes, ...]] = {}
        self.number = self.silent = self.cut = 0

    @property
    def skipped(self) -> SkippedRows:
        return SkippedRows(self.number, tuple(self._first))

    def rows(self) -> Iterator[None]:
        for row in self._source:
            if isinstance(row.row, Mapping):
                self._check_tokenizer(row)
                if row.row.get(RECORD_COLUMN) is not None:
                    continue
            try:
                if row.problem is not None:
                    raise MalformedRow(row.problem)
                self._take(read_row(row.row))
            except MalformedRow as error:
                self.number += 1
                if len(self._first) < KEPT_SKIPS:
                    self._first.append(SkippedRow(row.source, row.line, str(error)))
            yield None

    def _take(self, conversation: Conversation) -> None:
        pairs = []
        encoded = self._renderer.encode(conversation) if conversation.has_answer else []
        for sequence in encoded:
            ids, mask = sequence.input_ids, sequence.assistant_mask
            if ids.size and int(ids.max()) >= self._vocab_size:
                raise ValueError(
                    f"token id {int(ids.max())} lies beyond the target's width "
                    f"{self._vocab_size}: use the target's own tokenizer"
                )
            if ids.size > self._max_length:
                self.cut += 1
                ids, mask = ids[: self._max_length], mask[: self._max_length]
            if mask[FIRST_DRAFTED:].any():
                pairs.append((ids.astype(np.int32), mask))
        if not pairs:
            self.silent += 1
            return
        # The same conversation twice is trained on twice, but stays in one part.
        key = conversation.digest()
        self.found.setdefault(key, []).extend(pairs)
        self.prompts[key] = answered_prompts(conversation)

    def _check_tokenizer(self, row: Any) -> None:
        theirs = row.row.get("tokenizer_hash")
        given = row.row.get(ANSWER_IDS_COLUMN) is not None or RECORD_COLUMN in row.row
        if theirs is None or not given:
            return
        if self._tokenizer_hash is None:
            self._tokenizer_hash = tokenizer_fingerprint(self._tokenizer)
        if theirs != self._tokenizer_hash:
            raise ValueError(
                f"{row.source}:{row.line}: the answers were given with another tokenizer "
                f"({str(theirs)[:12]}, here {self._tokenizer_hash[:12]}): train on those of this "
                "target"
            )
