"""A request as the endpoints see it, their answer, and the route between the two."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlencode

from .accounts import Account
from .object_store import PIECE
from .refusals import RefusedError

if TYPE_CHECKING:
    from .service import Service

MOST_JSON = 32 << 20
"""Bytes of a JSON body that are taken into memory; commits and files are streamed instead."""

LONGEST_LINE = 1 << 30
"""Bytes of one line of a commit, that is of one small file in base64."""


class Body:
    """The body of a request, read piece by piece, with a length or in chunks.

    Args:
        cut_after: An ordered fault: raise `ConnectionAbortedError` after so many bytes.
        corrupt: An ordered fault: change the first byte.
    """

    def __init__(
        self,
        file: BufferedIOBase,
        headers: Message,
        cut_after: int | None = None,
        *,
        corrupt: bool = False,
    ) -> None:
        self.file, self._cut_after, self.received = file, cut_after, 0
        self._corrupt = corrupt
        self._chunked = "chunked" in (headers.get("Transfer-Encoding") or "").lower()
        length = headers.get("Content-Length") or "0"
        if not re.fullmatch(r"[0-9]{1,18}", length):
            raise RefusedError(400, f"Content-Length is a number, got {length!r}")
        self._left = 0 if self._chunked else int(length)
        self._ended = not self._chunked and not self._left
        if cut_after == 0:
            raise ConnectionAbortedError("an ordered fault cut the upload before its first byte")

    def pieces(self) -> Iterator[bytes]:
        while piece := self._read():
            if self._corrupt and not self.received:
                piece = bytes([piece[0] ^ 0xFF]) + piece[1:]
            self.received += len(piece)
            if self._cut_after is not None and self.received >= self._cut_after:
                raise ConnectionAbortedError("an ordered fault cut the upload")
            yield piece

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that are not empty."""
        held: list[bytes] = []
        size = 0
        for piece in self.pieces():
            *ends, rest = piece.split(b"\n")
            for end in ends:
                line = b"".join([*held, end])
                held, size = [], 0
                if line.strip():
                    yield line
            held.append(rest)
            size += len(rest)
            if size > LONGEST_LINE:
                raise RefusedError(
                    413, f"a line of the commit exceeds {LONGEST_LINE} bytes: use LFS"
                )
        if (line := b"".join(held)).strip():
            yield line

    def whole(self) -> bytes:
        held, size = [], 0
        for piece in self.pieces():
            held.append(piece)
            size += len(piece)
            if size > MOST_JSON:
                raise RefusedError(413, f"the body exceeds {MOST_JSON} bytes")
        return b"".join(held)

    def _read(self) -> bytes:
        if not self._left and self._chunked and not self._ended:
            size = self.file.readline(1000).split(b";")[0].strip()
            if not re.fullmatch(rb"[0-9a-fA-F]{1,15}", size):
                raise ConnectionAbortedError(f"a chunk's size is a hexadecimal number: {size!r}")
            self._left = int(size, 16)
            if not self._left:
                while self.file.readline(1000).strip():
                    pass  # trailers
                self._ended = True
        if not self._left:
            return b""
        piece = self.file.read(min(self._left, PIECE))
        if not piece:
            raise ConnectionAbortedError("the client went away in the middle of a body")
        self._left -= len(piece)
        if not self._left and self._chunked:
            self.file.readline(1000)
        return piece


@dataclass
class Call:
    """One request.

    Args:
        method: HTTP method.
        path: Path as it was sent, percent signs and all.
        query: Parameters; each may be there more than once.
        base: `http://HOST:PORT` as the client knows the hub, for the links in answers.
        account: Who asks; None without a token.
        arguments: What the route's placeholders stand for, percent signs decoded.
    """

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Message
    base: str
    body: Body
    account: Account | None = None
    arguments: dict[str, str] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Return the body's JSON object, `{}` if there is no body."""
        try:
            found = json.loads(self.body.whole() or b"{}")
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"the body is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise RefusedError(400, f"the body is an object, got {type(found).__name__}")
        return found

    def form(self) -> dict[str, Any]:
        """Return the body, be it a JSON object or a form, with a list for each key of a form."""
        if "json" in (self.headers.get("Content-Type") or ""):
            return self.json()
        return dict(parse_qs(self.body.whole().decode("utf-8", "replace")))

    def parameter(self, name: str, default: str = "") -> str:
        return self.query.get(name, [default])[-1]

    def is_set(self, name: str) -> bool:
        return self.parameter(name).lower() in ("1", "true")

    def page(self, items: list[Any], most: int) -> Answer:
        """Answer with one page of `items`, and a link to the next if there is one."""
        limit = min(_count(self.parameter("limit"), most), most)
        start = _count(self.parameter("cursor"), 0)
        headers = {}
        if start + limit < len(items):
            query = {**self.query, "cursor": [str(start + limit)]}
            headers["Link"] = (
                f'<{self.base}{self.path}?{urlencode(query, doseq=True)}>; rel="next"'
            )
        return Answer(items[start : start + limit], headers=headers)


@dataclass(frozen=True)
class FilePart:
    """Bytes of a file as the body of an answer."""

    path: Path
    first: int
    length: int


@dataclass(frozen=True)
class Answer:
    """What goes back: a JSON value, bytes or a part of a file, a status and headers."""

    body: Any = field(default_factory=dict)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Endpoint = Callable[["Service", Call], Answer]

_PLACES = {
    "kind": "models|datasets|spaces",
    "repo": "[^/]+/[^/]+",
    "path": ".+",
    "number": r"\d+",
    "plural": "(?:datasets|spaces)/",
}


class Route:
    """A method (`*` for any), an address with placeholders, and the endpoint that answers.

    `{repo}` stands for two parts of the path, `{path}` for any number, the others for one.
    """

    def __init__(self, methods: str, address: str, endpoint: Endpoint) -> None:
        self._methods, self.endpoint = methods.split("|"), endpoint
        pattern = re.sub(
            r"\{(\w+)\}", lambda m: f"(?P<{m[1]}>{_PLACES.get(m[1], '[^/]+')})", address
        )
        self._pattern = re.compile(pattern)

    def match(self, method: str, path: str) -> dict[str, str] | None:
        found = self._pattern.fullmatch(path)
        if found is None or not {method, "*"} & set(self._methods):
            return None
        return {
            name: unquote(text) for name, text in found.groupdict().items() if text is not None
        }


def repository_url(call: Call, kind: str, repo_id: str) -> str:
    return f"{call.base}/{'' if kind == 'model' else kind + 's/'}{repo_id}"


def find_route(
    routes: Iterable[Route], method: str, path: str
) -> tuple[Endpoint, dict[str, str]] | None:
    for route in routes:
        if (arguments := route.match(method, path)) is not None:
            return route.endpoint, arguments
    return None


def _count(text: str, default: int) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else default
