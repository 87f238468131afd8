"""Counting a batch of rows: which conversations are in it, and what their assistants say.

What a conversation adds to the counts depends on the conversation alone: its part and block come
from its hash. Sums do not depend on their order, so neither batch size nor the number of processes
changes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .chat_data import SourceRow
from .chat_messages import MalformedRow
from .chat_rendering import AssistantSpans, ChatRenderer
from .chat_rows import ANSWER_IDS_COLUMN, RECORD_COLUMN, Conversation, UnknownShape, read_row
from .span_tokens import Piece
from .vocabulary import tokenizer_fingerprint

KEPT_SKIPS = 20


@dataclass(frozen=True)
class SkippedRow:
    """A row that could not be counted: where it stands, and why."""

    source: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.reason}"


@dataclass(frozen=True)
class SkippedRows:
    """Malformed rows: how many there were, and the first of them.

    Attributes:
        number: all of them; also `len()`.
        first: at most 20, in the order of the data; also iteration.
    """

    number: int = 0
    first: tuple[SkippedRow, ...] = ()

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[SkippedRow]:
        return iter(self.first)

    def __getitem__(self, index: int) -> SkippedRow:
        return self.first[index]

    @classmethod
    def read(cls, number: int, rows: Iterable[Any], place: object) -> SkippedRows:
        """Check what a file of counts says about skipped rows."""
        first = []
        for row in rows:
            if not isinstance(row, list) or [type(x) for x in row] != [str, int, str]:
                raise ValueError(
                    f"{place}: 'skipped' must hold [source, line, reason], got {row!r}"
                )
            first.append(SkippedRow(*row))
        if number < len(first):
            raise ValueError(f"{place}: 'skipped_number' is {number}, but {len(first)} are listed")
        return cls(number, tuple(first))

    def __str__(self) -> str:
        shown = "\n".join(map(str, self.first))
        return f"{self.number} rows skipped" + (f"; the first are\n{shown}" if shown else "")


@dataclass(frozen=True)
class CountRules:
    """Everything that decides what a row adds to the counts.

    Attributes:
        vocab_size: V; a larger id is an error.
        heldout: share of conversations that goes into the held-out part.
        blocks: blocks of each part.
        text_column: see `read_row`.
        strict: whether the first malformed row is an error.
        chat_template: see `ChatRenderer`.
        template_kwargs: see `ChatRenderer`.
    """

    vocab_size: int
    heldout: float = 0.2
    blocks: int = 128
    text_column: str | None = None
    strict: bool = False
    chat_template: str | bool | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def place(self, digest: bytes) -> int:
        """Give a conversation's block, counted over both parts, from its hash."""
        heldout = int.from_bytes(digest[:8], "big") < self.heldout * 2.0**64
        return int(heldout) * self.blocks + int.from_bytes(digest[8:16], "big") % self.blocks


@dataclass(eq=False)
class BatchCounts:
    """What a batch of rows adds."""

    keys: np.ndarray
    counts: np.ndarray
    conversations: np.ndarray
    shapes: Counter[str]
    columns: set[str]
    skipped: list[SkippedRow]
    skipped_number: int = 0
    rows: int = 0
    unknown: int = 0
    silent: int = 0
    digest_sum: int = 0


@dataclass(eq=False)
class PreparedBatch:
    """A batch that is rendered and not yet tokenised; ids of answers are in it as they stand."""

    batch: BatchCounts
    pieces: list[Piece] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    id_places: list[int] = field(default_factory=list)


