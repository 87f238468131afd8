"""One run a folder at a time: a lock that the system gives back even if the run is killed."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import IO

LOCK_FILE = ".vtrim-run.lock"
"""No other program makes a file of this name: where it lies, there was a run."""


class RunLock:
    """Holds a folder for this process, as a context manager.

    Args:
        folder: the folder; made if it does not exist.
        another: what else may be named, for the text of an error.

    Raises:
        ValueError: on entering, if another process holds it; the text names its number.
    """

    def __init__(self, folder: Path, another: str = "--run-folder") -> None:
        self._folder, self._another = folder, another
        self._file: IO[str] | None = None

    def __enter__(self) -> RunLock:
        self._folder.mkdir(parents=True, exist_ok=True)
        file = (self._folder / LOCK_FILE).open("a+", encoding="utf-8")
        try:
            _lock(file)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise ValueError(
                f"another run (process {holder}) is at work in {self._folder}: wait until it is "
                f"done, or name another {self._another}"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None


def _lock(file: IO[str]) -> None:
    """Lock an open file or raise OSError at once."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        file.seek(1 << 30)  # a locked byte cannot be read there, so one that nobody reads
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        file.seek(0)
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
