"""The shapes that a row of chat data comes in, and the one form that everything after it reads.

A `Conversation` holds messages as `apply_chat_template` takes them. Where a row was plain text (a
prompt and what follows it), the text is kept beside them, for tokenizers that have no chat
template.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .chat_messages import MalformedRow, Message, is_plain, read_messages, read_tools

CHAT_COLUMNS = ("messages", "conversations", "conversation")
ANSWER_COLUMNS = ("output", "response")
ANSWER_IDS_COLUMN = "assistant_token_ids"
RECORD_COLUMN = "vtrim_record"
"""Rows with this column are notes that a file of answers makes about itself, never data."""

_ID_LIMIT = 1 << 31  # no tokenizer has more ids, and larger numbers fit no array of ids

SHAPES = (
    "messages (role/content)",
    "conversations (from/value)",
    "prompt + completion",
    "instruction (+ input) + output or response",
    "one text column, named by text_column",
)


class UnknownShape(MalformedRow):
    """A row that has none of the known shapes."""


@dataclass(frozen=True)
class Conversation:
    """One row, in the form that the chat template takes.

    Attributes:
        shape: how the row was spelt: "messages", "conversations", "prompt/completion",
            "instruction/output" or "text".
        messages: as `apply_chat_template` takes them; empty for a text row.
        tools: JSON schemas for the template, or None.
        plain: (what comes before, what the target says) if the row was plain text.
        answer_ids: for each assistant turn that is to count, the very ids that the target said.
    """

    shape: str
    messages: tuple[Message, ...] = ()
    tools: tuple[Any, ...] | None = None
    plain: tuple[str, str] | None = None
    answer_ids: tuple[tuple[int, ...], ...] | None = None

    @property
    def assistant_turns(self) -> tuple[int, ...]:
        """Positions of the assistant's messages."""
        return tuple(i for i, m in enumerate(self.messages) if m["role"] == "assistant")

    @property
    def has_answer(self) -> bool:
        """Whether there is anything that the target would have to say."""
        if self.answer_ids is not None:
            return any(self.answer_ids)
        return bool(self.assistant_turns) or (not self.messages and self.plain is not None)

    def digest(self) -> bytes:
        """The sha256 of what was said (not of how the row spelt it), the same on every machine.

        Raises:
            MalformedRow: if a text holds half a surrogate pair, which no tokenizer can read.
        """
        try:
            if self.tools is None and self.answer_ids is None and is_plain(self.messages):
                said = [text for m in self.messages for text in (m["role"], m["content"])]
                said += self.plain or () if not self.messages else ()
                text = "".join([f"{len(part)}:{part}" for part in said])
            else:
                text = _CANONICAL.encode([self.messages, self.tools, self.answer_ids])
            return hashlib.sha256(text.encode("utf-8")).digest()
        except UnicodeEncodeError as error:
            raise MalformedRow(f"the text is no valid Unicode: {error.reason}") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedRow(f"the row cannot be written as JSON: {error}") from error


def read_row(row: object, *, text_column: str | None = None) -> Conversation:
    """Read one row of any known shape.

    Args:
        row: a mapping of column names to values.
        text_column: take this column's text as what the target says, whatever else is there.

    Raises:
        UnknownShape: if the columns fit no shape.
        MalformedRow: if they do, but what they hold does not.
    """
    if not isinstance(row, Mapping):
        raise MalformedRow(f"a row must have named columns, got {type(row).__name__}")
    if text_column is not None:
        return Conversation("text", plain=("", _text(row, text_column)))
    tools = read_tools(row.get("tools"))
    ids = _answer_ids(row.get(ANSWER_IDS_COLUMN))
    for column in CHAT_COLUMNS:
        if row.get(column) is not None:
            messages = read_messages(row[column], column)
            system = row.get("system")
            if isinstance(system, str) and system and messages[0]["role"] != "system":
                messages = [{"role": "system", "content": system}, *messages]
            shape = "messages" if column == "messages" else "conversations"
            return Conversation(shape, tuple(messages), tools, answer_ids=ids)
    if ids is not None:
        return Conversation("messages", answer_ids=ids)
    if row.get("prompt") is not None:
        return _prompt_and_completion(row, tools)
    if row.get("instruction") is not None:
        return _instruction_and_output(row, tools)
    raise UnknownShape(f"the columns {_list(row)} fit no shape that is known")


def _prompt_and_completion(row: Mapping[str, Any], tools: tuple[Any, ...] | None) -> Conversation:
    prompt, completion = row["prompt"], row.get("completion")
    before = (
        [{"role": "user", "content": prompt}]
        if isinstance(prompt, str)
        else read_messages(prompt, "prompt")
    )
    after: list[Message] = []
    if isinstance(completion, str):
        after = [{"role": "assistant", "content": completion}]
    elif completion is not None:
        after = read_messages(completion, "completion")
    both_plain = isinstance(prompt, str) and isinstance(completion, str)
    plain = (str(prompt), str(completion)) if both_plain else None
    return Conversation("prompt/completion", (*before, *after), tools, plain)


def _instruction_and_output(row: Mapping[str, Any], tools: tuple[Any, ...] | None) -> Conversation:
    asked = _text(row, "instruction")
    for column in ("input", "context"):
        if row.get(column):
            asked = f"{asked}\n\n{_text(row, column)}"
            break
    messages: list[Message] = [{"role": "user", "content": asked}]
    if isinstance(row.get("system"), str) and row["system"]:
        messages.insert(0, {"role": "system", "content": row["system"]})
    for column in ANSWER_COLUMNS:
        if row.get(column) is not None:
            said = _text(row, column)
            messages.append({"role": "assistant", "content": said})
            # A base model is shown the two as paragraphs.
            return Conversation(
                "instruction/output", tuple(messages), tools, (f"{asked}\n\n", said)
            )
    return Conversation("instruction/output", tuple(messages), tools)


def _answer_ids(value: object) -> tuple[tuple[int, ...], ...] | None:
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise MalformedRow(f"{ANSWER_IDS_COLUMN} must be a list of ids or of lists of ids")
    turns = value if value and isinstance(value[0], Sequence) else [value]
    for turn in turns:
        if not isinstance(turn, Sequence) or not all(
            type(i) is int and 0 <= i < _ID_LIMIT for i in turn
        ):
            raise MalformedRow(
                f"{ANSWER_IDS_COLUMN} must hold token ids (whole numbers in [0, {_ID_LIMIT}))"
            )
    return tuple(tuple(turn) for turn in turns)


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise MalformedRow(f"{column} must be text, got {type(value).__name__}")
    return value


def _name(value: object) -> str:
    """Stand in for what JSON cannot hold, such as images, without an address that would vary."""
    return f"<{type(value).__name__}>"


def _list(names: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, names))) or "(none)"


_CANONICAL = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=_name
)
