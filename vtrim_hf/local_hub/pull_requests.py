"""Pull requests and discussions: open, commit to, merge, close, comment."""

from __future__ import annotations

from typing import Any

from .refusals import RefusedError
from .repository import Repository, Tree, check_tree, now

SHOWN = ("title", "num", "author", "createdAt", "status", "isPullRequest")


def open_pull(
    repository: Repository,
    *,
    title: str,
    text: str,
    base: str,
    author: str,
    start: str | None = None,
    head: str | None = None,
    pull_request: bool = True,
) -> int:
    """Open a pull request onto the branch `base`, or a discussion; return its number.

    Without a `head` commit it is a draft that starts where `base` stands.
    """
    with repository.lock:
        start = start or repository.state.branches[base]
        number = len(repository.state.pulls) + 1
        pull = {
            "num": number,
            "title": title,
            "author": {"name": author},
            "createdAt": now(),
            "status": "draft" if head is None and pull_request else "open",
            "isPullRequest": pull_request,
            "base": base,
            "start": start,
            "head": head or start,
            "merged": None,
            "events": [],
        }
        pull["events"] = [_event(pull, author, "comment", _comment(text))]
        repository.update(pulls={**repository.state.pulls, str(number): pull})
        return number


def pull_of(repository: Repository, number: str) -> dict[str, Any]:
    pull = repository.state.pulls.get(number)
    if pull is None:
        raise RefusedError(404, f"Discussion {number} not found")
    return pull


def pull_summary(repository: Repository, pull: dict[str, Any]) -> dict[str, Any]:
    where = {"name": repository.id, "type": repository.kind}
    return {**{key: pull[key] for key in SHOWN}, "repo": where}


def pull_details(repository: Repository, pull: dict[str, Any]) -> dict[str, Any]:
    details = {**pull_summary(repository, pull), "events": pull["events"]}
    if pull["isPullRequest"]:
        changes = {"base": f"refs/heads/{pull['base']}"}
        if pull["merged"]:
            changes["mergeCommitId"] = pull["merged"]
        details |= {"changes": changes, "diff": "", "filesWithConflicts": []}
        if not pull["merged"] and pull["base"] in repository.state.branches:
            details["filesWithConflicts"] = _merge(repository, pull)[1]
    return details


def comment_on(repository: Repository, number: str, author: str, text: str) -> dict[str, Any]:
    with repository.lock:
        pull = pull_of(repository, number)
        return _record(repository, pull, author, "comment", _comment(text))


def set_status(repository: Repository, number: str, author: str, status: str) -> dict[str, Any]:
    if status not in ("open", "closed", "draft"):
        raise RefusedError(400, f"status is open, closed or draft, got {status!r}")
    with repository.lock:
        pull = pull_of(repository, number)
        if pull["status"] == "merged":
            raise RefusedError(400, "This pull request is merged already")
        return _record(
            repository, pull, author, "status-change", {"status": status}, status=status
        )


def merge_pull(repository: Repository, number: str, author: str) -> dict[str, Any]:
    """Bring what the pull request changed into its base branch, in one commit."""
    with repository.lock:
        pull = pull_of(repository, number)
        if not pull["isPullRequest"] or pull["status"] not in ("open", "draft"):
            raise RefusedError(
                400, f"Discussion {number} is {pull['status']} and cannot be merged"
            )
        base = repository.state.branches.get(pull["base"])
        if base is None:
            raise RefusedError(400, f"The branch {pull['base']} is gone")
        tree, conflicts = _merge(repository, pull)
        if conflicts:
            raise RefusedError(409, f"Merge conflicts in {', '.join(conflicts)}")
        check_tree(tree)
        title = f"{pull['title']} (#{number})"
        commit = repository.save_commit(base, title, "", author, tree)
        event = _event(pull, author, "status-change", {"status": "merged"})
        events = [*pull["events"], event]
        merged = {**pull, "status": "merged", "merged": commit.sha, "events": events}
        repository.update(
            branches={**repository.state.branches, pull["base"]: commit.sha},
            pulls={**repository.state.pulls, number: merged},
        )
        return event


def _merge(repository: Repository, pull: dict[str, Any]) -> tuple[Tree, list[str]]:
    """Return the merged tree, and the paths that both sides changed, each in its own way."""
    start = repository.commit(pull["start"]).tree
    ours = repository.commit(repository.state.branches[pull["base"]]).tree
    theirs = repository.commit(pull["head"]).tree
    changed = {path for path in {*start, *theirs} if start.get(path) != theirs.get(path)}
    conflicts = sorted(
        path
        for path in changed
        if ours.get(path) != start.get(path) and ours.get(path) != theirs.get(path)
    )
    kept = {path: entry for path, entry in ours.items() if path not in changed}
    return kept | {path: theirs[path] for path in changed if path in theirs}, conflicts


def _record(
    repository: Repository, pull: dict[str, Any], author: str, kind: str, data: Any, **facts: Any
) -> dict[str, Any]:
    event = _event(pull, author, kind, data)
    after = {**pull, **facts, "events": [*pull["events"], event]}
    repository.update(pulls={**repository.state.pulls, str(pull["num"]): after})
    return event


def _event(pull: dict[str, Any], author: str, kind: str, data: Any) -> dict[str, Any]:
    number = str(len(pull["events"]) + 1)
    return {
        "id": number, "type": kind, "createdAt": now(), "author": {"name": author}, "data": data
    }  # fmt: skip


def _comment(text: str) -> dict[str, Any]:
    return {"edited": False, "hidden": False, "latest": {"raw": text}}
