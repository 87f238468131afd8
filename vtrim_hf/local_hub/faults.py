"""Faults on order: which request meets one, how often, and what goes wrong.

A test says in advance what the network or the real Hub would do only on a bad day.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Fault:
    """One kind of trouble for the requests that it matches. `FaultTable.add` makes it.

    Args:
        method: HTTP method, `"*"` for any.
        path: Regular expression, searched in the path with its query, percent signs decoded.
        times: How many requests meet the fault; None for all.
        skip: How many matching requests pass untouched before.
        status: Answer with this status.
        headers: Headers of that answer, or, without a status, added to the true one.
        body: Body of that answer (JSON-able, text or bytes), or in place of the true one's.
        after_work: Do the work first, then give the `status`: the answer is lost, not the request.
        drop_after: Send this many bytes of the answer's body, then cut the connection.
        drop_upload_after: Read this many bytes of the request's body, then cut the connection.
        corrupt: Change the first byte of the answer's body.
        corrupt_upload: Change the first byte of the request's body.
        delay: Seconds to wait before anything else.
        before: Called before the request is answered, for example to commit something in between.
    """

    method: str
    path: str
    times: int | None = 1
    skip: int = 0
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    after_work: bool = False
    drop_after: int | None = None
    drop_upload_after: int | None = None
    corrupt: bool = False
    corrupt_upload: bool = False
    delay: float = 0.0
    before: Callable[[], object] | None = None
    seen: int = 0
    """Matching requests so far, those that passed untouched among them."""

    @property
    def met(self) -> int:
        """How many requests met the fault so far."""
        most = self.seen if self.times is None else self.times
        return max(0, min(self.seen - self.skip, most))

    def matches(self, method: str, path: str) -> bool:
        """Whether a request is one that this fault is meant for."""
        return self.method in ("*", method) and re.search(self.path, path) is not None

    def body_bytes(self) -> bytes | None:
        """Return the answer's body, JSON written out; None to leave the answer's own."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


class FaultTable:
    """The faults that wait for requests; safe to use while the server runs.

    Example:
        >>> faults = FaultTable()
        >>> fault = faults.add("POST", "/commit/", status=503, times=2)
        >>> faults.take("GET", "/api/models") is None, faults.take("POST", "/x/commit/main").status
        (True, 503)
        >>> fault.met
        1
    """

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def add(self, method: str, path: str, **what: Any) -> Fault:
        """Order a fault; the parameters are those of `Fault`. Earlier ones are met first.

        Raises:
            ValueError: if it names no trouble, or `path` is no regular expression.
        """
        fault = Fault(method, path, **what)
        try:
            re.compile(path)
        except re.error as error:
            raise ValueError(f"path is a regular expression, {path!r} is not: {error}") from error
        trouble = set(what) - {"times", "skip", "seen", "after_work"}
        if not trouble:
            raise ValueError("a fault needs a status, a drop, a delay or other trouble")
        if fault.status is None and fault.after_work:
            raise ValueError("after_work needs the status to answer with")
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Take all faults away."""
        with self._lock:
            self._faults.clear()

    def take(self, method: str, path: str) -> Fault | None:
        """Return the fault that this request meets, and count it."""
        with self._lock:
            for fault in self._faults:
                spent = fault.times is not None and fault.seen >= fault.skip + fault.times
                if not spent and fault.matches(method, path):
                    fault.seen += 1
                    if fault.seen > fault.skip:
                        return fault
            return None
