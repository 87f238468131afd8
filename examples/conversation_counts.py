"""What the assistant says in each conversation by itself, counted once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench_results import file_hash
from vocabulary_runs import batches, kept_arrays
from vocabulary_targets import Target

from vtrim_hf.batch_counting import BatchCounter, CountRules
from vtrim_hf.chat_data import open_chat_data

ROWS_AT_ONCE = 512


@dataclass(frozen=True, eq=False)
class Conversations:
    """What the assistant says in each conversation, in sparse form.

    Attributes:
        starts: int64 [n + 1]: conversation i has the entries from starts[i] to starts[i + 1].
        ids: int32 [entries], token ids, each once a conversation.
        counts: int32 [entries], at least 1.
        heldout: bool [n].
    """

    starts: np.ndarray
    ids: np.ndarray
    counts: np.ndarray
    heldout: np.ndarray

    @classmethod
    def together(cls, parts: Sequence[Conversations]) -> Conversations:
        """Put conversations one behind the other."""
        lengths = np.concatenate([np.diff(part.starts) for part in parts])
        return cls(
            np.concatenate([[0], np.cumsum(lengths)]),
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.heldout for part in parts]),
        )

    def summed(self, chosen: np.ndarray, vocab_size: int) -> np.ndarray:
        """Sum the counts of the chosen conversations (bool [n]): int64 [V]."""
        entries = np.repeat(chosen, np.diff(self.starts))
        sums = np.bincount(self.ids[entries], self.counts[entries], minlength=vocab_size)
        return sums.astype(np.int64)


def read_conversations(path: Path, target: Target, heldout: float) -> Conversations:
    """Count each conversation of a file by itself; kept counts are found again."""
    facts = [
        file_hash(path),
        heldout,
        target.facts["tokenizer_hash"],
        target.facts["template_hash"],
        target.vocab_size,
    ]
    return Conversations(
        **kept_arrays(
            "by-conversation", facts, lambda: vars(counted_one_by_one(path, target, heldout))
        )
    )


def counted_one_by_one(path: Path, target: Target, heldout: float) -> Conversations:
    """Count each conversation of a file by itself, exactly as the package counts them together."""
    rules = CountRules(vocab_size=target.vocab_size, heldout=heldout)
    counter = BatchCounter(target.tokenizer, rules)
    piece_ids = counter.renderer.tokens.piece_ids
    lengths: list[int] = []
    held: list[bool] = []
    ids: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    with counter.renderer.tokens.untruncated():
        for rows in batches(iter(open_chat_data(str(path))), ROWS_AT_ONCE):
            prepared = [counter.prepare([row]) for row in rows]
            prepared = [one for one in prepared if one.batch.conversations.any()]
            pieces = [piece for one in prepared for piece in one.pieces]
            encoded = iter(counter.renderer.tokens.encode_pieces(pieces))
            for one in prepared:
                said = list(one.ids)
                for piece in one.pieces:
                    said += piece_ids(piece, next(encoded))
                unique, number = np.unique(np.asarray(said, dtype=np.int32), return_counts=True)
                ids.append(unique)
                counts.append(number.astype(np.int32))
                lengths.append(unique.size)
                held.append(bool(one.batch.conversations[rules.blocks :].any()))
    return Conversations(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([np.empty(0, dtype=np.int32), *ids]),
        np.concatenate([np.empty(0, dtype=np.int32), *counts]),
        np.asarray(held, dtype=bool),
    )
