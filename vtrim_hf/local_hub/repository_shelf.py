"""All repositories below a folder: find, create, move, delete, list."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

from .object_store import ObjectStore
from .refusals import RefusedError
from .repository import STATE_FILE, Repository
from .safe_names import KINDS, check_repo_id

PLURALS = {one: many for many, one in KINDS.items()}


class RepositoryShelf:
    """Repositories by kind (`model`, `dataset`, `space`) and id, in `KINDs/NAMESPACE/NAME`."""

    def __init__(self, folder: Path, objects: ObjectStore) -> None:
        self._folder, self._objects = folder, objects
        self.lock = threading.RLock()
        self._open: dict[tuple[str, str], Repository] = {}
        for state in sorted(folder.glob(f"*/*/*/{STATE_FILE}")):
            repository = Repository(state.parent, objects, self.lock)
            self._open[repository.kind, repository.id] = repository

    def find(self, kind: str, repo_id: str) -> Repository | None:
        return self._open.get((kind, repo_id))

    def all(self, kind: str) -> list[Repository]:
        with self.lock:
            return [found for (each, _), found in sorted(self._open.items()) if each == kind]

    def create(self, kind: str, repo_id: str, *, author: str, **facts: Any) -> Repository:
        """Make a repository that must not exist yet."""
        with self.lock:
            folder = self._free_place(kind, repo_id)
            made = Repository.create(folder, self._objects, self.lock, author=author, **facts)
            self._open[kind, repo_id] = made
            return made

    def move(self, repository: Repository, new_id: str) -> Repository:
        """Rename a repository; its folder is its name, so one rename on disk does it."""
        with self.lock:
            folder = self._free_place(repository.kind, new_id)
            folder.parent.mkdir(parents=True, exist_ok=True)
            del self._open[repository.kind, repository.id]
            repository.gone = True
            repository.folder.rename(folder)
            moved = Repository(folder, self._objects, self.lock)
            self._open[moved.kind, moved.id] = moved
            return moved

    def delete(self, repository: Repository) -> None:
        """Remove a repository; without its state it is gone, even if the rest is left half way."""
        with self.lock:
            del self._open[repository.kind, repository.id]
            repository.gone = True
            (repository.folder / STATE_FILE).unlink()
            shutil.rmtree(repository.folder, ignore_errors=True)

    def _free_place(self, kind: str, repo_id: str) -> Path:
        if kind not in PLURALS:
            raise RefusedError(400, f"type is one of {sorted(PLURALS)}, got {kind!r}")
        try:
            namespace, name = check_repo_id(repo_id).split("/")
        except ValueError as error:
            raise RefusedError(400, str(error)) from error
        folder = self._folder / PLURALS[kind] / namespace / name
        if (folder / STATE_FILE).exists():  # also the same name in other letters, on some disks
            raise RefusedError(409, f"There is a {kind} called {repo_id} already")
        shutil.rmtree(folder, ignore_errors=True)  # the rest of one that was deleted half way
        return folder
