"""Who stands behind a token, and where that user may write."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TOKENS_FILE = "tokens.json"


@dataclass(frozen=True)
class Account:
    """A user, as seen by one of the user's tokens.

    Args:
        name: The user's name and namespace.
        role: What the token allows: `"write"`, or `"read"` for reading what the user may read.
        organizations: Further namespaces that the user belongs to.
    """

    name: str
    role: Literal["write", "read"] = "write"
    organizations: tuple[str, ...] = ()

    def belongs_to(self, namespace: str) -> bool:
        """Whether a namespace is the user or one of their organizations."""
        return namespace == self.name or namespace in self.organizations

    def may_write_in(self, namespace: str) -> bool:
        """Whether the token may change repositories of a namespace."""
        return self.role == "write" and self.belongs_to(namespace)


def load_tokens(folder: Path) -> dict[str, Account]:
    """Read the tokens kept in `folder`; the first time, make two of `user`: write and read.

    They are random, for a hub that listens to a network must not have a token that all know.

    Raises:
        ValueError: if the file is no table of tokens.
    """
    place = folder / TOKENS_FILE
    if not place.exists():
        made = {f"hf_local_{secrets.token_hex(12)}": role for role in ("write", "read")}
        rows = {token: {"name": "user", "role": role} for token, role in made.items()}
        place.touch(mode=0o600)
        place.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    try:
        rows = json.loads(place.read_text(encoding="utf-8"))
        return {token: _account(row) for token, row in rows.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{place} must map each token to {{name, role, organizations}}: {error!r}; "
            "remove it to have new tokens made"
        ) from error


def _account(row: dict[str, str]) -> Account:
    role = row.get("role", "write")
    if role not in ("write", "read"):
        raise ValueError(f"role is 'write' or 'read', got {role!r}")
    organizations = tuple(str(name) for name in row.get("organizations", ()))
    return Account(str(row["name"]), "write" if role == "write" else "read", organizations)
