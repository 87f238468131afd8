"""Single values of a card's YAML: plain, quoted, and lists and mappings in brackets."""

from __future__ import annotations

import re
from typing import Any

_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "f": "\f",
}
_ESCAPES |= {"v": "\v", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"}
BLANKS = " \t\r\n"
"""What separates words in YAML; other white space belongs to them."""

_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}


def plain_value(text: str) -> Any:
    """Return what a text without quotes means: a number, true, false, null or itself.

    Raises:
        ValueError: if it starts with a sign that has a meaning of its own, or holds `: `.
    """
    text = text.strip(BLANKS)
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in "&*!":
        raise ValueError(f"anchors, aliases and tags are not read here: {text[:40]!r}")
    if text[0] in "%@`|>,]}\"'" or text[:2] in ("- ", "? ") or text in "-?":
        raise ValueError(f"a plain text cannot start with {text[0]!r}: put it in quotes")
    if re.search(r":([ \t\r\n]|$)", text):
        raise ValueError(f"': ' inside a plain text, {text[:40]!r}: put it in quotes")
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return _SPECIAL.get(text.lower(), text)


def closing_quote(text: str) -> int | None:
    """Return where the quote that `text` starts with is closed; None if it is not."""
    quote, at = text[0], 1
    while at < len(text):
        if text[at] == quote:
            if quote == '"' or text[at : at + 2] != "''":
                return at
            at += 1
        elif text[at] == "\\" and quote == '"':
            at += 1
        at += 1
    return None


def quoted_value(text: str) -> str:
    """Return the text between quotes, with only a comment after them.

    Raises:
        ValueError: if something else follows, or an escape is unknown.
    """
    end = closing_quote(text)
    if end is None:
        raise ValueError("a quote is not closed")
    rest = text[end + 1 :]
    if rest.strip(BLANKS) and not re.match(r"[ \t]+#", rest):
        raise ValueError(f"{rest.strip(BLANKS)[:40]!r} after the closing quote")
    inner = re.sub(r"\n+ ?", lambda match: "\n" * match[0].count("\n"), text[1:end])
    if text[0] == "'":
        return inner.replace("''", "'")
    return re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.| ?$)", _escape, inner)


def _escape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xuU" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code in '"\\/':
        return code
    if code.strip(BLANKS) == "":
        return code
    if code not in _ESCAPES:
        raise ValueError(f"the escape \\{code} is unknown")
    return _ESCAPES[code]


def read_flow(text: str) -> tuple[Any, int] | None:
    """Read `[...]` or `{...}`; return the value and where it ends, None if it is not closed yet.

    Raises:
        ValueError: if it cannot become right whatever follows.
    """
    reader = _Flow(text)
    try:
        value = reader.value()
    except _OpenError:
        return None
    rest = text[reader.at :]
    if rest.strip(BLANKS) and not re.match(r"[ \t]+#", rest):
        raise ValueError(f"{rest.strip(BLANKS)[:40]!r} after the closing bracket")
    return value, reader.at


def open_quote(text: str) -> str | None:
    """Return the quote in which a value ends that is not closed yet; None if in none."""
    if text[0] in "\"'":
        return text[0]
    reader = _Flow(text)
    try:
        reader.value()
    except _OpenError:
        return text[reader.at : reader.at + 1] or None  # it stands where the last text begins
    return None


class _OpenError(Exception):
    """The text ends inside brackets."""


class _Flow:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def value(self) -> Any:
        sign = self._next()
        if sign == "[":
            return self._list()
        if sign == "{":
            return self._dict()
        return self._scalar()

    def _list(self) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        while self._next() != "]":
            item = self.value()
            if self._next() == ":":  # a mapping of one pair, as in [a: b]
                self.at += 1
                item = {str(item): self.value()}
            items.append(item)
            self._separator("]")
        self.at += 1
        return items

    def _dict(self) -> dict[str, Any]:
        self.at += 1
        pairs: dict[str, Any] = {}
        while self._next() != "}":
            key, value = str(self._scalar(raw=True)), None
            if self._next() == ":":
                self.at += 1
                value = None if self._next() in ",}" else self.value()
            if key in pairs:
                raise ValueError(f"the key {key!r} is repeated")
            pairs[key] = value
            self._separator("}")
        self.at += 1
        return pairs

    def _separator(self, end: str) -> None:
        sign = self._next()
        if sign == ",":
            self.at += 1
        elif sign != end:
            raise ValueError(f"',' or {end!r} expected at {self.text[self.at :][:40]!r}")

    def _scalar(self, *, raw: bool = False) -> Any:
        rest = self.text[self.at :]
        if rest[0] in "\"'":
            end = closing_quote(rest)
            if end is None:
                raise _OpenError
            self.at += end + 1
            return quoted_value(rest[: end + 1])
        match = re.match(r"(?:[^,\[\]{}:#]|:(?=[^ \t\r\n,\[\]{}])|(?<=[^ \t\r\n])#)+", rest)
        if match is None:
            raise ValueError(f"a value expected at {rest[:40]!r}")
        self.at += match.end()
        return match[0].strip(BLANKS) if raw else plain_value(match[0])

    def _next(self) -> str:
        while self.at < len(self.text) and self.text[self.at] in BLANKS:
            self.at += 1
        if self.at == len(self.text):
            raise _OpenError
        return self.text[self.at]
