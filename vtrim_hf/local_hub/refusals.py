"""Answers that refuse: status, text, and the `X-Error-Code` that clients turn into a class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BAD_TOKEN = "Invalid credentials in Authorization header"
"""On a repository's address the client takes a 401 with any other text for a missing one."""


class RefusedError(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        message: One sentence for the user; sent as `X-Error-Message` and in the body.
        code: Value of `X-Error-Code`, for example `RepoNotFound`.
        headers: Further headers of the answer.
        facts: Further entries of the JSON body.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        # A header is one line of Latin-1; the body below has the whole text.
        line = message.encode("ascii", "replace").decode().replace("\n", " ").replace("\r", " ")
        self.headers = {**(headers or {}), "X-Error-Message": line}
        if code is not None:
            self.headers["X-Error-Code"] = code
        self.facts = {"error": message, **(facts or {})}


def no_repository(known_user: bool) -> RefusedError:
    """Say the same for a missing repository and for one that is hidden from this user."""
    return RefusedError(404 if known_user else 401, "Repository not found", "RepoNotFound")


def no_revision(revision: str) -> RefusedError:
    return RefusedError(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def no_entry(path: str, commit: str) -> RefusedError:
    headers = {"X-Repo-Commit": commit}
    return RefusedError(404, f"Entry not found: {path}", "EntryNotFound", headers=headers)


def no_login() -> RefusedError:
    return RefusedError(401, "Invalid username or password.")
