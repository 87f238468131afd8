"""The store that a client with Xet writes to directly: a folder, in place of Xet's own servers.

`hf_xet` takes `local://FOLDER` for the address of a server, so client and hub must share a disk.
The hub reads the store's index to learn which files are there, and brings one out when a client
asks for plain bytes.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

_HEADER = 48
_RECORD = 48
_LAST = b"\xff" * 32
_HAS_VERIFICATION, _HAS_METADATA = 1 << 31, 1 << 30


@dataclass(frozen=True)
class XetFile:
    hash: str
    size: int


def hf_xet_is_installed() -> bool:
    return importlib.util.find_spec("hf_xet") is not None


class XetStore:
    """The folder of a `local://` store."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder.resolve()
        self._files: dict[str, XetFile] = {}
        self._read: set[str] = set()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"local://{self._folder}"

    def find(self, sha256: str) -> XetFile | None:
        """Return the file with this content, if a client has written it."""
        with self._lock:
            if sha256 not in self._files:
                for index in (self._folder / "xet/xorbs/shards").glob("*.mdb"):
                    if index.name in self._read:
                        continue
                    try:
                        self._files.update(read_shard(index.read_bytes()))
                    except ValueError:
                        continue  # still being written: whole before its commit is asked for
                    self._read.add(index.name)
            return self._files.get(sha256)

    def bring_out(self, sha256: str, scraps: Path) -> Path:
        """Write the file's bytes into the empty folder `scraps` and return where."""
        hf_xet = importlib.import_module("hf_xet")  # optional, and without types
        file = self.find(sha256)
        if file is None:
            raise FileNotFoundError(f"the Xet store in {self._folder} has no {sha256}")
        # The client's process keeps the store locked, so a twin is read: its files are never
        # changed once written, but for the one with the lock, which is copied.
        shutil.copytree(self._folder / "xet", scraps / "store/xet", copy_function=_link_or_copy)
        session = hf_xet.XetSession()
        with session.new_file_download_group(endpoint=f"local://{scraps / 'store'}") as group:
            group.start_download_file(
                hf_xet.XetFileInfo(file.hash, file.size), str(scraps / "file")
            )
        return scraps / "file"


def _link_or_copy(source: str, target: str) -> None:
    if not source.endswith(".redb"):
        with contextlib.suppress(OSError):  # a disk without links
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def read_shard(data: bytes) -> dict[str, XetFile]:
    """Return the files that an index file of the store lists, by SHA-256.

    Raises:
        ValueError: if it is no such index.
    """
    files: dict[str, XetFile] = {}
    at = _HEADER
    try:
        while data[at : at + 32] != _LAST:
            flags, count = struct.unpack_from("<II", data, at + 32)
            terms = at + _RECORD
            sizes = [
                struct.unpack_from("<I", data, terms + _RECORD * n + 36)[0] for n in range(count)
            ]
            end = terms + _RECORD * count * (2 if flags & _HAS_VERIFICATION else 1)
            if flags & _HAS_METADATA:
                files[_hex(data[end : end + 32])] = XetFile(_hex(data[at : at + 32]), sum(sizes))
                end += _RECORD
            at = end
    except struct.error as error:
        raise ValueError(f"the Xet index ends before its last file: {error}") from error
    return files


def _hex(raw: bytes) -> str:
    """Hashes lie in the file as four little-endian numbers."""
    return b"".join(raw[start : start + 8][::-1] for start in range(0, 32, 8)).hex()
