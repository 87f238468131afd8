"""Which names of repositories, files and references are taken; every other one is refused.

File names never become paths on the server's disk, for content is stored by its hash. They become
paths on the disks of those who download, so tricks are refused all the same.
"""

from __future__ import annotations

import re

KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
"""Plural, as in addresses, to singular, as in the bodies of requests."""

_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
# What git takes for no name. References become no paths here, so all that it takes is taken.
_NO_REFERENCE = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{|(?:^|/)\.|\.lock(?:/|$)|^[-/]|[/.]$|^@?$|^HEAD$"
)
_LONGEST_REFERENCE = 250
_LONGEST_PATH = 1000


def check_repo_id(repo_id: str) -> str:
    """Return `repo_id` if it is a namespace and a name that may stand on a disk.

    Raises:
        ValueError: otherwise.
    """
    parts = repo_id.split("/")
    good = len(parts) == 2 and all(
        _PART.fullmatch(part) and ".." not in part and "--" not in part for part in parts
    )
    if not good or repo_id.endswith((".git", ".ipynb", ".lock")):
        raise ValueError(
            f"a repository is called NAMESPACE/NAME, both of letters, digits, '-', '_' and '.' "
            f"(no '..', no '--'), got {repo_id!r}"
        )
    return repo_id


def check_file_path(path: object) -> str:
    """Return `path` if it is relative, with forward slashes, and stays below its folder.

    Raises:
        ValueError: otherwise.
    """
    if not isinstance(path, str) or not 0 < len(path) <= _LONGEST_PATH:
        raise ValueError(f"a file's path is a text of 1 to {_LONGEST_PATH} characters: {path!r}")
    parts = path.split("/")
    bad_part = any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
    # A colon would be a drive or a stream on Windows; a control character is never meant.
    bad_sign = any(sign in '\\:"' or ord(sign) < 32 or ord(sign) == 127 for sign in path)
    if bad_part or bad_sign or any(0xD800 <= ord(sign) < 0xE000 for sign in path):
        raise ValueError(
            f"a file's path is relative, with '/' between plain names (no '..', no '\\', no ':'), "
            f"got {path!r}"
        )
    return path


def check_reference(name: object) -> str:
    """Return `name` if a branch or tag may be called so.

    Raises:
        ValueError: otherwise.
    """
    good = isinstance(name, str) and len(name) <= _LONGEST_REFERENCE and name.isprintable()
    if not good or _NO_REFERENCE.search(str(name)):
        raise ValueError(f"a branch or tag has a name that git takes for one, got {name!r}")
    if str(name).startswith("refs/") or re.fullmatch(r"[0-9a-f]{40}", str(name)):
        raise ValueError(f"a branch or tag must not look like a reference or commit: {name!r}")
    return str(name)
