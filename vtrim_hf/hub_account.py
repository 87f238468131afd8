"""Where a draft goes: the name, who publishes, what is there. Nothing is changed here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .hub_errors import PublishError, explained

MAIN = "main"

NOT_LISTED = (
    "no catalogue lists it: a branch is found only beside a family's index on main; load it with "
    "from_pretrained(repo_id, revision=...)"
)
"""The last step of a draft on a branch whose main holds nothing."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
# What git takes for no name: blanks, signs with a meaning of their own, parts that are files.
_NO_REFERENCE = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|//|@\{|(?:^|/)\.|\.lock(?:/|$)|^[-/]|[/.]$|^@?$|^HEAD$"
)
_LONGEST_REFERENCE = 250
_WITHOUT_CONTENT = frozenset({".gitattributes"})


@dataclass(frozen=True)
class Destination:
    """A repository as it is before a draft is published there.

    Attributes:
        repo_id: `NAMESPACE/NAME`.
        revision: the branch that gets the commit.
        exists: whether the repository is there.
        branch_exists: whether the branch is there.
        head: commit of the branch; where there is none yet the repository's first one, which a
            new branch starts from; None without a repository.
        files: what that commit holds.
        main_files: what main holds.
        tags: names of its tags.
        private: whether only some may see it.
    """

    repo_id: str
    revision: str
    exists: bool = False
    branch_exists: bool = False
    head: str | None = None
    files: tuple[str, ...] = ()
    main_files: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    private: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing was published yet, as an interrupted first time leaves it.

        A branch that is not there yet comes into a repository that may be somebody's.
        """
        there = self.files if self.branch_exists else (*self.files, *self.main_files)
        return set(there) <= _WITHOUT_CONTENT


def check_name(repo_id: Any) -> None:
    """Raise unless a name is one that the Hub takes for a repository.

    Raises:
        ValueError: naming the rule.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    rule = "a draft is published as NAMESPACE/NAME, the namespace being your user or organization"
    if not isinstance(repo_id, str) or repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise ValueError(f"{rule}, got {repo_id!r:.120}: write e.g. 'me/my-sql-draft'")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"{rule}: {error}") from error


def check_reference(name: Any, what: str) -> None:
    """Raise unless git takes a name for a branch or a tag.

    Args:
        name: the name; None passes.
        what: the argument's name, `"revision"` or `"tag"`.

    Raises:
        ValueError: naming the rule.
    """
    if name is None:
        return
    kind = "branch" if what == "revision" else "tag"
    if not isinstance(name, str) or _COMMIT.fullmatch(name) or name.startswith("refs/"):
        raise ValueError(
            f"{what} must be the name of a {kind}, got {name!r:.80}: a commit cannot be changed, "
            "and create_pr=True opens a pull request"
        )
    if len(name) > _LONGEST_REFERENCE or not name.isprintable() or _NO_REFERENCE.search(name):
        raise ValueError(
            f"{what} must be a name that git takes for a {kind}: up to {_LONGEST_REFERENCE} "
            "characters, no blanks, none of ~^:?*[\\, no '..', '//' or '@{', no part that starts "
            f"with '.' or ends with '.lock', no '-' first, got {name!r:.80}: write e.g. 'v1.0'"
        )


def check_login(api: Any, token: str | bool | None, repo_id: str, *, create_pr: bool) -> str:
    """Find out who publishes, and raise unless they may write there.

    Args:
        api: a `huggingface_hub.HfApi`.
        token: as the caller gave it.
        repo_id: where to.
        create_pr: anyone who may read may propose.

    Returns:
        The token to use.

    Raises:
        PublishError: if there is no token, it is not valid, or it may not write there.
    """
    from huggingface_hub import get_token

    found = token if isinstance(token, str) else None if token is False else get_token()
    if not found:
        raise PublishError(
            f"nobody is logged in to {api.endpoint}",
            "log in with `hf auth login`, or set HF_TOKEN",
        )
    whose = "passed" if isinstance(token, str) else "of HF_TOKEN or `hf auth login`"
    with explained(f"logging in with the token {whose}", api.endpoint):
        user: Mapping[str, Any] = api.whoami(token=found)
    name = str(user.get("name"))
    access = (user.get("auth") or {}).get("accessToken") or {}
    if access.get("role") == "read":
        raise PublishError(
            f"the token {access.get('displayName') or ''!r} of {name} may only read",
            "make one with the role write in the settings of your account, and log in with it",
        )
    places = {name: "owner"}
    places |= {str(org.get("name")): str(org.get("roleInOrg")) for org in user.get("orgs") or ()}
    namespace = repo_id.partition("/")[0]
    if not create_pr and places.get(namespace, "read") == "read":
        writable = ", ".join(place for place, role in places.items() if role != "read")
        raise PublishError(
            f"{name} may not write to the namespace {namespace!r}",
            f"publish under {writable}, or ask {namespace} for a role that may write",
        )
    return found


