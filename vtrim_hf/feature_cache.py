"""The target's features on disk: computed once, read over epochs, vocabularies and runs.

A folder for each target, data, template and choice of layers holds shards of whole sequences; the
files themselves are the business of `feature_shards.py`. The draft's vocabulary decides nothing
here: trainings with any number of them share a cache.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from .embedded_models import cache_folder
from .feature_shards import ShardFiles
from .training_batches import collate
from .training_data import TrainingSequences
from .training_features import Features, TargetReader

_FORMAT = 1  # part of the fingerprint: raise it when features would be computed otherwise
_SHARD_BYTES = 128 << 20


def features_folder(wanted: str | Path) -> Path:
    """Return the folder that caches lie in: the one given, or the user's for "auto"."""
    return cache_folder() / "features" if wanted == "auto" else Path(wanted).expanduser()


class FeatureCache:
    """Features of some sequences, read from shards.

    Args:
        folder: in which caches lie, one a subfolder.
        sequences: whose features they are.
        reader: reads the target.
        target_fingerprint: tells targets apart.

    Attributes:
        folder: of this cache.
        fingerprint: sha256 (hex) of everything that decides the features.

    Example:
        ```python
        cache = FeatureCache(folder, sequences, reader, fingerprint)
        cache.fill()
        features = cache.read(0)
        ```
    """

    def __init__(
        self,
        folder: Path,
        sequences: TrainingSequences,
        reader: TargetReader,
        target_fingerprint: str,
    ) -> None:
        facts = {
            "format": _FORMAT,
            "target": target_fingerprint,
            "target_dtype": str(reader.target.dtype).removeprefix("torch."),
            "layers": reader.layer_ids,
            "dtype": str(reader.dtype).removeprefix("torch."),
            # Ids and masks: what data, template and longest length decide.
            "sequences": sequences.fingerprint,
            "shard_bytes": _SHARD_BYTES,
        }
        self.fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        self.folder = folder / self.fingerprint[:16]
        self._sequences, self._reader = sequences, reader
        text = reader.target.config.get_text_config()
        # Three states, the last one, top, id, mask.
        self._token_bytes = reader.dtype.itemsize * int(text.hidden_size) * 4 + 9
        self._plan = _planned(sequences.lengths, self._token_bytes)
        facts["template"] = sequences.template_hash
        tokens = [int(sequences.lengths[members].sum()) for members in self._plan]
        self._shards = ShardFiles(self.folder, self.fingerprint, facts, tokens)
        self._place = np.zeros((len(sequences), 3), dtype=np.int64)  # shard, start, end
        for number, members in enumerate(self._plan):
            ends = sequences.lengths[members].cumsum()
            self._place[members, 0] = number
            self._place[members, 1] = ends - sequences.lengths[members]
            self._place[members, 2] = ends

    def fill(
        self,
        *,
        tokens_at_once: int = 4096,
        progress: bool = True,
        on_batch: Callable[[], None] | None = None,
    ) -> int:
        """Compute what is missing or damaged; waits while another process does so.

        Args:
            tokens_at_once: that the target reads in one go, padding included.
            progress: show a bar on a terminal.
            on_batch: called after each go; where it raises, what is computed so far is kept.

        Returns:
            How many shards were computed now.

        Raises:
            OSError: if the disk has no room for them.
        """
        self._shards.look()
        if not self._shards.missing:
            return 0
        with self._shards.writing():
            missing = self._shards.missing  # another process may have computed them
            lengths = self._sequences.lengths
            left = sum(int(lengths[self._plan[number]].sum()) for number in missing)
            self._shards.check_room(left * self._token_bytes)
            with _bar(int(lengths.sum()), left, progress) as bar:
                for number in missing:
                    self._compute(number, tokens_at_once, bar, on_batch)
        return len(missing)

    def read(self, index: int) -> Features:
        """Return the features of a sequence's tokens but the last, [length - 1, ...].

        Raises:
            ValueError: if a shard is damaged; the text names it.
        """
        number, start, end = (int(n) for n in self._place[index])
        shard = self._shards.opened(number)
        return Features(*(shard.get_slice(name)[start : end - 1] for name in Features._fields))

    def _compute(
        self,
        number: int,
        tokens_at_once: int,
        bar: Any,
        on_batch: Callable[[], None] | None,
    ) -> None:
        """Compute a shard, from where it was stopped."""
        members = self._plan[number]
        lengths = self._sequences.lengths[members]
        total = int(lengths.sum())
        starts = lengths.cumsum() - lengths
        done, part = self._shards.begun(number)
        known = Features._fields if part else ()
        whole = {name: _lengthened(part[name], total) for name in known}
        bar.update(int(lengths[:done].sum()))
        for first, size in _micro_batches(lengths[done:], tokens_at_once):
            at = done + first
            rows = [self._sequences[int(index)] for index in members[at : at + size]]
            batch = collate(rows)
            features = self._reader.read(
                batch["input_ids"], batch["lengths"], scored_positions(batch)
            )
            for name, numbers in features._asdict().items():
                if name not in whole:
                    whole[name] = torch.zeros(total, *numbers.shape[2:], dtype=numbers.dtype)
                for row in range(size):
                    start, length = int(starts[at + row]), int(lengths[at + row])
                    whole[name][start : start + length] = numbers[row, :length].to("cpu")
            bar.update(int(lengths[at : at + size].sum()))
            if on_batch is not None:
                try:
                    on_batch()
                except BaseException:
                    self._add(number, at + size, whole)
                    raise
        self._add(number, members.size, whole)

    def _add(self, number: int, size: int, features: dict[str, torch.Tensor]) -> None:
        """Write a shard's first sequences."""
        rows = [self._sequences[int(index)] for index in self._plan[number][:size]]
        tokens = sum(len(row["input_ids"]) for row in rows)
        tensors = {name: numbers[:tokens] for name, numbers in features.items()}
        for name in ("input_ids", "assistant_mask"):
            tensors[name] = torch.from_numpy(np.concatenate([row[name] for row in rows]))
        data = save(tensors, {"fingerprint": self.fingerprint, "shard": str(number)})
        self._shards.add(number, data, sequences=int(size), tokens=tokens)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_reader": None}  # workers that load batches have no target


