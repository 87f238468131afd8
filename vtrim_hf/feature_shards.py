"""Files of cached features: an index, shards that are proven before they are read, one writer.

The index is replaced after each shard, so that filling goes on after a kill; a shard that is
stopped within is kept as far as it is, and the index says how far that is. Whatever is damaged
is made anew and nothing else: a cache holds nothing that could not be computed again.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from .vocabulary import write_atomically

logger = logging.getLogger(__name__)

INDEX_JSON = "features.json"
_LOCK = ".lock"
# What `write_atomically` leaves when it is killed: `.NAME.` and 8 characters.
_HALF_WRITTEN = re.compile(r"\.features(-\d+\.safetensors|\.json)\.[^.]{8}")
_CHUNK = 16 << 20
_POLL_SECONDS = 0.5


class ShardFiles:
    """The shards of one cache, which are numbered from 0 on.

    Args:
        folder: of this cache.
        fingerprint: of what its features are; an index of another one counts for nothing.
        facts: JSON-able; noted in the index for people.
        tokens: of each shard when it is whole.

    Attributes:
        known: what the index says of each shard that is there, or was begun, by its number.
    """

    def __init__(
        self, folder: Path, fingerprint: str, facts: Mapping[str, Any], tokens: Sequence[int]
    ) -> None:
        self.folder = folder
        self.known: dict[int, dict[str, Any]] = {}
        self._fingerprint, self._facts, self._tokens = fingerprint, facts, tokens
        self._open: dict[int, Any] = {}

    @property
    def missing(self) -> list[int]:
        """Numbers of the shards that are not there whole, ascending."""
        return [number for number in range(len(self._tokens)) if not self._is_whole(number)]

    def look(self) -> list[str]:
        """Take in what is there; returns what is damaged, in words."""
        found, damaged = self._index()
        self.known = {}
        for number in range(len(self._tokens)):
            shard = found.get(shard_name(number))
            if shard is None:
                continue
            wrong = self._wrong_size(shard)
            if wrong is None:
                self.known[number] = shard
            else:
                damaged.append(f"{self.folder / shard_name(number)}, which {wrong}")
        return damaged

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only one who writes, after all others are done; takes in what is there then.

        What a killed writer left half-written is removed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with _alone(self.folder):
            for left in self.folder.glob(".features*"):
                if _HALF_WRITTEN.fullmatch(left.name):
                    left.unlink(missing_ok=True)
            damaged = self.look()
            for what in damaged:
                logger.warning("cached features are damaged and computed anew: %s", what)
            if damaged:
                self._write_index()  # a kill leaves no index that names what was damaged
            yield

    def check_room(self, size: int) -> None:
        """Raise unless the disk has room for so many bytes.

        Raises:
            OSError: if it has not.
        """
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise OSError(
                f"the target's features that are still to be computed take {size / 1e9:.2f} GB in "
                f"{self.folder}, where {free / 1e9:.2f} GB are free: make room, keep them in "
                "another folder (feature_cache), train on less data, or compute them anew for "
                "each batch, without a cache"
            )

    def add(self, number: int, data: bytes, **facts: int) -> None:
        """Write a shard, whole or as far as it is, then the index with it.

        Args:
            number: of the shard.
            data: a safetensors file's content.
            **facts: its `sequences` and `tokens`, noted in the index.
        """
        write_atomically(self.folder / shard_name(number), data)
        self._open.pop(number, None)
        self.known[number] = {
            "file": shard_name(number),
            "bytes": len(data),
            "crc32": zlib.crc32(data),
            **facts,
        }
        self._write_index()

    def begun(self, number: int) -> tuple[int, dict[str, Any]]:
        """Return how many sequences of a missing shard are there, and their tensors by name."""
        shard = self.known.get(number)
        if shard is None or self._wrong_content(shard) is not None:
            return 0, {}
        return shard["sequences"], load_file(self._place(shard))

    def opened(self, number: int) -> Any:
        """Return a shard, mapped into memory; its content is proven once a process.

        Raises:
            ValueError: if it is not there, or damaged; the text names it.
        """
        if number not in self._open:
            if not self._is_whole(number):
                raise ValueError(f"{self.folder} is not filled yet: call fill()")
            shard = self.known[number]
            wrong = self._wrong_size(shard) or self._wrong_content(shard)
            if wrong is not None:
                raise ValueError(self._damaged(shard, wrong))
            try:
                self._open[number] = safe_open(str(self._place(shard)), framework="pt")
            except SafetensorError as error:
                raise ValueError(self._damaged(shard, f"is no safetensors: {error}")) from error
        return self._open[number]

    def _index(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Read the index; returns its shards by their files, and what is wrong with it."""
        place = self.folder / INDEX_JSON
        if not place.is_file():
            return {}, []
        try:
            index = json.loads(place.read_text(encoding="utf-8"))
            shards = {
                str(shard["file"]): {
                    **shard,
                    **{
                        name: int(shard[name])
                        for name in ("bytes", "crc32", "sequences", "tokens")
                    },
                }
                for shard in index["shards"]
            }
        except (ValueError, KeyError, TypeError) as error:
            return {}, [f"{place}, which is no index of features ({error!r})"]
        if index.get("fingerprint") != self._fingerprint:
            theirs = str(index.get("fingerprint"))[:12]
            return {}, [f"{place}, which is the index of other features ({theirs})"]
        return shards, []

    def _write_index(self) -> None:
        index = {
            "fingerprint": self._fingerprint,
            "facts": self._facts,
            "finished": not self.missing,
            "shards": [self.known[number] for number in sorted(self.known)],
        }
        text = json.dumps(index, indent=2) + "\n"
        write_atomically(self.folder / INDEX_JSON, text.encode())

    def _is_whole(self, number: int) -> bool:
        return number in self.known and self.known[number]["tokens"] == self._tokens[number]

    def _place(self, shard: Mapping[str, Any]) -> Path:
        return self.folder / str(shard["file"])

    def _wrong_size(self, shard: Mapping[str, Any]) -> str | None:
        place = self._place(shard)
        size = place.stat().st_size if place.is_file() else 0
        return None if size == shard["bytes"] else f"has {size} bytes, not {shard['bytes']}"

    def _wrong_content(self, shard: Mapping[str, Any]) -> str | None:
        found = 0
        with self._place(shard).open("rb") as file:
            while part := file.read(_CHUNK):
                found = zlib.crc32(part, found)
        return None if found == shard["crc32"] else "has a content that was changed"

    def _damaged(self, shard: Mapping[str, Any], why: str) -> str:
        return (
            f"the shard {self._place(shard)} of cached features is damaged, it {why}: delete this "
            "file and run again, and its features alone are computed anew"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}}  # another process opens the shards itself


def shard_name(number: int) -> str:
    """Return the name of a shard's file."""
    return f"features-{number:05d}.safetensors"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.warning("another process computes features in %s: waiting until it is done", folder)
        lock.acquire(poll_interval=_POLL_SECONDS)
    except NotImplementedError:  # a file system without locks, as some networks' are
        yield
        return
    try:
        yield
    finally:
        lock.release()
