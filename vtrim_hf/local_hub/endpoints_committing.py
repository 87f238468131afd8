"""Endpoints that change a repository: how to upload, commit, branches and tags."""

from __future__ import annotations

import base64
import binascii
import fnmatch
from typing import Any

from .calls import Answer, Call, Route, repository_url
from .commit_changes import apply_change, read_change
from .pull_requests import open_pull
from .refusals import RefusedError, no_revision
from .repository import Repository
from .revisions import (
    branch_name,
    create_branch,
    create_tag,
    delete_branch,
    delete_tag,
    resolve_revision,
)
from .service import Service

LARGE_SUFFIXES = (
    ".safetensors", ".bin", ".pt", ".pth", ".npy", ".npz", ".arrow", ".parquet", ".gz", ".zip",
    ".model", ".gguf", ".msgpack",
)  # fmt: skip
LARGE_FROM = 10 << 20
"""Bytes from which on any file counts as large."""

_PULL = "refs/pr/"


def preupload(service: Service, call: Call) -> Answer:
    """Say for each file whether it goes by LFS or within the commit, and what is there now."""
    repository = _target(service, call)
    commit = repository.commit(resolve_revision(repository, call.arguments["rev"]))
    asked = call.json()
    ignored = [line.strip() for line in str(asked.get("gitIgnore", "")).splitlines()]
    ignored = [line for line in ignored if line and not line.startswith("#")]
    rows = []
    for file in asked.get("files", []):
        path = str(file.get("path"))
        there = commit.tree.get(path)
        rows.append(
            {
                "path": path,
                "uploadMode": "lfs" if _is_large(service, path, file) else "regular",
                "shouldIgnore": any(fnmatch.fnmatch(path, pattern) for pattern in ignored),
                "oid": there.etag if there else None,
            }
        )
    return Answer({"files": rows})


def commit(service: Service, call: Call) -> Answer:
    """Make one commit on a branch or pull request, or on a new pull request.

    Content is stored first, without a lock; then the newest commit is looked at and the branch
    moved under the lock, so of two writers with the same `parentCommit` one is refused.
    """
    repository = _target(service, call)
    author = service.check_may_propose(call.account).name
    new_pull, revision = call.is_set("create_pr"), branch_name(call.arguments["rev"])
    change = read_change(call.body.lines(), service.objects, service.large_entry)
    answer: dict[str, Any] = {"success": True, "hookOutput": ""}
    url = repository_url(call, repository.kind, repository.id)
    with repository.lock:
        if not revision.startswith(_PULL) and revision not in repository.state.branches:
            raise no_revision(revision)  # a tag or a commit cannot grow
        newest = resolve_revision(repository, revision)
        if new_pull and change.parent:
            newest = resolve_revision(repository, change.parent)  # it starts from there
        if change.parent and not newest.startswith(change.parent):
            raise RefusedError(412, "A commit has happened since. Please refresh and try again.")
        tree = apply_change(repository.commit(newest).tree, change)
        made = repository.save_commit(newest, change.title, change.message, author, tree)
        if new_pull:
            number = open_pull(
                repository,
                title=change.title,
                text=change.message,
                base=revision,
                author=author,
                start=newest,
                head=made.sha,
            )
            answer["pullRequestUrl"] = f"{url}/discussions/{number}"
        else:
            _advance(repository, revision, made.sha)
    return Answer(answer | {"commitOid": made.sha, "commitUrl": f"{url}/commit/{made.sha}"})


def branch(service: Service, call: Call) -> Answer:
    repository = service.writable(call)
    if call.method == "DELETE":
        delete_branch(repository, call.arguments["name"])
    else:
        create_branch(repository, call.arguments["name"], call.json().get("startingPoint"))
    return Answer()


def tag(service: Service, call: Call) -> Answer:
    repository = service.writable(call)
    if call.method == "DELETE":
        delete_tag(repository, call.arguments["name"])
    else:
        create_tag(repository, str(call.json().get("tag")), call.arguments["name"])
    return Answer()


def _target(service: Service, call: Call) -> Repository:
    """Return the repository, if this account may commit to this revision of it."""
    repository = service.readable(call)
    number = call.arguments["rev"].removeprefix(_PULL)
    pull = repository.state.pulls.get(number) if number != call.arguments["rev"] else None
    if pull is not None and pull["status"] in ("merged", "closed"):
        raise RefusedError(403, f"Pull request {number} is {pull['status']}: open another")
    own = pull is not None and call.account and pull["author"]["name"] == call.account.name
    if call.is_set("create_pr") or own:
        service.check_may_propose(call.account)
    else:
        service.check_may_write(call.account, repository.namespace)
    return repository


def _advance(repository: Repository, revision: str, sha: str) -> None:
    state = repository.state
    if not revision.startswith(_PULL):
        repository.update(branches={**state.branches, revision: sha})
        return
    number = revision.removeprefix(_PULL)
    repository.update(pulls={**state.pulls, number: {**state.pulls[number], "head": sha}})


def _is_large(service: Service, path: str, file: dict[str, Any]) -> bool:
    try:
        sample = base64.b64decode(file.get("sample") or "")
    except (binascii.Error, ValueError) as error:
        raise RefusedError(400, f"the sample of {path!r} is not base64: {error}") from error
    large = path.endswith(LARGE_SUFFIXES) or int(file.get("size") or 0) >= LARGE_FROM
    return (large or b"\0" in sample) and not service.regular_only


ROUTES = (
    Route("POST", "/api/{kind}/{repo}/preupload/{rev}", preupload),
    Route("POST", "/api/{kind}/{repo}/commit/{rev}", commit),
    Route("POST|DELETE", "/api/{kind}/{repo}/branch/{name}", branch),
    Route("POST|DELETE", "/api/{kind}/{repo}/tag/{name}", tag),
)
