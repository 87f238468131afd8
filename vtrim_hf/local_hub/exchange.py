"""One connection: read requests, have them answered, send the answers, do the faults."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from .calls import Answer, Body, Call, FilePart
from .faults import Fault
from .object_store import PIECE, pieces_of
from .refusals import RefusedError
from .request_log import LoggedRequest

if TYPE_CHECKING:
    from .http_server import HubServer

logger = logging.getLogger(__name__)

IDLE_SECONDS = 120
_HOST = re.compile(r"[\w.:\[\]-]+")


class Exchange(BaseHTTPRequestHandler):
    """Requests of one connection, one after the other, in a thread of their own."""

    server: HubServer
    protocol_version = "HTTP/1.1"
    server_version = "vtrim-local-hub"
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are logged by `RequestLog`, not on standard error."""

    def _serve(self) -> None:
        try:
            parts: SplitResult | None = urlsplit(self.path)
        except ValueError:  # an address with half of an IPv6 host, say
            parts = None
        path, query = (parts.path, parts.query) if parts else (self.path, "")
        agent = self.headers.get("User-Agent") or ""
        row = LoggedRequest(self.command, unquote(path), query, agent)
        fault = self.server.faults.take(self.command, unquote(self.path))
        row.fault = fault is not None
        self.server.log.enter(row)
        with self.server.busy:
            try:
                self._answer_one(path, query, row, fault, parts is not None)
            except (ConnectionError, TimeoutError):
                self.close_connection = True
            finally:
                if self.server.log.on_answer is not None:
                    self.server.log.on_answer(row)

    # The names under which the standard library looks for them.
    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def _answer_one(
        self, path: str, query: str, row: LoggedRequest, fault: Fault | None, sound: bool
    ) -> None:
        body: Body | None = None
        try:
            if fault is not None:
                time.sleep(fault.delay)
                if fault.before is not None:
                    fault.before()
            body = Body(
                self.rfile,
                self.headers,
                fault.drop_upload_after if fault else None,
                corrupt=fault is not None and fault.corrupt_upload,
            )
            if not sound:
                raise RefusedError(400, f"this is no address: {path:.200}")
            answer = self._work(path, query, body, row, fault)
        except RefusedError as refusal:
            answer = Answer(refusal.facts, refusal.status, refusal.headers)
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:
            # The client is told, the log has the traceback, and the server goes on.
            logger.exception("local hub: %s %s", self.command, path)
            answer = Answer({"error": f"Internal Error: {error!r}"}, 500)
        if body is None:
            self.close_connection = True  # its length is unknown: nothing more can be read
        else:
            for _ in body.pieces():
                pass  # a client reads the answer only when it has sent all
            row.received = body.received
        self._send(_with_fault(answer, fault), row, fault)

    def _work(
        self, path: str, query: str, body: Body, row: LoggedRequest, fault: Fault | None
    ) -> Answer:
        if fault is not None and fault.status is not None and not fault.after_work:
            return Answer()  # its status is put in by _with_fault
        host = self.headers.get("Host") or ""
        base = f"http://{host}" if _HOST.fullmatch(host) else self.server.endpoint
        call = Call(
            self.command, path, parse_qs(query, keep_blank_values=True), self.headers, base, body
        )
        call.account = self.server.service.account(self.headers.get("Authorization") or "")
        row.user = call.account.name if call.account else None
        endpoint, call.arguments = self.server.find(self.command, path)
        return endpoint(self.server.service, call)

    def _send(self, answer: Answer, row: LoggedRequest, fault: Fault | None) -> None:
        length, pieces = _encoded(answer.body)
        row.status = answer.status
        self.send_response(answer.status)
        headers = {"Content-Type": "application/json", "Content-Length": str(length)}
        headers |= {"X-Request-Id": f"local-{time.time_ns():x}", **answer.headers}
        if answer.status == 304:
            del headers["Content-Length"]
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD" or answer.status == 304:
            return
        left = length if fault is None or fault.drop_after is None else fault.drop_after
        for piece in pieces():
            if fault is not None and fault.corrupt and not row.sent:
                piece = bytes([piece[0] ^ 0xFF]) + piece[1:]
            self.wfile.write(piece[:left])
            row.sent += len(piece[:left])
            left -= len(piece[:left])
        if row.sent < length or (fault is not None and fault.drop_after is not None):
            raise ConnectionAbortedError("an ordered fault cut the answer")


def _with_fault(answer: Answer, fault: Fault | None) -> Answer:
    """Return the answer as an ordered fault changes it."""
    if fault is None:
        return answer
    body = fault.body_bytes()
    if fault.status is not None:
        text = json.dumps({"error": "ordered fault"}).encode() if body is None else body
        return Answer(text, fault.status, dict(fault.headers))
    if body is not None:
        kept = {key: value for key, value in answer.headers.items() if key != "Content-Length"}
        answer = replace(answer, body=body, headers=kept)
    return replace(answer, headers={**answer.headers, **fault.headers})


def _encoded(body: Any) -> tuple[int, Callable[[], Iterator[bytes]]]:
    """Return the length of a body and what yields its bytes."""
    if isinstance(body, FilePart):
        return body.length, lambda: pieces_of(body.path, body.first, body.length)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return len(data), lambda: (data[at : at + PIECE] for at in range(0, len(data), PIECE))
