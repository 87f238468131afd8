"""The folder of a hub: is it one, may it become one, and is another hub at work in it?"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

MARK = "local_hub.json"
LOCK = "lock"
FORMAT = 1


@contextlib.contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Keep other hubs out of `folder`, which is made a hub's if it is new or empty.

    Raises:
        NotADirectoryError: if it is a file.
        ValueError: if it holds something else than a hub, or one of a newer format.
        BlockingIOError: if another hub uses it.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: a hub needs a folder, name another")
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    if not mark.exists():
        # The hub sweeps out what it finds half-written: never in a folder that is not its own.
        if any(path.name != LOCK for path in folder.iterdir()):
            raise ValueError(f"{folder} is neither empty nor a hub's folder: name another")
        mark.write_text(json.dumps({"format": FORMAT}) + "\n", encoding="utf-8")
    _check_format(mark)
    with (folder / LOCK).open("a") as file:
        if os.name == "posix":
            import fcntl

            try:  # the system lets go of it when the process ends in any way
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BlockingIOError(
                    f"{folder} is in use by another hub: stop it, or name another folder"
                ) from error
        yield


def _check_format(mark: Path) -> None:
    try:
        found = json.loads(mark.read_text(encoding="utf-8"))["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{mark} does not say the hub's format: {error!r}") from error
    if found != FORMAT:
        raise ValueError(f"{mark.parent} has format {found!r}, this release reads {FORMAT}")
