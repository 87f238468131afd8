"""The hub as an object: start, stop, endpoint, token, request log, faults."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path

from .accounts import Account, load_tokens
from .faults import FaultTable
from .held_folder import held_folder
from .http_server import HubServer
from .object_store import ObjectStore
from .repository import MAIN, Repository
from .repository_shelf import RepositoryShelf
from .request_log import RequestLog
from .revisions import resolve_revision
from .service import Service
from .xet_store import XetStore, hf_xet_is_installed

_PATIENCE = 10.0
"""Seconds that `stop` waits for requests that are being answered."""

LOOPBACK = ("127.0.0.1", "localhost")


class LocalHub:
    """A model hub in a folder, for tests, demos and networks without the real one.

    The `huggingface_hub` client works against it. Content and references survive a restart; each
    commit is there wholly or not at all.

    Args:
        folder: Where everything is kept; made if need be. One hub at a time may use it.
        host: Address to listen on; this machine only by default.
        port: Port to listen on; 0 takes a free one at the first start and keeps it.
        xet: Serve clients that have Xet switched on, too: with `hf_xet` installed through a store
            in `folder`, which clients on the same machine write to; without it as `regular_only`.
            By default where only this machine is served.
        multipart: Ask LFS clients for large files in parts.
        regular_only: Take all content within the commits; clients with and without Xet do that.
        tokens: Accounts by token; by default those kept in `folder`, made at the first start: a
            token that writes and one that reads, both of the user `user`.
        page_size: Most items of one page of a listing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, LocalHub(folder) as hub:
        ...     hub.endpoint.startswith("http://127.0.0.1:"), hub.token.startswith("hf_local_")
        (True, True)
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        xet: bool | None = None,
        multipart: bool = False,
        regular_only: bool = False,
        tokens: Mapping[str, Account] | None = None,
        page_size: int = 1000,
    ) -> None:
        self.folder, self.host, self.port = Path(folder), host, port
        self.xet = host in LOOPBACK if xet is None else xet
        self.log, self.faults = RequestLog(), FaultTable()
        self._multipart, self._tokens, self._page_size = multipart, tokens, page_size
        self._regular_only = regular_only or (self.xet and not hf_xet_is_installed())
        self._service: Service | None = None
        self._server: HubServer | None = None
        self._thread: threading.Thread | None = None
        self._held = contextlib.ExitStack()

    @property
    def running(self) -> bool:
        """Whether requests are answered."""
        return self._server is not None

    @property
    def endpoint(self) -> str:
        """`http://HOST:PORT`; also after `stop`, for a client that shall find nobody there."""
        host = "127.0.0.1" if self.host in ("", "0.0.0.0") else self.host
        return f"http://{host}:{self.port}"

    @property
    def service(self) -> Service:
        """The stores behind the endpoints, for tests that look inside.

        Raises:
            RuntimeError: if the hub was never started.
        """
        if self._service is None:
            raise RuntimeError("the hub reads its folder at its start: call start() first")
        return self._service

    @property
    def token(self) -> str:
        """A token that writes."""
        return self._token_with("write")

    @property
    def read_token(self) -> str:
        """A token that only reads."""
        return self._token_with("read")

    @property
    def namespace(self) -> str:
        """Whose namespace `token` writes in."""
        return self.service.tokens[self.token].name

    def start(self) -> LocalHub:
        """Read the folder, listen, and serve in threads of this process.

        Raises:
            OSError: if the port is taken, the folder is a file, or another hub uses it.
            ValueError: if the folder holds something else than a hub.
        """
        if self._server is not None:
            return self
        with contextlib.ExitStack() as held:
            held.enter_context(held_folder(self.folder))
            objects = ObjectStore(self.folder)
            stored_xet = self.xet and not self._regular_only
            service = Service(
                objects=objects,
                shelf=RepositoryShelf(self.folder / "repositories", objects),
                tokens=load_tokens(self.folder) if self._tokens is None else self._tokens,
                multipart=self._multipart,
                regular_only=self._regular_only,
                xet=XetStore(self.folder / "xet") if stored_xet else None,
                page_size=self._page_size,
            )
            try:
                server = HubServer((self.host, self.port), service, self.log, self.faults)
            except (OSError, OverflowError) as error:
                raise OSError(
                    f"cannot listen on port {self.port} of {self.host} ({error}): "
                    "stop what uses it, or choose another; 0 is any free one"
                ) from error
            self._held = held.pop_all()
        self.port, self._server, self._service = server.server_port, server, service
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Take no more requests, finish those in hand, close all connections."""
        if self._server is None or self._thread is None:
            return
        server, self._server = self._server, None
        server.shutdown()
        server.server_close()
        self._thread.join()
        server.busy.wait_until_idle(_PATIENCE)
        server.close_connections()
        self._held.close()

    def __enter__(self) -> LocalHub:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def clear_log(self) -> None:
        """Forget the requests so far."""
        self.log.clear()

    def files(self, repo_id: str, revision: str = MAIN, *, kind: str = "model") -> list[str]:
        """Return the paths of a repository, as the folder has them: no request is made."""
        repository = self._repository(repo_id, kind)
        return sorted(repository.commit(resolve_revision(repository, revision)).tree)

    def read(self, repo_id: str, path: str, revision: str = MAIN, *, kind: str = "model") -> bytes:
        """Return a file's content, as the folder has it: no request is made."""
        repository = self._repository(repo_id, kind)
        entry = repository.commit(resolve_revision(repository, revision)).tree[path]
        self.service.bring_out(entry.sha256)
        return self.service.objects.read(entry.sha256)

    def _repository(self, repo_id: str, kind: str) -> Repository:
        repository = self.service.shelf.find(kind, repo_id)
        if repository is None:
            raise KeyError(f"the hub has no {kind} {repo_id}")
        return repository

    def _token_with(self, role: str) -> str:
        for token, account in self.service.tokens.items():
            if account.role == role:
                return token
        raise ValueError(f"the hub has no token with the role {role!r}: give it one")
