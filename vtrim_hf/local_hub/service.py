"""What the endpoints share: stores, accounts, and who may do what with which repository."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from .accounts import Account
from .calls import Call
from .object_store import ObjectStore, git_blob_id, lfs_pointer
from .refusals import BAD_TOKEN, RefusedError, no_login, no_repository
from .repository import Entry, Repository
from .repository_shelf import RepositoryShelf
from .safe_names import KINDS
from .xet_store import XetStore


@dataclass(frozen=True)
class Service:
    """The hub behind the server.

    Args:
        multipart: Ask for large files in parts.
        regular_only: Call no file large, so that clients send all content within the commit.
        xet: The store that clients with Xet write to; None without Xet.
        page_size: Most items of one page of a listing.
        part_size: Bytes of a part of a multipart upload.
        secret: Signs the addresses that uploads go to.
    """

    objects: ObjectStore
    shelf: RepositoryShelf
    tokens: Mapping[str, Account]
    multipart: bool = False
    regular_only: bool = False
    xet: XetStore | None = None
    page_size: int = 1000
    part_size: int = 5 << 20
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def account(self, authorization: str) -> Account | None:
        """Return who stands behind an `Authorization` header; None if there is none."""
        if not authorization:
            return None
        account = self.tokens.get(authorization.removeprefix("Bearer ").strip())
        if account is None:
            raise RefusedError(401, BAD_TOKEN)
        return account

    def named(self, kind: str, repo_id: str, account: Account | None) -> Repository:
        """Return a repository that exists and is not hidden from this account."""
        repository = self.shelf.find(kind, repo_id)
        if repository is None or not self.may_see(account, repository):
            raise no_repository(account is not None)
        return repository

    def may_see(self, account: Account | None, repository: Repository) -> bool:
        return not repository.state.private or _belongs(account, repository)

    def readable(self, call: Call) -> Repository:
        """Return the repository in the call's address, if its facts may be seen."""
        return self.named(_kind(call), call.arguments["repo"], call.account)

    def downloadable(self, call: Call) -> Repository:
        """Return the repository in the call's address, if its files may be read."""
        repository = self.readable(call)
        if repository.state.gated and not _belongs(call.account, repository):
            raise RefusedError(
                403 if call.account else 401,
                f"Access to {repository.kind} {repository.id} is restricted. You must have access "
                "to it and be authenticated to access it.",
                "GatedRepo",
            )
        return repository

    def writable(self, call: Call) -> Repository:
        """Return the repository in the call's address, if it may be changed."""
        repository = self.readable(call)
        self.check_may_write(call.account, repository.namespace)
        return repository

    def check_may_write(self, account: Account | None, namespace: str) -> Account:
        if account is None:
            raise no_login()
        if not account.may_write_in(namespace):
            raise RefusedError(
                403,
                f'You don\'t have the rights to write under the namespace "{namespace}" with this '
                f"token (user {account.name}, role {account.role})",
            )
        return account

    def check_may_propose(self, account: Account | None) -> Account:
        """Any user with a token that writes may open and comment on pull requests."""
        if account is None:
            raise no_login()
        return self.check_may_write(account, account.name)

    def large_entry(self, sha256: str) -> Entry | None:
        """Return the entry of a large file that LFS or Xet brought here; None if none did."""
        if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
            return None
        if self.objects.has(sha256):
            size = self.objects.path(sha256).stat().st_size
        elif self.xet is not None and (file := self.xet.find(sha256)):
            size = file.size
        else:
            return None
        return Entry(git_blob_id(lfs_pointer(sha256, size)), size, sha256, large=True)

    def bring_out(self, sha256: str) -> None:
        """Make sure that the object store has the content, which only the Xet store may have."""
        if not self.objects.has(sha256) and self.xet is not None:
            with self.objects.scrap_folder() as scraps:
                self.objects.adopt(self.xet.bring_out(sha256, scraps), sha256=sha256)


def _kind(call: Call) -> str:
    plural = call.arguments.get("kind") or call.arguments.get("plural", "models").rstrip("/")
    return KINDS[plural]


def _belongs(account: Account | None, repository: Repository) -> bool:
    return account is not None and account.belongs_to(repository.namespace)