class BatchCounter:
    """Counts batches of rows with one tokenizer.

    Args:
        tokenizer: the target's.
        rules: what decides.
    """

    def __init__(self, tokenizer: Any, rules: CountRules) -> None:
        self.rules = rules
        self._tokenizer = tokenizer
        self._tokenizer_hash: str | None = None
        self.renderer = ChatRenderer(
            tokenizer, chat_template=rules.chat_template, template_kwargs=rules.template_kwargs
        )

    def count(self, rows: Iterable[SourceRow]) -> BatchCounts:
        """Count a batch: `prepare`, `tokenise` and `finish` in one.

        Raises:
            ValueError: for the first malformed row if the rules are strict, and for what is wrong
                with the set-up rather than with a row (no chat template, ids beyond the width,
                answers of another tokenizer).
        """
        prepared = self.prepare(rows)
        return self.finish(prepared, self.tokenise(prepared))

    def prepare(self, rows: Iterable[SourceRow]) -> PreparedBatch:
        """Read and render a batch; raises as `count` does."""
        none = np.empty(0, dtype=np.int64)
        places = np.zeros(2 * self.rules.blocks, dtype=np.int64)
        batch = BatchCounts(none, none, places, Counter(), set(), [])
        prepared = PreparedBatch(batch)
        for row in rows:
            counted = self._read(row, batch)
            if counted is None:
                continue
            conversation, rendered, digest = counted
            place = self.rules.place(digest)
            if conversation.answer_ids is not None:
                for turn in conversation.answer_ids:
                    prepared.ids += turn
                    prepared.id_places += [place] * len(turn)
            for part in rendered:
                pieces = self.renderer.tokens.pieces(part.text, part.spans)
                prepared.pieces += pieces
                prepared.places += [place] * len(pieces)
            batch.conversations[place] += 1
            batch.shapes[conversation.shape] += 1
            batch.digest_sum += int.from_bytes(digest, "big")
        return prepared

    def tokenise(self, prepared: PreparedBatch) -> list[Any]:
        """Tokenise what `prepare` has cut out; meanwhile another thread may prepare the next."""
        return self.renderer.tokens.encode_pieces(prepared.pieces)

    def finish(self, prepared: PreparedBatch, encodings: list[Any]) -> BatchCounts:
        """Sum the ids up; raises as `count` does."""
        piece_ids = self.renderer.tokens.piece_ids
        flat, lengths = prepared.ids, []
        for piece, encoding in zip(prepared.pieces, encodings, strict=True):
            ids = piece_ids(piece, encoding)
            flat += ids
            lengths.append(len(ids))
        places = np.concatenate(
            [
                np.asarray(prepared.id_places, dtype=np.int64),
                np.repeat(np.asarray(prepared.places, dtype=np.int64), lengths),
            ]
        )
        array = np.asarray(flat, dtype=np.int64)
        width = self.rules.vocab_size
        if array.size and int(array.max()) >= width:
            raise ValueError(
                f"token id {int(array.max())} lies beyond the width {width}: pass vocab_size= the "
                "target's own (target.config.get_text_config().vocab_size), and its own tokenizer"
            )
        batch = prepared.batch
        batch.keys, batch.counts = np.unique(places * width + array, return_counts=True)
        return batch

    def _read(
        self, row: SourceRow, batch: BatchCounts
    ) -> tuple[Conversation, tuple[AssistantSpans, ...], bytes] | None:
        if isinstance(row.row, Mapping):
            is_record = row.row.get(RECORD_COLUMN) is not None
            if is_record or row.row.get(ANSWER_IDS_COLUMN) is not None:
                self._check_tokenizer(row)
            if is_record:
                return None
            if not row.row.keys() <= batch.columns:
                batch.columns.update(map(str, row.row))
        batch.rows += 1
        try:
            if row.problem is not None:
                raise MalformedRow(row.problem)
            conversation = read_row(row.row, text_column=self.rules.text_column)
            digest = conversation.digest()
            if not conversation.has_answer:
                batch.silent += 1
                return None
            rendered = (
                () if conversation.answer_ids is not None else self.renderer.render(conversation)
            )
        except MalformedRow as error:
            skipped = SkippedRow(row.source, row.line, str(error))
            if self.rules.strict:
                raise ValueError(f"{skipped} (strict: the first malformed row stops)") from error
            batch.unknown += isinstance(error, UnknownShape)
            batch.skipped_number += 1
            if len(batch.skipped) < KEPT_SKIPS:
                batch.skipped.append(skipped)
            return None
        return conversation, rendered, digest

    def _check_tokenizer(self, row: SourceRow) -> None:
        """Refuse ids that another tokenizer made."""
        theirs = row.row.get("tokenizer_hash")
        if theirs is None:
            return
        if self._tokenizer_hash is None:
            self._tokenizer_hash = tokenizer_fingerprint(self._tokenizer)
        if theirs != self._tokenizer_hash:
            raise ValueError(
                f"{row.source}:{row.line}: the answers were given with another tokenizer "
                f"({str(theirs)[:12]}, here {self._tokenizer_hash[:12]}): count them with their "
                "target's"
            )
