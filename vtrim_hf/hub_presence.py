"""Whether a commit is on the Hub already: asked when its answer was lost. Nothing is changed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from .hub_account import Destination

_REQUESTS = 20  # the newest pull requests, among which one of this process must be
_PIECE = 1 << 20


@dataclass(frozen=True)
class Made:
    """A commit that is on the Hub.

    Attributes:
        oid: its id.
        pr_url: of the pull request that proposes it, if one does.
        pr_revision: that one's reference.
    """

    oid: str
    pr_url: str | None = None
    pr_revision: str | None = None


def commit_there(
    api: Any,
    place: Destination,
    token: str,
    folder: Path,
    files: tuple[str, ...],
    stale: tuple[str, ...],
    revision: str | None = None,
) -> Made | None:
    """Return the newest commit of a branch if it holds all files, None if it does not.

    Args:
        api: a `huggingface_hub.HfApi`.
        place: where they belong.
        token: who asks.
        folder: what is published.
        files: names of its files.
        stale: names of files that must be gone.
        revision: another reference than the branch.
    """
    info = api.model_info(
        place.repo_id, revision=revision or place.revision, files_metadata=True, token=token
    )
    there = {file.rfilename: file for file in info.siblings or ()}
    if any(name in there for name in stale) or any(name not in there for name in files):
        return None
    same = all(_is_same(folder / name, there[name]) for name in files)
    return Made(str(info.sha)) if same else None


def proposal_there(
    api: Any,
    place: Destination,
    token: str,
    folder: Path,
    files: tuple[str, ...],
    stale: tuple[str, ...],
) -> Made | None:
    """Return the commit of an open pull request that holds all files, None if there is none.

    The arguments are those of `commit_there`.
    """
    requests = api.get_repo_discussions(
        place.repo_id, discussion_type="pull_request", discussion_status="open", token=token
    )
    for request in islice(requests, _REQUESTS):
        reference = f"refs/pr/{request.num}"
        made = commit_there(api, place, token, folder, files, stale, reference)
        if made is not None:
            url = f"{api.endpoint}/{place.repo_id}/discussions/{request.num}"
            return Made(made.oid, url, reference)
    return None


def _is_same(place: Path, there: Any) -> bool:
    """Whether a file of the Hub has the content of one here; large ones go by another digest."""
    large = getattr(there, "lfs", None)
    if large:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % place.stat().st_size, usedforsecurity=False)
    with place.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    found: str = large.sha256 if large else there.blob_id
    return digest.hexdigest() == found
