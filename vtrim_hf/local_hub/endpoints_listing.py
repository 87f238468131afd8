"""Endpoint that lists repositories: by tags, author, words of the name; page by page.

As on the Hub a row tells little unless more is asked for, so that a client that forgets to ask
notices here.
"""

from __future__ import annotations

from typing import Any

from .calls import Answer, Call, Route
from .endpoints_repositories import describe
from .refusals import RefusedError
from .repository import MAIN
from .safe_names import KINDS
from .service import Service

_SORT_KEYS = ("createdAt", "downloads", "lastModified", "likes", "trendingScore")
_ALWAYS = ("_id", "id", "modelId")
_SHORT = (
    *_ALWAYS,
    "createdAt",
    "downloads",
    "library_name",
    "likes",
    "pipeline_tag",
    "private",
    "tags",
    "trendingScore",
)
_FULL = (*_SHORT, "author", "cardData", "disabled", "gated", "lastModified", "sha", "siblings")


def listing(service: Service, call: Call) -> Answer:
    """List the repositories of a kind that this account may see and the query asks for."""
    kind = KINDS[call.arguments["kind"]]
    rows = []
    for repository in service.shelf.all(kind):
        if not service.may_see(call.account, repository):
            continue
        row = describe(repository, repository.state.branches[MAIN])
        if _is_asked_for(row, call):
            rows.append(row)
    key = call.parameter("sort")
    if key:
        if key not in _SORT_KEYS:
            raise RefusedError(400, f"sort is one of {', '.join(_SORT_KEYS)}, got {key!r}")
        rows.sort(
            key=lambda row: row.get(key) or 0, reverse=call.parameter("direction", "-1") != "1"
        )
    told = _told(call)
    rows = [{name: value for name, value in row.items() if name in told} for row in rows]
    return call.page(rows, service.page_size)


def _told(call: Call) -> frozenset[str]:
    """Return which facts the query asks for."""
    expanded = {name for text in call.query.get("expand", []) for name in text.split(",")}
    if expanded:
        return frozenset({*_ALWAYS, *expanded})
    told = {*(_FULL if call.is_set("full") else _SHORT)}
    return frozenset(told | ({"cardData"} if call.is_set("cardData") else set()))


def _is_asked_for(row: dict[str, Any], call: Call) -> bool:
    wanted = [tag for text in call.query.get("filter", []) for tag in text.split(",") if tag]
    words = [word for text in call.query.get("search", []) for word in text.lower().split()]
    gated = call.parameter("gated")
    return (
        all(tag in row["tags"] for tag in wanted)
        and call.parameter("author", row["author"]) == row["author"]
        and all(word in row["id"].lower() for word in words)
        and call.parameter("pipeline_tag", row.get("pipeline_tag", ""))
        == row.get("pipeline_tag", "")
        and (not gated or (gated.lower() == "true") == bool(row["gated"]))
    )


ROUTES = (Route("GET", "/api/{kind}", listing),)
