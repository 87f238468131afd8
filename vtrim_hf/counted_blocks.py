"""Counts of one domain in hashed blocks: what a bootstrap needs, in memory that the data cannot
exceed.

Every conversation falls, by its hash, into the search or the held-out part and into one of a fixed
number of blocks of that part. A count has the key (part * blocks + block) * V + token id; only
keys that occur are kept, in ascending order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PARTS = ("search", "heldout")
PART_NAMES = (*PARTS, "all")
_PENDING_KEYS = (
    1 << 20
)  # keys that wait to be merged: bounds both the memory and the number of sorts


@dataclass(frozen=True, eq=False)
class DomainCounts:
    """The counts of one domain.

    Attributes:
        vocab_size: V.
        blocks: blocks of each part.
        keys: int64 [n], ascending and unique.
        counts: int64 [n], at least 1 each.
        conversations: int64 [2 * blocks], how many conversations fell into each block.
        hashed: false if the counts came as one array, so that what lies in which block is not
            known.
    """

    vocab_size: int
    blocks: int
    keys: np.ndarray
    counts: np.ndarray
    conversations: np.ndarray
    hashed: bool = True

    @classmethod
    def from_arrays(cls, search: np.ndarray, heldout: np.ndarray | None) -> DomainCounts:
        """Take counts that somebody else has made, without blocks.

        Args:
            search: int64 [V].
            heldout: int64 [V], or None.
        """
        both = search if heldout is None else np.concatenate([search, heldout])
        keys = np.flatnonzero(both)
        none = np.zeros(2, dtype=np.int64)
        return cls(search.size, 1, keys.astype(np.int64), both[keys], none, hashed=False)

    def array(self, part: str) -> np.ndarray:
        """Sum over the blocks: int64 [V]."""
        inside = self._inside(part)
        summed = np.zeros(self.vocab_size, dtype=np.int64)
        np.add.at(summed, self.keys[inside] % self.vocab_size, self.counts[inside])
        return summed

    def conversation_number(self, part: str) -> int:
        """How many conversations a part holds."""
        search, heldout = self.conversations.reshape(2, -1).sum(axis=1)
        return int({"search": search, "heldout": heldout, "all": search + heldout}[part])

    def resampled(
        self, kept: np.ndarray, part: str, resamples: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw the part's blocks anew, with replacement.

        Args:
            kept: bool [V], which ids are covered.
            part: "search", "heldout" or "all".
            resamples: drawings.
            rng: gives the drawings.

        Returns:
            float64 [resamples] covered and all tokens of each drawing. Without known blocks every
            token is drawn by itself.
        """
        inside = self._inside(part)
        counts = self.counts[inside]
        covered = np.where(kept[self.keys[inside] % self.vocab_size], counts, 0)
        if not self.hashed:
            total = int(counts.sum())
            share = covered.sum() / total if total else 0.0
            drawn = rng.binomial(total, share, size=resamples).astype(np.float64)
            return drawn, np.full(resamples, float(total))
        block = self.keys[inside] // self.vocab_size % self.blocks
        block_covered = np.bincount(block, covered, self.blocks)
        block_total = np.bincount(block, counts, self.blocks)
        filled = np.flatnonzero(block_total)
        if filled.size == 0:
            return np.zeros(resamples), np.zeros(resamples)
        drawn_blocks = filled[rng.integers(0, filled.size, (resamples, filled.size))]
        return block_covered[drawn_blocks].sum(axis=1), block_total[drawn_blocks].sum(axis=1)

    def filled_blocks(self, part: str) -> int:
        """How many blocks hold tokens; 0 if blocks are not known."""
        if not self.hashed:
            return 0
        return int(np.unique(self.keys[self._inside(part)] // self.vocab_size % self.blocks).size)

    def added(self, other: DomainCounts) -> DomainCounts:
        """Sum two counts of the same width and blocks."""
        if not (self.hashed and other.hashed):
            search = self.array("search") + other.array("search")
            return DomainCounts.from_arrays(search, self.array("heldout") + other.array("heldout"))
        keys, counts = summed_keys(
            np.concatenate([self.keys, other.keys]), np.concatenate([self.counts, other.counts])
        )
        conversations = self.conversations + other.conversations
        return DomainCounts(self.vocab_size, self.blocks, keys, counts, conversations)

    def _inside(self, part: str) -> slice:
        """The stretch of keys that belongs to a part: the search part's come first."""
        border = int(np.searchsorted(self.keys, self.blocks * self.vocab_size))
        return {
            "search": slice(0, border),
            "heldout": slice(border, self.keys.size),
            "all": slice(0, self.keys.size),
        }[part]


class BlockAccumulator:
    """Adds batches of counts up into a `DomainCounts`.

    Keys wait in a buffer and are merged a million at a time. Once half of all possible keys occur
    they move to a table of all of them, so that the memory has a bound that does not depend on the
    data.
    """

    def __init__(self, vocab_size: int, blocks: int) -> None:
        self._vocab_size, self._blocks = vocab_size, blocks
        self._keys = np.empty(0, dtype=np.int64)
        self._counts = np.empty(0, dtype=np.int64)
        self._table: np.ndarray | None = None
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._waiting_keys = 0
        self._conversations = np.zeros(2 * blocks, dtype=np.int64)

    def add(self, keys: np.ndarray, counts: np.ndarray, conversations: np.ndarray) -> None:
        """Add a batch: unique keys, their counts, and conversations by block (all int64)."""
        self._conversations += conversations
        if self._table is not None:
            self._table[keys] += counts
            return
        self._waiting.append((keys, counts))
        self._waiting_keys += keys.size
        if self._waiting_keys >= max(_PENDING_KEYS, self._keys.size // 2):
            self._merge()

    def finished(self) -> DomainCounts:
        """Return the sums."""
        self._merge()
        keys, counts = self._keys, self._counts
        if self._table is not None:
            keys = np.flatnonzero(self._table).astype(np.int64)
            counts = self._table[keys]
        return DomainCounts(self._vocab_size, self._blocks, keys, counts, self._conversations)

    def _merge(self) -> None:
        if not self._waiting:
            return
        batches = [(self._keys, self._counts), *self._waiting]
        self._keys, self._counts = summed_keys(
            np.concatenate([keys for keys, _ in batches]),
            np.concatenate([counts for _, counts in batches]),
        )
        self._waiting, self._waiting_keys = [], 0
        possible = 2 * self._blocks * self._vocab_size
        if 2 * self._keys.size > possible:
            self._table = np.zeros(possible, dtype=np.int64)
            self._table[self._keys] = self._counts
            self._keys = self._counts = np.empty(0, dtype=np.int64)


def summed_keys(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort keys and sum the counts of equal ones; int64 throughout, nothing is rounded."""
    if keys.size == 0:
        return keys, counts
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[first], np.add.reduceat(counts, first)
