"""Pages for people: what a browser shows at the addresses that clients print.

Who may see what is as in the API. All that users wrote is escaped, and the pages hold no script.
"""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from .calls import Answer, Call, Route
from .pull_requests import pull_of
from .refusals import RefusedError
from .repository import MAIN, Repository
from .repository_shelf import PLURALS
from .revisions import resolve_revision
from .service import Service

LONGEST_CARD = 1 << 20
"""Bytes of a card that are shown."""

_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 16px sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
pre {{ white-space: pre-wrap; border: 1px solid #ccc; padding: 1em }}</style></head>
<body>
{body}
</body></html>
"""


def shelf(service: Service, call: Call) -> Answer:
    """List the repositories that this account may see."""
    parts = ["<h1>Local hub</h1>"]
    for kind, plural in PLURALS.items():
        seen = [one for one in service.shelf.all(kind) if service.may_see(call.account, one)]
        if seen:
            rows = [f"<li>{_link(_address(one), one.id)}</li>" for one in seen]
            parts += [f"<h2>{plural.capitalize()}</h2>", "<ul>", *rows, "</ul>"]
    if len(parts) == 1:
        parts.append("<p>There is no repository that you may see yet.</p>")
    return _page(call, "Local hub", parts)


def repository(service: Service, call: Call) -> Answer:
    """Show a repository at one commit: its files, and its card as text."""
    found = service.readable(call)
    revision = call.arguments.get("rev", MAIN)
    if "number" in call.arguments:
        number = call.arguments["number"]
        revision = f"refs/pr/{number}" if pull_of(found, number)["isPullRequest"] else MAIN
    sha = resolve_revision(found, revision)
    tree = found.commit(sha).tree
    about = f"{found.kind}, {'private' if found.state.private else 'public'}, {revision} at {sha}"
    parts = [f"<h1>{escape(found.id)}</h1>", f"<p>{escape(about)}</p>", "<h2>Files</h2>", "<ul>"]
    for path, entry in sorted(tree.items()):
        place = f"{_address(found)}/resolve/{sha}/{quote(path)}"
        parts.append(f"<li>{_link(place, path)} ({entry.size:,} bytes)</li>")
    parts += ["</ul>", *_card(service, call, found, sha), f"<p>{_link('/', 'All')}</p>"]
    return _page(call, found.id, parts)


def _card(service: Service, call: Call, found: Repository, sha: str) -> list[str]:
    entry = found.commit(sha).tree.get("README.md")
    if entry is None or entry.size > LONGEST_CARD:
        return []
    try:
        service.downloadable(call)
    except RefusedError as refusal:  # a gated repository tells its facts, not its content
        return [f"<p>{escape(str(refusal))}</p>"]
    service.bring_out(entry.sha256)
    text = service.objects.read(entry.sha256).decode("utf-8", "replace")
    return ["<h2>README.md</h2>", f"<pre>{escape(text)}</pre>"]


def _address(found: Repository) -> str:
    return f"/{'' if found.kind == 'model' else PLURALS[found.kind] + '/'}{quote(found.id)}"


def _link(address: str, text: str) -> str:
    return f'<a href="{escape(address)}">{escape(text)}</a>'


def _page(call: Call, title: str, parts: list[str]) -> Answer:
    page = _PAGE.format(title=escape(title), body="\n".join(parts)).encode("utf-8")
    headers = {**_HEADERS, "Content-Length": str(len(page))}
    return Answer(b"" if call.method == "HEAD" else page, headers=headers)


# `api` is no namespace: what the API does not have is no page either.
_PLACE = "/(?!api/){plural}?{repo}"
ROUTES = (
    Route("GET|HEAD", "/", shelf),
    Route("GET|HEAD", _PLACE, repository),
    # Clients do not escape the slashes of a branch's name here.
    Route("GET|HEAD", _PLACE + "/(?:tree|commit)/(?P<rev>.+)", repository),
    Route("GET|HEAD", _PLACE + "/discussions/{number}", repository),
)
