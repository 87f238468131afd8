"""One repository on disk: immutable commits, and one small file that says which are current.

A commit is visible when `state.json` names it, and that file is replaced in one step, so a commit
is there wholly or not at all, whenever the server is killed.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha1
from pathlib import Path
from typing import Any

from .object_store import ObjectStore, git_blob_id
from .refusals import RefusedError, no_repository
from .safe_names import KINDS

STATE_FILE = "state.json"
MAIN = "main"
FIRST_FILES = {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


@dataclass(frozen=True)
class Entry:
    """A file of a commit.

    Args:
        oid: SHA-1 of the git blob: of the content, or of the pointer of a large file.
        size: Bytes.
        sha256: Address of the content in the object store.
        large: Whether the file counts as stored by LFS or Xet.
    """

    oid: str
    size: int
    sha256: str
    large: bool = False

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.oid


Tree = Mapping[str, Entry]


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str | None
    title: str
    message: str
    date: str
    author: str
    tree: Tree


@dataclass(frozen=True)
class State:
    """What may change about a repository; `pulls` are its pull requests and discussions."""

    private: bool = False
    gated: str | bool = False
    created: str = field(default_factory=now)
    branches: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    pulls: Mapping[str, dict[str, Any]] = field(default_factory=dict)


class Repository:
    """A repository in its folder. Reading needs no lock; writers hold `lock`."""

    def __init__(self, folder: Path, objects: ObjectStore, lock: threading.RLock) -> None:
        self.folder, self.objects, self.lock = folder, objects, lock
        self.state = State(**json.loads((folder / STATE_FILE).read_text(encoding="utf-8")))
        self.gone = False  # deleted or moved: a request that came before must not write here
        self._load = lru_cache(maxsize=64)(self._load_commit)

    @classmethod
    def create(
        cls,
        folder: Path,
        objects: ObjectStore,
        lock: threading.RLock,
        *,
        author: str,
        **facts: Any,
    ) -> Repository:
        """Make a repository with a first commit; it exists once its state is written, last."""
        (folder / "commits").mkdir(parents=True, exist_ok=True)
        tree = {path: store_small(objects, data) for path, data in FIRST_FILES.items()}
        commit = _new_commit(None, "initial commit", "", author, tree)
        objects.write_whole(folder / "commits" / commit.sha, _as_json(commit))
        state = State(branches={MAIN: commit.sha}, **facts)
        objects.write_whole(folder / STATE_FILE, _as_json(state))
        return cls(folder, objects, lock)

    @property
    def id(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def namespace(self) -> str:
        return self.folder.parent.name

    @property
    def kind(self) -> str:
        return KINDS[self.folder.parent.parent.name]

    def update(self, **changes: Any) -> None:
        """Change the state on disk, then in memory."""
        with self.lock:
            if self.gone:
                raise no_repository(known_user=True)
            state = replace(self.state, **changes)
            self.objects.write_whole(self.folder / STATE_FILE, _as_json(state))
            self.state = state

    def save_commit(
        self, parent: str, title: str, message: str, author: str, tree: Tree
    ) -> Commit:
        """Write a commit that no branch names yet."""
        commit = _new_commit(parent, title, message, author, tree)
        self.objects.write_whole(self.folder / "commits" / commit.sha, _as_json(commit))
        return commit

    def has_commit(self, sha: str) -> bool:
        return (self.folder / "commits" / sha).exists()

    def commit_named(self, prefix: str) -> list[str]:
        return [path.name for path in (self.folder / "commits").glob(prefix + "*")]

    def commit(self, sha: str) -> Commit:
        return self._load(sha)

    def history(self, sha: str | None) -> Iterator[Commit]:
        """Yield the commit and its ancestors, newest first."""
        while sha is not None:
            commit = self.commit(sha)
            yield commit
            sha = commit.parent

    def read(self, sha: str, path: str) -> bytes | None:
        """Return a small file's content; None without it, and of one that only Xet's store has."""
        entry = self.commit(sha).tree.get(path)
        if entry is None or not self.objects.has(entry.sha256):
            return None
        return self.objects.read(entry.sha256)

    def _load_commit(self, sha: str) -> Commit:
        facts = json.loads((self.folder / "commits" / sha).read_text(encoding="utf-8"))
        tree = {path: Entry(**entry) for path, entry in facts.pop("tree").items()}
        return Commit(tree=tree, **facts)


def store_small(objects: ObjectStore, data: bytes) -> Entry:
    """Store a file's content that fits into memory."""
    sha256, size = objects.put([data])
    return Entry(git_blob_id(data), size, sha256)


def check_tree(tree: Tree) -> None:
    """Refuse a name that is a file and a folder at once, as git does."""
    for path in tree:
        parts = path.split("/")
        for end in range(1, len(parts)):
            if (folder := "/".join(parts[:end])) in tree:
                raise RefusedError(400, f"{folder!r} cannot be a file and the folder of {path!r}")


def _new_commit(parent: str | None, title: str, message: str, author: str, tree: Tree) -> Commit:
    # Real commit ids are hashes of content and time; a random part keeps equal commits apart.
    sha = sha1(f"{parent} {title} {secrets.token_hex(20)}".encode(), usedforsecurity=False)
    return Commit(sha.hexdigest(), parent, title, message, now(), author, tree)


def _as_json(value: Any) -> bytes:
    return json.dumps(asdict(value), separators=(",", ":")).encode()
