"""The YAML at the top of a card, read without a YAML library.

The part of YAML that cards are written in: mappings and sequences, in blocks or in brackets;
plain, quoted and block texts; comments. What it does not know (anchors, tags, several documents)
is refused with its line, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .yaml_scalars import BLANKS, closing_quote, open_quote, plain_value, quoted_value, read_flow

_FRONT = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)^---[ \t\r]*$", re.DOTALL | re.MULTILINE)
_KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'  # a quoted key
    |(?:[^\s"'\[\]{}\#&*!|>%@`,?-]|[?-]\S)(?:[^\#]|(?<=\S)\#)*?)  # a plain one: no ' #' in it
    \s*:(?=\s|$)""",
    re.VERBOSE | re.ASCII,
)
_BLOCK_TEXT = re.compile(r"([|>])([+-]?)([1-9]?)([+-]?)\s*(?:#.*)?")


def read_front_matter(text: str) -> dict[str, Any] | None:
    """Return the mapping at the top of a card; None if the card has none.

    Raises:
        ValueError: if it is no YAML mapping, naming the line.

    Example:
        >>> read_front_matter("---\\nlicense: mit\\ntags: [a, b]\\n---\\n# Card")
        {'license': 'mit', 'tags': ['a', 'b']}
    """
    match = _FRONT.match(text)
    if match is None:
        return None
    value = _Reader(match[1]).document()
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"the card's metadata must be a mapping, got {type(value).__name__}")
    return value


@dataclass
class _Line:
    number: int
    indent: int
    text: str


class _Reader:
    """Reads lines from the top down; `_at` is the next one."""

    def __init__(self, text: str) -> None:
        self._lines = [
            _Line(number, len(line) - len(line.lstrip(" ")), line.strip(" \t\r"))
            for number, line in enumerate(text.split("\n"), start=2)
        ]
        self._raw = text.split("\n")
        self._at = 0

    def document(self) -> Any:
        line = self._peek()
        if line is None:
            return None
        value = self._block(line.indent)
        if (rest := self._peek()) is not None:
            raise self._wrong(rest, "is indented otherwise than the lines above")
        return value

    def _peek(self) -> _Line | None:
        """Return the next line that is neither empty nor a comment."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.text and not line.text.startswith("#"):
                if line.text.startswith("\t") or "\t" in self._raw[self._at][: line.indent + 1]:
                    raise self._wrong(line, "is indented with a tab")
                return line
            self._at += 1
        return None

    def _block(self, indent: int) -> Any:
        line = self._peek()
        if line is None:
            return None
        if line.text == "-" or line.text.startswith("- "):
            return self._sequence(indent)
        if _KEY.match(line.text):
            return self._mapping(indent)
        self._at += 1
        return self._value(line.text, line, indent - 1)

    def _sequence(self, indent: int) -> list[Any]:
        items = []
        while (line := self._peek()) is not None and line.indent == indent:
            if line.text != "-" and not line.text.startswith("- "):
                break
            rest = line.text[1:].lstrip(" ")
            if not rest or rest.startswith("#"):
                self._at += 1
                items.append(self._nested(indent))
            elif _KEY.match(rest) or rest == "-" or rest.startswith("- "):
                inner = indent + len(line.text) - len(rest)
                self._lines[self._at] = _Line(line.number, inner, rest)
                items.append(self._block(inner))
            else:
                self._at += 1
                items.append(self._value(rest, line, indent))
        return items

    def _mapping(self, indent: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while (line := self._peek()) is not None and line.indent == indent:
            match = _KEY.match(line.text)
            if match is None:
                break
            key = str(quoted_value(match[1]) if match[1][0] in "\"'" else match[1])
            if key in mapping:
                raise self._wrong(line, f"repeats the key {key!r}")
            rest = line.text[match.end() :].strip(BLANKS)
            self._at += 1
            if not rest or rest.startswith("#"):
                mapping[key] = self._nested(indent, sequence_may_align=True)
            else:
                mapping[key] = self._value(rest, line, indent)
        if line is not None and line.indent > indent:
            raise self._wrong(line, "is indented deeper than the lines above")
        if line is not None and line.indent == indent and not line.text.startswith("-"):
            raise self._wrong(line, "has no 'key: value'")
        return mapping

    def _nested(self, indent: int, *, sequence_may_align: bool = False) -> Any:
        line = self._peek()
        if line is None:
            return None
        aligned = line.indent == indent and (line.text == "-" or line.text.startswith("- "))
        if line.indent > indent or (aligned and sequence_may_align):
            return self._block(line.indent)
        return None

    def _value(self, text: str, line: _Line, indent: int) -> Any:
        """Read a value that starts with `text` and may go on in lines deeper than `indent`."""
        try:
            if match := _BLOCK_TEXT.fullmatch(text):
                return self._block_text(match, indent)
            if text[0] in "\"'":
                while closing_quote(text) is None:
                    text = self._longer(text, indent, "a quote is not closed")
                return quoted_value(text)
            if text[0] in "[{":
                while (found := read_flow(text)) is None:
                    text = self._longer(text, indent, f"the {text[0]!r} is not closed")
                return found[0]
            text = re.sub(r"(?a:\s)#.*", "", text)
            while (more := self._peek()) is not None and more.indent > indent:
                if _KEY.match(more.text):
                    raise self._wrong(more, "is indented deeper than the lines above")
                text += " " + re.sub(r"(?a:\s)#.*", "", more.text)
                self._at += 1
            return plain_value(text)
        except ValueError as error:
            if str(error).startswith("line "):
                raise
            raise self._wrong(line, str(error)) from error

    def _longer(self, text: str, indent: int, trouble: str) -> str:
        """Return `text` with the next line: after a space, unless a backslash in "" ends it."""
        line = self._lines[self._at] if self._at < len(self._lines) else None
        if line is None or (line.text and line.indent <= indent):
            raise ValueError(trouble)
        self._at += 1
        if re.search(r"(?<!\\)(?:\\\\)*\\$", text) and open_quote(text) == '"':
            return text[:-1] + line.text
        return f"{text} {line.text}" if line.text else text + "\n"

    def _block_text(self, match: re.Match[str], indent: int) -> str:
        """Read the lines of a `|` or `>` text."""
        keep = match[2] or match[4]
        raw: list[str] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.text and line.indent <= indent:
                break
            raw.append(self._raw[self._at].rstrip("\r"))
            self._at += 1
        full = [line for line in raw if line.strip(BLANKS)]
        cut = max(indent, 0) + int(match[3]) if match[3] else min(
            (len(line) - len(line.lstrip(" ")) for line in full), default=0
        )  # fmt: skip
        lines = [line[cut:] for line in raw]
        body = "\n".join(lines).rstrip("\n")
        if match[1] == ">":
            body = re.sub(r"(?<=\S)\n(?=\S)", " ", body)
            body = re.sub(r"(?<=\S)\n(\n+)(?=\S)", r"\1", body)
        ends = (
            len(lines) - len("\n".join(lines).rstrip("\n").split("\n")) + 1 if keep == "+" else 1
        )
        return body if keep == "-" or not body else body + "\n" * ends

    def _wrong(self, line: _Line, trouble: str) -> ValueError:
        return ValueError(f"line {line.number} of the card, {line.text[:60]!r}: {trouble}")
