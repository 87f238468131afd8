"""The folder that a draft is made ready in: gone afterwards, at the latest when the next is made.

A process that is killed cannot remove its folder, which holds a whole copy of a draft. Each folder
has a file that its process keeps locked, and the system lets go of the lock when the process ends
in any way; so a folder whose lock is free is nobody's.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PREFIX = "vtrim-hf-publish-"
LOCK = "lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder for temporary files, after removing those of killed processes."""
    remove_abandoned(Path(tempfile.gettempdir()))
    # Errors of removing are ignored: the next process tries again.
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        work = folder / "work"
        work.mkdir()
        # Locked before it has its name: whoever finds it under that name finds it locked.
        with (folder / "new lock").open("w") as file:
            if _lock(file):
                Path(file.name).rename(folder / LOCK)
            yield work


def remove_abandoned(place: Path) -> None:
    """Remove the folders that killed processes of this user left in `place`."""
    if os.name != "posix":
        return
    for folder in place.glob(f"{PREFIX}*"):
        # Somebody else removes it, too, or may not be touched: nothing is lost by leaving it.
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / LOCK).open("r+") as file:
                if _lock(file):
                    shutil.rmtree(folder)


def _lock(file: IO[str]) -> bool:
    """Lock a file until it is closed; return whether it was free."""
    if os.name != "posix":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked, or on a disk without locks
        return False
    return True
