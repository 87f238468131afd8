"""What a commit request asks for, and the tree that comes of it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .object_store import ObjectStore
from .refusals import RefusedError
from .repository import Entry, Tree, check_tree, store_small
from .safe_names import check_file_path

FindLarge = Callable[[str], Entry | None]
"""From the SHA-256 of a large file to its entry, or None if it was not uploaded."""


@dataclass(frozen=True)
class Change:
    """A commit that was asked for; its content is stored already.

    Args:
        deleted: Paths; those that end in `/` are folders.
        parent: The commit, or the start of its id, that the client believes to be the newest.
    """

    title: str
    message: str
    parent: str | None
    added: Tree
    deleted: tuple[str, ...]


def read_change(lines: Iterable[bytes], objects: ObjectStore, find_large: FindLarge) -> Change:
    """Read a request body of JSON lines, one line in memory at a time."""
    header: dict[str, Any] = {}
    added: dict[str, Entry] = {}
    deleted: list[str] = []
    for line in lines:
        key, value = _key_and_value(line)
        if key == "header":
            header = value
        elif key == "file":
            added[_path(value)] = store_small(objects, _content(value))
        elif key == "lfsFile":
            added[_path(value)] = _large(value, find_large)
        elif key == "deletedFile":
            deleted.append(_path(value))
        elif key == "deletedFolder":
            deleted.append(_path({"path": str(value.get("path")).rstrip("/")}) + "/")
        else:
            raise RefusedError(400, f"a commit cannot hold {key!r}")
    if not header.get("summary"):
        raise RefusedError(400, "a commit needs a summary")
    return Change(
        str(header["summary"]),
        str(header.get("description") or ""),
        header.get("parentCommit"),
        added,
        tuple(deleted),
    )


def apply_change(tree: Tree, change: Change) -> dict[str, Entry]:
    """Return the tree after `change`: what it deletes goes first, then it adds."""
    after = dict(tree)
    for path in change.deleted:
        gone = [old for old in after if old == path or (path[-1] == "/" and old.startswith(path))]
        if not gone:
            raise RefusedError(
                404, f"A file with this name doesn't exist: {path.rstrip('/')}", "EntryNotFound"
            )
        for old in gone:
            del after[old]
    after.update(change.added)
    check_tree(after)
    return after


def _key_and_value(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        record = json.loads(line)
        key, value = record["key"], record["value"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RefusedError(
            400, f"a commit is lines of JSON with key and value: {error!r}"
        ) from error
    if not isinstance(value, dict):
        raise RefusedError(400, f"the value of {key!r} is an object, got {type(value).__name__}")
    return str(key), value


def _path(value: dict[str, Any]) -> str:
    try:
        return check_file_path(value.get("path"))
    except ValueError as error:
        raise RefusedError(400, str(error)) from error


def _content(value: dict[str, Any]) -> bytes:
    content = value.get("content")
    if not isinstance(content, str):
        raise RefusedError(400, f"the file {value.get('path')!r} has no content")
    if value.get("encoding", "utf-8") != "base64":
        return content.encode()
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError(400, f"{value.get('path')!r} is not base64: {error}") from error


def _large(value: dict[str, Any], find_large: FindLarge) -> Entry:
    sha256 = str(value.get("oid"))
    entry = find_large(sha256)
    if entry is None:
        raise RefusedError(400, f"LFS object not found: {sha256}: upload it before the commit")
    if value.get("size", entry.size) != entry.size:
        raise RefusedError(400, f"{value['path']!r} has {entry.size} bytes, not {value['size']}")
    return entry
