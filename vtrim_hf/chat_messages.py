"""Messages, however they are spelt, in the one form that chat templates read.

Roles come as role or from, texts as content or value or parts, tool calls as objects or as JSON
text; tables fill absent fields with null. What is not a message is a `MalformedRow` that says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "function_call": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function": "tool",
    "ipython": "tool",
}


_TEMPLATE_ROLES = frozenset({"system", "user", "assistant", "tool", "developer"})
_OTHER_SPEECH = ("reasoning_content", "reasoning", "thinking", "function_call")


class MalformedRow(ValueError):  # noqa: N818 - the name tells what it is about
    """A row that cannot be read as a conversation; the text says which rule it breaks."""


def read_messages(value: object, column: str) -> list[Message]:
    value = _parsed(value, column)
    if isinstance(value, Mapping):  # a struct of lists, as older data sets store it
        columns = {k: v for k, v in value.items() if isinstance(v, Sequence)}
        length = max(map(len, columns.values()), default=0)
        value = [{k: v[i] for k, v in columns.items() if i < len(v)} for i in range(length)]
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise MalformedRow(f"{column} must be a list of messages, got {type(value).__name__}")
    if not value:
        raise MalformedRow(f"{column} is empty")
    return [_message(message, f"{column}[{i}]") for i, message in enumerate(value)]


def is_plain(messages: Sequence[Message]) -> bool:
    """Tell whether messages are nothing but a role and a text each."""
    return all(
        len(message) == 2 and type(message.get("content")) is str and type(message["role"]) is str
        for message in messages
    )


def content_text(content: object) -> str:
    """Return a message's text, or the texts of its parts put together; "" if it has none."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    texts = (part.get("text") for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def _message(value: object, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise MalformedRow(
            f"{where} must be an object with a role and a content, got {type(value).__name__}"
        )
    role, content = value.get("role"), value.get("content")
    if len(value) == 2 and type(content) is str and role in _TEMPLATE_ROLES:
        return {"role": role, "content": content}  # most messages
    # Tables fill absent fields with null; the template must not see them.
    message = {k: v for k, v in value.items() if v is not None}
    speaker = message.pop("from", None) if "role" not in message else message.pop("role")
    if not isinstance(speaker, str) or not speaker:
        raise MalformedRow(
            f"{where} names no speaker: a role (or from) must be text, got {speaker!r}"
        )
    if "role" not in value and speaker.lower() not in _ROLES:
        raise MalformedRow(f"{where} is said by {speaker!r}, which is no speaker that is known")
    role = _ROLES.get(speaker.lower(), speaker)
    if "role" in value and speaker in ("function", "ipython"):
        role = speaker  # templates that take role/content rows know these two themselves
    content = message.pop("content", message.pop("value", None))
    rest: Message = {"role": role}
    if speaker == "function_call" and isinstance(content, str):
        calls = _function_call(content)
        if calls:
            return {**rest, **message, "tool_calls": calls}
    if content is not None:
        rest["content"] = _content(content, where)
    if message.get("tool_calls"):
        message["tool_calls"] = _tool_calls(message["tool_calls"], where)
    else:
        message.pop("tool_calls", None)
        if content is None and not any(key in message for key in _OTHER_SPEECH):
            raise MalformedRow(f"{where} ({role}) has neither content nor tool calls")
    return {**rest, **message}


def _content(content: object, where: str) -> str | list[Message]:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise MalformedRow(
            f"{where}: content must be text or a list of parts, got {type(content).__name__}"
        )
    parts: list[Message] = []
    for part in content:
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(part, Mapping):
            parts.append({k: v for k, v in part.items() if v is not None})
        else:
            raise MalformedRow(f"{where}: a part of content is a {type(part).__name__}")
    return parts


def _tool_calls(value: object, where: str) -> list[Message]:
    value = _parsed(value, f"{where}: tool_calls")
    if not isinstance(value, Sequence) or not all(isinstance(call, Mapping) for call in value):
        raise MalformedRow(f"{where}: tool_calls must be a list of objects")
    calls = []
    for call in value:
        kept = {k: v for k, v in call.items() if v is not None}
        if isinstance(kept.get("function"), Mapping):
            kept["function"] = _with_arguments(kept["function"])
        calls.append(_with_arguments(kept))
    return calls


def _with_arguments(call: Mapping[str, Any]) -> Message:
    """Give a call its arguments as an object: that is what serving engines hand to templates."""
    call = {k: v for k, v in call.items() if v is not None}
    if isinstance(call.get("arguments"), str):
        try:
            parsed = json.loads(call["arguments"])
        except ValueError:
            return call
        if isinstance(parsed, dict):
            call["arguments"] = parsed
    return call


def _function_call(text: str) -> list[Message] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None  # some sets write the call in words of their own: it is said as it stands
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(isinstance(c, dict) and isinstance(c.get("name"), str) for c in calls):
        return None
    return [{"type": "function", "function": _with_arguments(call)} for call in calls]


def read_tools(value: object) -> tuple[Any, ...] | None:
    """Read a column of tool schemas (objects, or JSON text of them); raises `MalformedRow`."""
    if value is None or value == "":
        return None
    value = _parsed(value, "tools")
    if not isinstance(value, Sequence):
        raise MalformedRow(f"tools must be a list of JSON schemas, got {type(value).__name__}")
    tools = [_parsed(tool, "tools") for tool in value]
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise MalformedRow("tools must be a list of JSON schemas (objects)")
    return tuple(tools) or None


def _parsed(value: object, what: str) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise MalformedRow(f"{what} is text, but no JSON: {error}") from error
