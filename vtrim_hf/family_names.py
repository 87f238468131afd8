"""What the repositories and branches of a family are called, and its index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .hub_account import MAIN, check_name, check_reference, has_no_room

REPOSITORIES, REVISIONS = "repositories", "revisions"
LAYOUTS = (REPOSITORIES, REVISIONS)
PLACE = "{domain}"
"""Stands for the domain's name in that of a repository."""


def layout_of(layout: str | None, repo_id: Any) -> str:
    """Return how a family lies on the Hub.

    Args:
        layout: what is asked for; None for what the name says.
        repo_id: the name, with `{domain}` in it for a repository a domain.

    Raises:
        ValueError: if the two do not go together, or mean nothing.
    """
    if not isinstance(repo_id, str):
        raise ValueError(f"repo_id must be a text, NAMESPACE/NAME, got {repo_id!r:.80}")
    has_place = PLACE in repo_id
    layout = layout or (REPOSITORIES if has_place else REVISIONS)
    if layout == "subfolders":
        raise ValueError(
            "drafts cannot be published in subfolders of one repository: Transformers does not "
            "find a draft's code there, and a repository has one card and one licence; use "
            "layout='revisions' for one repository with a branch a domain, or "
            "layout='repositories'"
        )
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r:.80}")
    if has_place != (layout == REPOSITORIES):
        rule = "needs {domain} in" if layout == REPOSITORIES else "takes no {domain} in"
        example = "me/smollm2-{domain}-draft" if layout == REPOSITORIES else "me/smollm2-drafts"
        raise ValueError(
            f"layout={layout!r} {rule} the repository's name, got {repo_id!r:.120}: write e.g. "
            f"{example!r}"
        )
    return layout


def place_of(layout: str, repo_id: str, domain: str) -> tuple[str, str | None]:
    """Return repository and branch of a domain's draft; None is main.

    Raises:
        ValueError: for a name that the Hub does not take.
    """
    if layout == REPOSITORIES:
        name = repo_id.replace(PLACE, domain)
        check_name(name)
        return name, None
    check_name(repo_id)
    check_reference(domain, "revision")
    if domain == MAIN:
        raise ValueError(
            "a domain called 'main' can have no branch, the index lies there: rename its folder, "
            "or use layout='repositories'"
        )
    return repo_id, domain


def check_apart(places: Mapping[str, tuple[str, str | None]]) -> None:
    """Raise if two domains' drafts cannot lie beside each other.

    The Hub takes names that differ in capitals for one repository, and for git a branch `a`
    leaves no room for `a/b`.

    Args:
        places: repository and branch by domain.

    Raises:
        ValueError: naming the two.
    """
    seen: dict[str, str] = {}
    for domain, (repo_id, branch) in places.items():
        name = repo_id.casefold() if branch is None else branch
        for other, of in seen.items():
            if name == other or (branch is not None and has_no_room(name, other)):
                kind = "repositories" if branch is None else "branches"
                raise ValueError(
                    f"the drafts of {of!r} and {domain!r} would get {kind} that the Hub cannot "
                    "hold beside each other: rename one of the domains"
                )
        seen[name] = domain


def index_name(layout: str, repo_id: str, index: Any, taken: list[str]) -> str | None:
    """Return the repository of the index, None for none.

    Args:
        layout: of the family.
        repo_id: of the family.
        index: what is asked for; None or True for its usual name, False for none.
        taken: repositories of the drafts.

    Raises:
        TypeError: if `index` is no name.
        ValueError: for a name that the Hub does not take, or that is a draft's.
    """
    if not (index is None or isinstance(index, bool | str)):
        raise TypeError(
            f"index must be NAMESPACE/NAME, or False for none, got {index!r:.80}: leave it out "
            "for its usual name"
        )
    if layout == REVISIONS:
        if index not in (None, True, repo_id):
            raise ValueError(
                "with layout='revisions' the index lies on the repository's main, which is how "
                f"the branches are found: leave index out, got {index!r:.80}"
            )
        return repo_id
    if index is False:
        return None
    name = index if isinstance(index, str) else repo_id.replace(PLACE, "family")
    check_name(name)
    if name.casefold() in map(str.casefold, taken):
        raise ValueError(f"the index needs a name of its own, {name} is a draft's: pass index=")
    return name
