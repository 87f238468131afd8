"""Content on disk, addressed by its SHA-256: streamed in, checked, put in place in one step."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PIECE = 1 << 16
"""Bytes that are held in memory at a time."""


class ObjectStore:
    """The files below `folder/objects`; what is still coming in lies in `folder/incoming`.

    A file appears under its address when it is whole, by a rename, so a killed server leaves
    nothing but scraps in `incoming`, which the next start sweeps out.
    """

    def __init__(self, folder: Path) -> None:
        self._objects = folder / "objects"
        self.incoming = folder / "incoming"
        shutil.rmtree(self.incoming, ignore_errors=True)
        for place in (self._objects, self.incoming):
            place.mkdir(parents=True, exist_ok=True)

    def path(self, sha256: str) -> Path:
        return self._objects / sha256[:2] / sha256[2:]

    def has(self, sha256: str) -> bool:
        return self.path(sha256).exists()

    def read(self, sha256: str) -> bytes:
        return self.path(sha256).read_bytes()

    def put(self, pieces: Iterable[bytes], *, sha256: str | None = None) -> tuple[str, int]:
        """Store the joined `pieces`; return their SHA-256 and size in bytes.

        Raises:
            ValueError: if they do not have the `sha256` that was announced; nothing is stored.
        """
        digest, size = hashlib.sha256(), 0
        with self.scrap() as place:
            with place.open("wb") as file:
                for piece in pieces:
                    digest.update(piece)
                    size += len(piece)
                    file.write(piece)
            found = digest.hexdigest()
            if sha256 is not None and found != sha256:
                raise ValueError(f"content does not match its announced SHA-256 {sha256}: {found}")
            target = self.path(found)
            target.parent.mkdir(exist_ok=True)
            place.replace(target)
        return found, size

    def adopt(self, file: Path, *, sha256: str) -> None:
        """Move a file of the same disk into the store.

        Raises:
            ValueError: if its content does not have this `sha256`.
        """
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != sha256:
            raise ValueError(f"{file} should have the SHA-256 {sha256}, has {found}")
        target = self.path(sha256)
        target.parent.mkdir(exist_ok=True)
        file.replace(target)

    def write_whole(self, target: Path, data: bytes) -> None:
        """Replace any file of the hub in one step: readers see the old one or the new one."""
        with self.scrap() as place:
            place.write_bytes(data)
            place.replace(target)

    @contextmanager
    def scrap_folder(self) -> Iterator[Path]:
        """Give an empty folder in `incoming`; it is removed afterwards."""
        with tempfile.TemporaryDirectory(dir=self.incoming) as name:
            yield Path(name)

    @contextmanager
    def scrap(self) -> Iterator[Path]:
        """Give an empty file in `incoming`; what is left of it afterwards is removed."""
        handle, name = tempfile.mkstemp(dir=self.incoming)
        os.close(handle)
        try:
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    # --- parts of a multipart upload: `upload` is a name of the server's own making

    def put_part(self, upload: str, number: int, pieces: Iterable[bytes]) -> str:
        """Keep one part until the upload is joined; return its ETag."""
        digest = hashlib.md5(usedforsecurity=False)
        with self.scrap() as place:
            with place.open("wb") as file:
                for piece in pieces:
                    digest.update(piece)
                    file.write(piece)
            place.replace(self._part(upload, number))
        return digest.hexdigest()

    def join_parts(self, upload: str, numbers: list[int], *, sha256: str) -> int:
        """Store the object that the numbered parts make, and drop them; return its size.

        Raises:
            ValueError: if a part is missing or the whole does not have this `sha256`.
        """
        parts = [self._part(upload, number) for number in numbers]
        missing = [
            number for number, part in zip(numbers, parts, strict=True) if not part.exists()
        ]
        if missing:
            raise ValueError(f"parts {missing} were not uploaded")
        size = self.put((piece for part in parts for piece in pieces_of(part)), sha256=sha256)[1]
        for part in parts:
            part.unlink(missing_ok=True)
        return size

    def _part(self, upload: str, number: int) -> Path:
        return self.incoming / f"{upload}.{number:05d}"


def pieces_of(path: Path, first: int = 0, length: int | None = None) -> Iterator[bytes]:
    """Yield `length` bytes of a file from byte `first` on (all by default), piece by piece."""
    left = path.stat().st_size - first if length is None else length
    with path.open("rb") as file:
        file.seek(first)
        yield from _pieces(file, left)


def _pieces(file: BinaryIO, left: int) -> Iterator[bytes]:
    while left > 0 and (piece := file.read(min(PIECE, left))):
        left -= len(piece)
        yield piece


def git_blob_id(data: bytes) -> str:
    """Return the SHA-1 by which git knows this content; an ETag of small files."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    """Return the text that stands in git for a large file."""
    head = "version https://git-lfs.github.com/spec/v1"
    return f"{head}\noid sha256:{sha256}\nsize {size}\n".encode()
