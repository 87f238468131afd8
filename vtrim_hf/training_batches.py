"""Batches for training a draft: which sequences come together, and which columns are drafted at.

A column is a position i whose token i+2, the first that is drafted there, is the assistant's. It
may be unrolled as far as the assistant's own tokens go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from .training_data import FIRST_DRAFTED
from .training_features import Features

_SORTED_TOGETHER = 50  # batches


class GroupedSampler(torch.utils.data.Sampler[int]):
    """Draws sequences so that those of a batch are about as long; in an order of its own an epoch.

    The order depends on seed and epoch alone, so that training goes on as it would have.

    Args:
        lengths: of the sequences.
        batch_size: sequences that are padded together.
        seed: of the order.
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray, batch_size: int, seed: int) -> None:
        self._lengths = np.asarray(lengths)
        self._batch_size, self._seed = batch_size, seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self._epoch = epoch

    def __len__(self) -> int:
        return int(self._lengths.size)

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng([self._seed, self._epoch])
        order = random.permutation(len(self))
        together = self._batch_size * _SORTED_TOGETHER
        order = np.concatenate(
            [
                part[np.argsort(self._lengths[part], kind="stable")]
                for part in (order[at : at + together] for at in range(0, len(self), together))
            ]
            or [order]
        )
        whole = len(self) // self._batch_size * self._batch_size
        batches = order[:whole].reshape(-1, self._batch_size)
        random.shuffle(batches)  # in place, whole batches
        # A short batch stays last, or all that come after it would be torn apart.
        yield from map(int, [*batches.reshape(-1), *order[whole:]])


def collate(rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Put sequences side by side, padded on the right.

    Args:
        rows: items of `TrainingSequences`.

    Returns:
        `indices` int64 [batch]; `input_ids` int64 [batch, length]; `lengths` int64 [batch];
        `columns` int64 [batch, columns], ascending, then 0 where a sequence has fewer; and `runs`
        int64 [batch, columns], how many tokens may be drafted there (0: no column). Features that
        come with the rows are put side by side, too, without the last token's.
    """
    longest = max(row["input_ids"].size for row in rows)
    ids = np.zeros((len(rows), longest), dtype=np.int64)
    said = np.zeros((len(rows), longest), dtype=bool)
    for at, row in enumerate(rows):
        length = row["input_ids"].size
        ids[at, :length] = row["input_ids"]
        said[at, :length] = row["assistant_mask"]
    runs = run_lengths(said)[:, FIRST_DRAFTED:]
    most = int((runs > 0).sum(axis=1).max())
    # Stable: positions with a run come first, in their own order.
    columns = np.argsort(runs == 0, axis=1, kind="stable")[:, :most]
    runs = np.take_along_axis(runs, columns, axis=1)
    return {
        **_features(rows, longest - 1),
        "indices": torch.tensor([row["index"] for row in rows]),
        "input_ids": torch.from_numpy(ids),
        "lengths": torch.tensor([row["input_ids"].size for row in rows]),
        "columns": torch.from_numpy(np.where(runs > 0, columns, 0)),
        "runs": torch.from_numpy(runs),
    }


def given_features(batch: dict[str, torch.Tensor]) -> Features | None:
    """Return the features that `collate` found with the rows; None if there were none."""
    if "states" not in batch:
        return None
    return Features(batch["states"], batch["last"], batch["top"])


def _features(rows: Sequence[dict[str, Any]], length: int) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for at, row in enumerate(rows):
        given: Features | None = row.get("features")
        for name, numbers in (given._asdict() if given is not None else {}).items():
            if name not in found:
                found[name] = numbers.new_zeros(len(rows), length, *numbers.shape[1:])
            found[name][at, : numbers.shape[0]] = numbers
    return found


def run_lengths(said: np.ndarray) -> np.ndarray:
    """Return how many true values follow one another from each place on, int64 like `said`."""
    length = said.shape[-1]
    places = np.arange(length)
    # The next false place at or after each place: a running minimum from the right.
    ends = np.where(said, length, places)
    ends = np.minimum.accumulate(ends[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(np.where(said, ends - places, 0), dtype=np.int64)
