"""Endpoints: who am I; create, delete, move, set up and describe repositories; check a card."""

from __future__ import annotations

from typing import Any

from .calls import Answer, Call, Route, repository_url
from .card_checks import card_of, check_card, tags_of
from .refusals import RefusedError, no_login
from .repository import MAIN, Repository
from .revisions import resolve_revision
from .service import Service


def whoami(_service: Service, call: Call) -> Answer:
    if call.account is None:
        raise no_login()
    token = {"displayName": "local", "role": call.account.role}
    return Answer(
        {
            "type": "user",
            "id": call.account.name,
            "name": call.account.name,
            "fullname": call.account.name,
            "isPro": False,
            "canPay": False,
            "orgs": [{"type": "org", "name": name} for name in call.account.organizations],
            "auth": {"type": "access_token", "accessToken": token},
        }
    )


def validate_yaml(_service: Service, call: Call) -> Answer:
    errors, warnings = check_card(str(call.json().get("content", "")))
    facts = {
        "errors": [{"message": text} for text in errors],
        "warnings": [{"message": text} for text in warnings],
    }
    return Answer(facts | ({"error": "; ".join(errors)} if errors else {}), 400 if errors else 200)


def create(service: Service, call: Call) -> Answer:
    asked = call.json()
    account = call.account
    namespace = asked.get("organization") or (account.name if account else "")
    account = service.check_may_write(account, str(namespace))
    kind, repo_id = str(asked.get("type") or "model"), f"{namespace}/{asked.get('name')}"
    try:
        private = _private(asked, default=False)
        made = service.shelf.create(kind, repo_id, author=account.name, private=private)
    except RefusedError as refusal:
        if refusal.status == 409:
            refusal.facts["url"] = repository_url(
                call, kind, repo_id
            )  # the client's exist_ok reads it
        raise
    return Answer({"url": repository_url(call, kind, repo_id), "name": made.id, "id": made.id})


def delete(service: Service, call: Call) -> Answer:
    asked = call.json()
    namespace = asked.get("organization") or (call.account.name if call.account else "")
    kind, repo_id = str(asked.get("type") or "model"), f"{namespace}/{asked.get('name')}"
    repository = service.named(kind, repo_id, call.account)
    service.check_may_write(call.account, repository.namespace)
    service.shelf.delete(repository)
    return Answer()


def move(service: Service, call: Call) -> Answer:
    asked = call.json()
    kind = str(asked.get("type") or "model")
    repository = service.named(kind, str(asked.get("fromRepo")), call.account)
    target = str(asked.get("toRepo"))
    for namespace in (repository.namespace, target.split("/")[0]):
        service.check_may_write(call.account, namespace)
    return Answer({"url": repository_url(call, kind, service.shelf.move(repository, target).id)})


def settings(service: Service, call: Call) -> Answer:
    repository, asked = service.writable(call), call.json()
    gated = asked.get("gated", repository.state.gated)
    if gated not in (False, "auto", "manual"):
        raise RefusedError(400, f"gated is false, auto or manual, got {gated!r}")
    private = _private(asked, default=repository.state.private)
    repository.update(gated=gated, private=private)
    return Answer({"private": private, "gated": gated})


def info(service: Service, call: Call) -> Answer:
    repository = service.readable(call)
    sha = resolve_revision(repository, call.arguments.get("rev", MAIN))
    return Answer(describe(repository, sha, blobs=call.is_set("blobs")))


def auth_check(service: Service, call: Call) -> Answer:
    service.downloadable(call)
    return Answer()


def describe(repository: Repository, sha: str, *, blobs: bool = False) -> dict[str, Any]:
    """Return what the Hub tells about a repository at one commit."""
    commit, state = repository.commit(sha), repository.state
    card = card_of(repository.read(sha, "README.md"))
    siblings: list[dict[str, Any]] = []
    for path, entry in sorted(commit.tree.items()):
        row: dict[str, Any] = {"rfilename": path}
        if blobs:
            row |= {"size": entry.size, "blobId": entry.oid}
            if entry.large:
                row["lfs"] = {"sha256": entry.sha256, "size": entry.size, "pointerSize": 130}
        siblings.append(row)
    facts = {
        "_id": repository.id,
        "id": repository.id,
        "author": repository.namespace,
        "sha": sha,
        "createdAt": state.created,
        "lastModified": commit.date,
        "private": state.private,
        "gated": state.gated,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "trendingScore": 0,
        "tags": tags_of(card, commit.tree),
        "cardData": card,
        "siblings": siblings,
    }
    if repository.kind == "model":
        facts["modelId"] = repository.id
    return facts | {key: card[key] for key in ("library_name", "pipeline_tag") if key in card}


def _private(asked: dict[str, Any], *, default: bool) -> bool:
    if "visibility" in asked:
        return bool(asked["visibility"] == "private")
    return bool(asked.get("private", default))


ROUTES = (
    Route("GET", "/api/whoami-v2", whoami),
    Route("POST", "/api/validate-yaml", validate_yaml),
    Route("POST", "/api/repos/create", create),
    Route("DELETE", "/api/repos/delete", delete),
    Route("POST", "/api/repos/move", move),
    Route("GET", "/api/{kind}/{repo}", info),
    Route("GET", "/api/{kind}/{repo}/revision/{rev}", info),
    Route("GET", "/api/{kind}/{repo}/auth-check", auth_check),
    Route("PUT", "/api/{kind}/{repo}/settings", settings),
)
