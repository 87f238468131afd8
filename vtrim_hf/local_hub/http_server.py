"""The listening socket, the table of routes, and a way to stop in good order."""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import sys
import threading
from http.server import ThreadingHTTPServer

from . import (
    endpoints_committing,
    endpoints_large_files,
    endpoints_listing,
    endpoints_pages,
    endpoints_pull_requests,
    endpoints_reading,
    endpoints_repositories,
)
from .calls import Answer, Call, Endpoint, Route, find_route
from .exchange import Exchange
from .faults import FaultTable
from .refusals import RefusedError, no_repository
from .request_log import RequestLog
from .service import Service

logger = logging.getLogger(__name__)


def _no_such_repository(_service: Service, call: Call) -> Answer:
    raise no_repository(call.account is not None)


ROUTES = (
    *endpoints_listing.ROUTES,
    *endpoints_repositories.ROUTES,
    *endpoints_reading.ROUTES,
    *endpoints_committing.ROUTES,
    *endpoints_large_files.ROUTES,
    *endpoints_pull_requests.ROUTES,
    # Names without a namespace, which the real Hub has for some old models.
    Route("*", "/api/{kind}/{name}", _no_such_repository),
    Route(
        "*",
        "/api/{kind}/{name}/(?:revision|tree|refs|commits|paths-info)/{path}",
        _no_such_repository,
    ),
    Route("*", "/{name}/resolve/{path}", _no_such_repository),
    *endpoints_pages.ROUTES,
)


class _Busy:
    """Counts requests that are being answered, so that `stop` can wait for them."""

    def __init__(self) -> None:
        self._count, self._change = 0, threading.Condition()

    def __enter__(self) -> None:
        with self._change:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._change:
            self._count -= 1
            self._change.notify_all()

    def wait_until_idle(self, seconds: float) -> bool:
        with self._change:
            return self._change.wait_for(lambda: self._count == 0, timeout=seconds)


class HubServer(ThreadingHTTPServer):
    """The listening socket; one daemon thread a connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], service: Service, log: RequestLog, faults: FaultTable
    ) -> None:
        self.service, self.log, self.faults = service, log, faults
        self.connections: set[socket.socket] = set()
        self.busy = _Busy()
        super().__init__(address, Exchange)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer would ask DNS for the host's name
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    @property
    def endpoint(self) -> str:
        return f"http://{self.server_name}:{self.server_port}"

    def find(self, method: str, path: str) -> tuple[Endpoint, dict[str, str]]:
        found = find_route(ROUTES, method, path)
        if found is None:
            raise RefusedError(404, f"The local hub has no {method} {path}")
        return found

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Log what ended a connection, unless the client just went away."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            logger.exception("local hub: connection of %s", client_address)

    def close_connections(self) -> None:
        for connection in list(self.connections):
            with contextlib.suppress(OSError):  # closed by the client in the meantime
                connection.shutdown(socket.SHUT_RDWR)