def look_at(api: Any, repo_id: str, revision: str | None, token: str) -> Destination:
    """Find out what is there.

    A branch that is not there will start from the repository's first commit: what main holds, its
    card and licence among it, is another draft's or an index.

    Raises:
        PublishError: if the Hub does not answer, or `revision` is no branch.
    """
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    check_reference(revision, "revision")
    branch = revision or MAIN
    with explained(f"looking at {repo_id}", api.endpoint):
        try:
            info = api.model_info(repo_id, token=token)
        except RepositoryNotFoundError:
            return Destination(repo_id, branch)
        refs = api.list_repo_refs(repo_id, token=token)
        tags = tuple(ref.name for ref in refs.tags)
        if branch in tags:
            raise ValueError(
                f"revision must be a branch, {branch!r} is a tag of {repo_id}: take another name"
            )
        branches = {MAIN, *(ref.name for ref in refs.branches)}
        on_main, has_branch = _files(info), branch in branches
        taken = [name for name in sorted(branches) if has_no_room(name, branch)]
        if taken and not has_branch:
            raise ValueError(
                f"revision must be a branch that git can hold beside those of {repo_id}, "
                f"{branch!r} has no room beside {taken[0]!r}: take another name"
            )
        if has_branch and branch != MAIN:
            try:
                info = api.model_info(repo_id, revision=branch, token=token)
            except RevisionNotFoundError:  # deleted meanwhile
                has_branch = False
        if not has_branch:
            *_, first = api.list_repo_commits(repo_id, token=token)
            info = api.model_info(repo_id, revision=first.commit_id, token=token)
    return Destination(
        repo_id,
        branch,
        exists=True,
        branch_exists=has_branch,
        head=info.sha,
        files=_files(info),
        main_files=on_main,
        tags=tags,
        private=bool(info.private),
    )


def has_no_room(one: str, other: str) -> bool:
    """Whether git cannot hold two branches beside each other, as `a` and `a/b`."""
    return one != other and (one.startswith(f"{other}/") or other.startswith(f"{one}/"))


def _files(info: Any) -> tuple[str, ...]:
    return tuple(sorted(file.rfilename for file in info.siblings or ()))


def check_free(
    place: Destination,
    endpoint: str,
    *,
    exist_ok: bool,
    create_pr: bool,
    private: bool | None,
    tag: str | None,
) -> None:
    """Raise unless what is asked for fits what is there.

    Raises:
        PublishError: if the repository exists and may not, does not and must, is seen by others
            than it should be, or has the tag.
    """
    if create_pr and not place.exists:
        raise PublishError(
            f"{place.repo_id} does not exist on {endpoint}, or this token may not see it",
            "leave out create_pr=True to create it",
        )
    if place.exists and not (exist_ok or create_pr or place.is_empty):
        raise PublishError(
            f"{place.repo_id} exists already on {endpoint}",
            "pass exist_ok=True to add a commit to it, or take another name",
        )
    if place.exists and private is not None and private != place.private:
        asked = "private=True" if private else "private=False"
        raise PublishError(
            f"{place.repo_id} is {'private' if place.private else 'public'}, "
            f"and {asked} holds for a new repository only",
            "change it in the settings of the repository first",
        )
    if tag is not None and tag in place.tags:
        raise PublishError(
            f"{place.repo_id} has the tag {tag!r} already",
            "take another name for the tag, or delete the old one first",
        )