class CachedSequences(torch.utils.data.Dataset[dict[str, Any]]):
    """Sequences that come with their features.

    Args:
        sequences: without.
        cache: theirs; filled when it is first read.
    """

    def __init__(self, sequences: TrainingSequences, cache: FeatureCache) -> None:
        self._sequences, self.cache = sequences, cache
        self.lengths = sequences.lengths
        self.facts = sequences.facts

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self._sequences[index], "features": self.cache.read(index)}


class OnlineFeatures:
    """Features that are computed for each batch anew.

    Args:
        reader: reads the target.
    """

    def __init__(self, reader: TargetReader) -> None:
        self._reader = reader

    def read(self, batch: dict[str, torch.Tensor]) -> Features:
        """Return the features of a batch as `collate` makes it, but the last token's."""
        ids = batch["input_ids"]
        found = self._reader.read(ids, batch["lengths"], scored_positions(batch))
        return Features(*(numbers[:, : ids.shape[1] - 1] for numbers in found))


def scored_positions(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return where the target's likeliest next token is needed, bool [batch, length]."""
    scored = torch.zeros_like(batch["input_ids"], dtype=torch.bool)
    rows, at = (batch["runs"] > 0).nonzero(as_tuple=True)
    scored[rows, batch["columns"][rows, at] + 1] = True
    return scored


def _bar(total: int, left: int, progress: bool) -> Any:
    from huggingface_hub.utils.tqdm import tqdm

    return tqdm(  # type: ignore[no-untyped-call]
        total=total,
        initial=total - left,
        desc="features",
        unit="token",
        disable=None if progress else True,
    )


def _lengthened(numbers: torch.Tensor, length: int) -> torch.Tensor:
    """Return numbers [n, ...] with zeros behind them, [length, ...]."""
    return torch.cat([numbers, numbers.new_zeros(length - len(numbers), *numbers.shape[1:])])


def _planned(lengths: np.ndarray, each: int) -> list[np.ndarray]:
    """Divide sequences, the shortest first, into shards of about the same size."""
    order = np.argsort(lengths, kind="stable")
    number = (lengths[order].cumsum() - lengths[order]) * each // _SHARD_BYTES
    borders = np.flatnonzero(np.diff(number)) + 1
    return [part for part in np.split(order, borders) if part.size]


def _micro_batches(lengths: np.ndarray, tokens: int) -> Iterator[tuple[int, int]]:
    """Give (start, size) of ranges that hold so many tokens at most, padding included, or one."""
    at = 0
    while at < lengths.size:
        size = 1
        while (
            at + size < lengths.size
            and int(lengths[at : at + size + 1].max()) * (size + 1) <= tokens
        ):
            size += 1
        yield at, size
        at += size
