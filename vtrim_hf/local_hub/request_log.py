"""What was asked of the hub, in order, for tests and for `--verbose`."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

LONGEST_LOG = 10_000


@dataclass
class LoggedRequest:
    """One request and what became of it.

    Args:
        method: HTTP method.
        path: Path without the query, percent signs decoded.
        query: The query as it was sent.
        user_agent: The client's own description.
        user: Name of the account behind the token; None without one.
        status: Status of the answer; None while there is none, or if the connection was cut.
        sent: Bytes of the answer's body.
        received: Bytes of the request's body.
        fault: Whether the request met an ordered fault.
    """

    method: str
    path: str
    query: str = ""
    user_agent: str = ""
    user: str | None = None
    status: int | None = None
    sent: int = 0
    received: int = 0
    fault: bool = False

    def __str__(self) -> str:
        query = f"?{self.query}" if self.query else ""
        return f"{self.method} {self.path}{query} {self.status or 'cut'}"


class RequestLog:
    """The newest requests, each entered before it is answered. Safe to read at any time."""

    def __init__(self) -> None:
        self._rows: deque[LoggedRequest] = deque(maxlen=LONGEST_LOG)
        self._lock = threading.Lock()
        self.on_answer: Callable[[LoggedRequest], None] | None = None
        """Called after each answer, from the thread that gave it."""

    def enter(self, row: LoggedRequest) -> None:
        """Add a request."""
        with self._lock:
            self._rows.append(row)

    def clear(self) -> None:
        """Forget the requests so far."""
        with self._lock:
            self._rows.clear()

    def matching(self, method: str = "*", path: str = "") -> list[LoggedRequest]:
        """Return the requests with this method whose path the regular expression is found in."""
        return [row for row in self if method in ("*", row.method) and re.search(path, row.path)]

    def __iter__(self) -> Iterator[LoggedRequest]:
        with self._lock:
            rows = list(self._rows)
        return iter(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> LoggedRequest:
        return list(self)[index]
