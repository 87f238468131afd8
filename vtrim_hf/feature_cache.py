"""The target's features on disk: computed once, read over epochs, vocabularies and runs.

A folder for each target, data, template and choice of layers holds shards of whole sequences, and
an index that is replaced after each of them, so that filling goes on after a kill. Shards are
mapped into memory when they are read, not loaded.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from .embedded_models import cache_folder
from .training_batches import collate
from .training_data import TrainingSequences
from .training_features import Features, TargetReader
from .vocabulary import write_atomically

INDEX_JSON = "features.json"
_FORMAT = 1  # part of the fingerprint: raise it when features would be computed otherwise
_SHARD_BYTES = 128 << 20
_CHUNK = 16 << 20


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
        }
        self.fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        self.folder = folder / self.fingerprint[:16]
        self._facts = {**facts, "template": sequences.template_hash}
        self._sequences, self._reader = sequences, reader
        self._shards: list[dict[str, Any]] = []
        self._open: dict[int, Any] = {}
        text = reader.target.config.get_text_config()
        self._plan = _planned(sequences.lengths, int(text.hidden_size), reader.dtype)
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
        on_shard: Callable[[], None] | None = None,
    ) -> int:
        """Compute what is missing.

        Args:
            tokens_at_once: that the target reads in one go, padding included.
            progress: show a bar on a terminal.
            on_shard: called after each shard.

        Returns:
            How many shards were computed now.

        Raises:
            ValueError: if a shard is damaged; the text names it.
        """
        from huggingface_hub.utils.tqdm import tqdm

        self.folder.mkdir(parents=True, exist_ok=True)
        self._shards = self._known()
        for shard in self._shards:
            self._check_size(shard)
        new = 0
        bar: Any = tqdm(  # type: ignore[no-untyped-call]
            total=int(self._sequences.ids.size),
            initial=sum(shard["tokens"] for shard in self._shards),
            desc="features",
            unit="token",
            disable=None if progress else True,
        )
        with bar:
            for number in range(len(self._shards), len(self._plan)):
                self._shards.append(self._compute(number, tokens_at_once, bar))
                self._write_index()
                new += 1
                if on_shard is not None:
                    on_shard()
        return new

    def read(self, index: int) -> Features:
        """Return the features of a sequence's tokens but the last, [length - 1, ...].

        Raises:
            ValueError: if a shard is damaged; the text names it.
        """
        number, start, end = (int(n) for n in self._place[index])
        shard = self._opened(number)
        return Features(*(shard.get_slice(name)[start : end - 1] for name in Features._fields))

    def _compute(self, number: int, tokens_at_once: int, bar: Any) -> dict[str, Any]:
        members = self._plan[number]
        lengths = self._sequences.lengths[members]
        total = int(lengths.sum())
        starts = lengths.cumsum() - lengths
        whole: dict[str, torch.Tensor] = {}
        for at, size in _micro_batches(lengths, tokens_at_once):
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
        ids = [self._sequences[int(index)] for index in members]
        whole["input_ids"] = torch.from_numpy(np.concatenate([row["input_ids"] for row in ids]))
        whole["assistant_mask"] = torch.from_numpy(
            np.concatenate([row["assistant_mask"] for row in ids])
        )
        data = save(whole, {"fingerprint": self.fingerprint, "shard": str(number)})
        name = _shard_name(number)
        write_atomically(self.folder / name, data)
        return {
            "file": name,
            "bytes": len(data),
            "crc32": zlib.crc32(data),
            "sequences": int(members.size),
            "tokens": total,
        }

    def _known(self) -> list[dict[str, Any]]:
        place = self.folder / INDEX_JSON
        if not place.is_file():
            return []
        try:
            index = json.loads(place.read_text(encoding="utf-8"))
            shards = [dict(shard) for shard in index["shards"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{place} is no index of features ({error}): delete the folder, and they are "
                "computed anew"
            ) from error
        if index.get("fingerprint") != self.fingerprint or len(shards) > len(self._plan):
            raise ValueError(
                f"{place} is the index of other features ({str(index.get('fingerprint'))[:12]}, "
                f"wanted {self.fingerprint[:12]}): delete the folder"
            )
        return shards

    def _write_index(self) -> None:
        index = {
            "fingerprint": self.fingerprint,
            "facts": self._facts,
            "finished": len(self._shards) == len(self._plan),
            "shards": self._shards,
        }
        text = json.dumps(index, indent=2) + "\n"
        write_atomically(self.folder / INDEX_JSON, text.encode())

    def _check_size(self, shard: dict[str, Any]) -> None:
        place = self.folder / str(shard["file"])
        size = place.stat().st_size if place.is_file() else 0
        if size != shard["bytes"]:
            raise ValueError(self._damaged(shard, f"it has {size} bytes, not {shard['bytes']}"))

    def _opened(self, number: int) -> Any:
        """Open a shard, whose content is proven once a process."""
        if number not in self._open:
            if number >= len(self._shards):
                raise ValueError(f"{self.folder} is not filled yet: call fill()")
            shard = self._shards[number]
            place = self.folder / str(shard["file"])
            self._check_size(shard)
            found = 0
            with place.open("rb") as file:
                while part := file.read(_CHUNK):
                    found = zlib.crc32(part, found)
            if found != shard["crc32"]:
                raise ValueError(self._damaged(shard, "its content was changed"))
            try:
                self._open[number] = safe_open(str(place), framework="pt")
            except SafetensorError as error:
                raise ValueError(self._damaged(shard, str(error))) from error
        return self._open[number]

    def _damaged(self, shard: dict[str, Any], why: str) -> str:
        return (
            f"the shard {self.folder / str(shard['file'])} of cached features is damaged ({why}): "
            f"delete the folder {self.folder.name}, and its features are computed anew"
        )

    def __getstate__(self) -> dict[str, Any]:
        # Workers that load batches open the shards themselves, and have no target.
        return {**vars(self), "_open": {}, "_reader": None}


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


def _planned(lengths: np.ndarray, width: int, dtype: torch.dtype) -> list[np.ndarray]:
    """Divide sequences, the shortest first, into shards of about the same size."""
    order = np.argsort(lengths, kind="stable")
    each = dtype.itemsize * width * 4 + 9  # three states, the last one, top, id, mask
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


def _shard_name(number: int) -> str:
    return f"features-{number:05d}.safetensors"
