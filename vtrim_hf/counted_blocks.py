"""Counts of one domain in hashed blocks: what a bootstrap needs, in memory that has a bound.

Every conversation falls, by its hash, into the search or the held-out part and into one of a fixed
number of blocks of that part. A count has the key (part * blocks + block) * V + token id; only
keys that occur are kept, in ascending order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PARTS = ("search", "heldout")
PART_NAMES = (*PARTS, "all")
_PENDING_KEYS = 1 << 18  # keys that wait to be merged: bounds both memory and merging


@dataclass(frozen=True, eq=False)
class DomainCounts:
    """The counts of one domain.

    Attributes:
        vocab_size: V.
        blocks: blocks of each part.
        keys: whole numbers [n] (uint32 where they fit, else int64), ascending and unique.
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
        # A number of the keys' own type: any other would have all keys copied to a wider one.
        first = self.keys.dtype.type(self.blocks * self.vocab_size)
        border = int(np.searchsorted(self.keys, first))
        return {
            "search": slice(0, border),
            "heldout": slice(border, self.keys.size),
            "all": slice(0, self.keys.size),
        }[part]


class BlockAccumulator:
    """Adds batches of counts up into a `DomainCounts`.

    Keys wait in a buffer and are merged many at a time. What is kept is twelve bytes for each pair
    of a block and a token that occurs, which ever more data makes no more than 2 * blocks * V.
    """

    def __init__(self, vocab_size: int, blocks: int) -> None:
        self._vocab_size, self._blocks = vocab_size, blocks
        narrow = 2 * blocks * vocab_size < 1 << 32
        self._keys = np.empty(0, dtype=np.uint32 if narrow else np.int64)
        self._counts = np.empty(0, dtype=np.int64)
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._waiting_keys = 0
        self._conversations = np.zeros(2 * blocks, dtype=np.int64)

    def add(self, keys: np.ndarray, counts: np.ndarray, conversations: np.ndarray) -> None:
        """Add a batch: unique keys, their counts, and conversations by block (all int64)."""
        self._conversations += conversations
        self._waiting.append((keys.astype(self._keys.dtype), counts))
        self._waiting_keys += keys.size
        if self._waiting_keys >= _PENDING_KEYS:
            self._merge()

    def finished(self) -> DomainCounts:
        """Return the sums."""
        if self._waiting:
            self._merge()
        return DomainCounts(
            self._vocab_size, self._blocks, self._keys, self._counts, self._conversations
        )

    def _merge(self) -> None:
        keys, counts = summed_keys(
            np.concatenate([keys for keys, _ in self._waiting]),
            np.concatenate([counts for _, counts in self._waiting]),
        )
        self._waiting, self._waiting_keys = [], 0
        # Known keys are added to where they stand; only new ones make the arrays longer.
        place = np.searchsorted(self._keys, keys)
        known = place < self._keys.size
        known[known] = self._keys[place[known]] == keys[known]
        self._counts[place[known]] += counts[known]
        self._keys = np.insert(self._keys, place[~known], keys[~known])
        self._counts = np.insert(self._counts, place[~known], counts[~known])


def summed_keys(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort keys and sum the counts of equal ones; counts stay int64."""
    if keys.size == 0:
        return keys, counts
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[first], np.add.reduceat(counts, first)
