"""Endpoints for pull requests and discussions."""

from __future__ import annotations

from .calls import Answer, Call, Route
from .pull_requests import (
    comment_on,
    merge_pull,
    open_pull,
    pull_details,
    pull_of,
    pull_summary,
    set_status,
)
from .refusals import no_revision
from .repository import MAIN
from .service import Service


def start(service: Service, call: Call) -> Answer:
    repository = service.readable(call)
    author = service.check_may_propose(call.account).name
    asked = call.json()
    base = str(asked.get("base") or MAIN).removeprefix("refs/heads/")
    if base not in repository.state.branches:
        raise no_revision(base)
    number = open_pull(
        repository,
        title=str(asked.get("title")),
        text=str(asked.get("description") or ""),
        base=base,
        author=author,
        pull_request=bool(asked.get("pullRequest")),
    )
    return Answer({"num": number, "pullRequest": bool(asked.get("pullRequest"))})


def list_all(service: Service, call: Call) -> Answer:
    """List discussions, newest first; the client stops when it has `count` of them."""
    repository = service.readable(call)
    rows = [pull_summary(repository, pull) for pull in repository.state.pulls.values()][::-1]
    kind, status = call.parameter("type"), call.parameter("status")
    if kind in ("pull_request", "discussion"):
        rows = [row for row in rows if row["isPullRequest"] == (kind == "pull_request")]
    if status in ("open", "closed"):
        rows = [row for row in rows if (row["status"] in ("open", "draft")) == (status == "open")]
    if author := call.parameter("author"):
        rows = [row for row in rows if row["author"]["name"] == author]
    page = int(call.parameter("p", "0") or 0)
    size = service.page_size
    first = page * size
    return Answer({"discussions": rows[first : first + size], "count": len(rows), "start": first})


def details(service: Service, call: Call) -> Answer:
    repository = service.readable(call)
    return Answer(pull_details(repository, pull_of(repository, call.arguments["number"])))


def merge(service: Service, call: Call) -> Answer:
    repository = service.writable(call)
    author = service.check_may_propose(call.account).name
    event = merge_pull(repository, call.arguments["number"], author)
    return Answer({"newStatus": event})


def status(service: Service, call: Call) -> Answer:
    repository = service.readable(call)
    author = service.check_may_propose(call.account).name
    if pull_of(repository, call.arguments["number"])["author"]["name"] != author:
        repository = service.writable(call)
    wanted = str(call.json().get("status"))
    return Answer({"newStatus": set_status(repository, call.arguments["number"], author, wanted)})


def comment(service: Service, call: Call) -> Answer:
    repository = service.readable(call)
    author = service.check_may_propose(call.account).name
    text = str(call.json().get("comment", ""))
    return Answer({"newMessage": comment_on(repository, call.arguments["number"], author, text)})


_ALL = "/api/{kind}/{repo}/discussions"

ROUTES = (
    Route("GET", _ALL, list_all),
    Route("POST", _ALL, start),
    Route("GET", _ALL + "/{number}", details),
    Route("POST", _ALL + "/{number}/merge", merge),
    Route("POST", _ALL + "/{number}/status", status),
    Route("POST", _ALL + "/{number}/comment", comment),
)
