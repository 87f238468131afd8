"""From what a client calls a revision to a commit; branches and tags."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .refusals import RefusedError, no_revision
from .repository import MAIN, Repository
from .safe_names import check_reference

_FULL = re.compile(r"refs/(heads|tags|pr)/(.+)")
_SHA = re.compile(r"[0-9a-f]{40}")
_SHORT_SHA = re.compile(r"[0-9a-f]{7,39}")


def resolve_revision(repository: Repository, revision: str) -> str:
    """Return the commit that a branch, tag, `refs/...` or (shortened) commit id names."""
    state = repository.state
    if match := _FULL.fullmatch(revision):
        kind, name = match.groups()
        if kind == "pr":
            found = state.pulls.get(name, {}).get("head")
        else:
            found = (state.branches if kind == "heads" else state.tags).get(name)
    else:
        found = state.branches.get(revision) or state.tags.get(revision)
        if found is None and _SHA.fullmatch(revision) and repository.has_commit(revision):
            found = revision
        if found is None and _SHORT_SHA.fullmatch(revision):
            matches = repository.commit_named(revision)
            found = matches[0] if len(matches) == 1 else None
    if found is None:
        raise no_revision(revision)
    return str(found)


def branch_name(revision: str) -> str:
    return revision.removeprefix("refs/heads/")


def create_branch(repository: Repository, name: str, start: str | None) -> None:
    _check(name)
    with repository.lock:
        if name in repository.state.branches:
            raise RefusedError(409, f"Reference already exists: refs/heads/{name}")
        target = resolve_revision(repository, start or MAIN)
        repository.update(branches={**repository.state.branches, name: target})


def delete_branch(repository: Repository, name: str) -> None:
    with repository.lock:
        if name == MAIN:
            raise RefusedError(403, f"The branch {MAIN} cannot be deleted")
        if name not in repository.state.branches:
            raise no_revision(name)
        repository.update(branches=_without(repository.state.branches, name))


def create_tag(repository: Repository, name: str, revision: str) -> None:
    _check(name)
    with repository.lock:
        if name in repository.state.tags:
            raise RefusedError(409, f"Tag reference exists already: {name}")
        target = resolve_revision(repository, revision)
        repository.update(tags={**repository.state.tags, name: target})


def delete_tag(repository: Repository, name: str) -> None:
    with repository.lock:
        if name not in repository.state.tags:
            raise no_revision(name)
        repository.update(tags=_without(repository.state.tags, name))


def _check(name: str) -> None:
    try:
        check_reference(name)
    except ValueError as error:
        raise RefusedError(400, str(error)) from error


def _without(references: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: sha for key, sha in references.items() if key != name}
