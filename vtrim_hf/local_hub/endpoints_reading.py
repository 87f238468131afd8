"""Endpoints that read a repository: folders, files, history, references, content."""

from __future__ import annotations

import re
from email.utils import formatdate
from typing import Any

from .calls import Answer, Call, FilePart, Route
from .object_store import git_blob_id
from .refusals import RefusedError, no_entry
from .repository import Commit, Entry, Repository
from .revisions import resolve_revision
from .service import Service


def tree(service: Service, call: Call) -> Answer:
    repository = service.readable(call)
    sha = resolve_revision(repository, call.arguments["rev"])
    commit = repository.commit(sha)
    folder = call.arguments.get("path", "").strip("/")
    prefix = f"{folder}/" if folder else ""
    files: list[dict[str, Any]] = []
    folders: set[str] = set()
    for path, entry in sorted(commit.tree.items()):
        if not path.startswith(prefix):
            continue
        above = path[len(prefix) :].split("/")[:-1]
        depth = len(above) if call.is_set("recursive") else min(1, len(above))
        folders |= {prefix + "/".join(above[: end + 1]) for end in range(depth)}
        if call.is_set("recursive") or not above:
            files.append(_file(service, repository, commit, path, entry, call.is_set("expand")))
    if folder and not files and not folders:
        raise no_entry(folder, sha)
    rows = [
        {"type": "directory", "path": path, "oid": git_blob_id(path.encode()), "size": 0}
        for path in sorted(folders)
    ]
    return call.page(rows + files, service.page_size)


def paths_info(service: Service, call: Call) -> Answer:
    repository = service.readable(call)
    commit = repository.commit(resolve_revision(repository, call.arguments["rev"]))
    form = call.form()
    paths = form.get("paths", [])
    expand = str(form.get("expand", [""])).lower().find("true") >= 0
    rows: list[dict[str, Any]] = []
    for path in [paths] if isinstance(paths, str) else paths:
        if entry := commit.tree.get(path):
            rows.append(_file(service, repository, commit, path, entry, expand))
        elif any(file.startswith(f"{path.rstrip('/')}/") for file in commit.tree):
            oid = git_blob_id(path.encode())
            rows.append({"type": "directory", "path": path.rstrip("/"), "oid": oid, "size": 0})
    return Answer(rows)


def refs(service: Service, call: Call) -> Answer:
    state = service.readable(call).state
    pulls = {number: pull["head"] for number, pull in state.pulls.items() if pull["isPullRequest"]}
    groups = {"branches": ("heads", state.branches), "tags": ("tags", state.tags)}
    if call.is_set("include_prs"):
        groups["pullRequests"] = ("pr", pulls)
    rows = {
        group: [
            {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": sha}
            for name, sha in sorted(references.items())
        ]
        for group, (kind, references) in groups.items()
    }
    return Answer({**rows, "converts": []})


def commits(service: Service, call: Call) -> Answer:
    repository = service.readable(call)
    rows = [
        {
            "id": commit.sha,
            "title": commit.title,
            "message": commit.message,
            "date": commit.date,
            "authors": [{"user": commit.author}],
        }
        for commit in repository.history(resolve_revision(repository, call.arguments["rev"]))
    ]
    return call.page(rows, service.page_size)


def content(service: Service, call: Call) -> Answer:
    """Answer with a file, or its facts for HEAD; ranges and `If-None-Match` are heeded."""
    repository = service.downloadable(call)
    sha = resolve_revision(repository, call.arguments["rev"])
    path = call.arguments["path"]
    entry = repository.commit(sha).tree.get(path)
    if entry is None:
        raise no_entry(path, sha)
    headers = {
        "ETag": f'"{entry.etag}"',
        "X-Repo-Commit": sha,
        "Accept-Ranges": "bytes",
        "Last-Modified": formatdate(usegmt=True),
        "Content-Type": "application/octet-stream",
    }
    if entry.large:
        headers |= {"X-Linked-Etag": f'"{entry.etag}"', "X-Linked-Size": str(entry.size)}
        if service.xet is not None and (file := service.xet.find(entry.sha256)):
            route = f"{call.base}/api/{repository.kind}s/{repository.id}/xet-read-token/{sha}"
            headers |= {
                "X-Xet-Hash": file.hash,
                "X-Xet-Refresh-Route": route,
                "Link": f'<{route}>; rel="xet-auth"',
            }
    known = [
        tag.strip().removeprefix("W/")
        for tag in (call.headers.get("If-None-Match") or "").split(",")
    ]
    if headers["ETag"] in known or known == ["*"]:
        return Answer(b"", 304, headers)
    first, length = _range(call.headers.get("Range") or "", entry.size)
    status = 200
    if (first, length) != (0, entry.size) or call.headers.get("Range"):
        status = 206
        headers["Content-Range"] = f"bytes {first}-{first + length - 1}/{entry.size}"
    if call.method == "HEAD":
        headers["Content-Length"] = str(length)
        return Answer(b"", status, headers)
    service.bring_out(entry.sha256)
    return Answer(FilePart(service.objects.path(entry.sha256), first, length), status, headers)


def _range(header: str, size: int) -> tuple[int, int]:
    """Return the first byte and the length that a `Range` header asks for."""
    match = re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", header)
    if match is None or not any(match.groups()):
        if header:
            raise RefusedError(416, f"one range 'bytes=FIRST-LAST' is served, got {header!r}")
        return 0, size
    if match[1]:
        first = int(match[1])
        last = min(int(match[2]), size - 1) if match[2] else size - 1
    else:
        first, last = max(size - int(match[2]), 0), size - 1
    if first >= size or last < first:
        headers = {"Content-Range": f"bytes */{size}"}
        raise RefusedError(
            416, f"the file has {size} bytes, asked for {header!r}", headers=headers
        )
    return first, last - first + 1


def _file(
    service: Service, repository: Repository, commit: Commit, path: str, entry: Entry, expand: bool
) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "file", "path": path, "size": entry.size, "oid": entry.oid}
    if entry.large:
        row["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": 130}
        if service.xet is not None and (file := service.xet.find(entry.sha256)):
            row["xetHash"] = file.hash
    if expand:
        last = commit
        for older in repository.history(commit.parent):
            if older.tree.get(path) != entry:
                break
            last = older
        row["lastCommit"] = {"id": last.sha, "title": last.title, "date": last.date}
    return row


ROUTES = (
    Route("GET", "/api/{kind}/{repo}/tree/{rev}", tree),
    Route("GET", "/api/{kind}/{repo}/tree/{rev}/{path}", tree),
    Route("POST", "/api/{kind}/{repo}/paths-info/{rev}", paths_info),
    Route("GET", "/api/{kind}/{repo}/refs", refs),
    Route("GET", "/api/{kind}/{repo}/commits/{rev}", commits),
    Route("GET|HEAD", "/{plural}?{repo}/resolve/{rev}/{path}", content),
)
