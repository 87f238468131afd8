"""What a chat template itself writes, learned by rendering made-up conversations.

A template is a program, so it is asked rather than read: conversations with known payloads go in,
and what comes out beside the payloads is the template's own. Templates differ in what they accept
(a system turn, the shape of a tool call's arguments), so each conversation has a few spellings and
the first that the template takes is used. A template that takes none of them tells nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_ASKED, _SAID, _THOUGHT, _GOT, _RULE = "Qwhatq", "Qthatq", "Qhmmq", "Qgotq", "Qruleq"
_TOOL, _KEY, _VALUE = "qtoolq", "qkeyq", "qvalueq"
_PAYLOADS = re.compile("|".join((_ASKED, _SAID, _THOUGHT, _GOT, _RULE, _TOOL, _KEY, _VALUE)))
_TAG = re.compile(
    r"</?(?:tool_calls?|function_calls?|tool_use|function|think|thinking|thought|reasoning|answer)>"
)
_CALL_ID = "a1b2c3d4e"  # nine letters and digits: the one form that Mistral's templates accept

_QUESTION = {"role": "user", "content": _ASKED}
_ANSWER = {"role": "assistant", "content": _SAID}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": _RULE,
            "parameters": {
                "type": "object",
                "properties": {_KEY: {"type": "string", "description": _RULE}},
                "required": [_KEY],
            },
        },
    }
]


@dataclass(frozen=True)
class TemplateProbe:
    """Ids that a chat template writes by itself.

    Attributes:
        end_of_turn: what ends an assistant turn.
        markup: everything that an assistant turn holds beside its payload, through its end.
        in_assistant_turns: added tokens in assistant turns, their headers included.
        in_other_turns: added tokens in the turns of others that are in no assistant turn.
    """

    end_of_turn: frozenset[int] = frozenset()
    markup: frozenset[int] = frozenset()
    in_assistant_turns: frozenset[int] = frozenset()
    in_other_turns: frozenset[int] = frozenset()


def probe_chat_template(tokenizer: Any, added: frozenset[int]) -> TemplateProbe:
    """Render made-up conversations and sort what the template adds to them.

    Args:
        tokenizer: with or without a chat template.
        added: ids of the added and special tokens.
    """
    if not getattr(tokenizer, "chat_template", None):
        return TemplateProbe()
    ends: set[int] = set()
    markup: set[int] = set()
    inside: set[int] = set()
    everywhere: set[int] = set()
    for spellings, tools in _conversations():
        for before, turn, after in spellings:
            text = _render(tokenizer, [*before, turn], tools)
            if text is None:
                continue
            with_header = _without(text, _render(tokenizer, before, tools))
            # Where a template rewrites earlier turns, this one's start is unknown: all is inside.
            inside |= added.intersection(_encode(tokenizer, with_header or text))
            everywhere |= added.intersection(_encode(tokenizer, text))
            longer = _render(tokenizer, [*before, turn, *after], tools) if after else None
            everywhere |= added.intersection(_encode(tokenizer, longer or ""))
            end = _ids_of_end(tokenizer, text, turn, added)
            ends |= end
            said = _without(text, _render(tokenizer, before, tools, add_generation_prompt=True))
            markup |= end | _markup(tokenizer, said or with_header or "", added)
            break
    with_rule = _render(tokenizer, [{"role": "system", "content": _RULE}, _QUESTION], None)
    everywhere |= added.intersection(_encode(tokenizer, with_rule or ""))
    # Some templates open the thinking in the prompt, or strip it from turns: the tags that they
    # name are then said by the model, though never rendered inside a turn.
    for tag in set(_TAG.findall(str(tokenizer.chat_template))):
        markup.update(_encode(tokenizer, tag))
    bos = getattr(tokenizer, "bos_token_id", None)
    others = everywhere - inside - markup - {bos}
    return TemplateProbe(frozenset(ends), frozenset(markup), frozenset(inside), frozenset(others))


def _conversations() -> Iterable[tuple[list[tuple[list[Any], dict[str, Any], list[Any]]], Any]]:
    """Give each kind of assistant turn in its spellings: (turns before, the turn, turns after)."""
    yield [([_QUESTION], _ANSWER, [_QUESTION])], None
    thinking = [
        {**_ANSWER, "reasoning_content": _THOUGHT},
        {**_ANSWER, "thinking": _THOUGHT},
    ]
    for thoughtful in thinking:
        yield [([_QUESTION], thoughtful, [])], None
    calls: list[tuple[list[Any], dict[str, Any], list[Any]]] = []
    for arguments in ({_KEY: _VALUE}, f'{{"{_KEY}": "{_VALUE}"}}'):
        for content in ("", None):
            function = {"name": _TOOL, "arguments": arguments}
            call = {"type": "function", "id": _CALL_ID, "function": function}
            turn: dict[str, Any] = {
                "role": "assistant",
                "content": content,
                "tool_calls": [call],
            }
            answer = {"role": "tool", "name": _TOOL, "tool_call_id": _CALL_ID, "content": _GOT}
            calls.append(([_QUESTION], turn, [answer]))
    yield calls, _TOOLS


def _render(
    tokenizer: Any, turns: Sequence[Any], tools: Any, *, add_generation_prompt: bool = False
) -> str | None:
    """Render a conversation, or return None if the template does not take it."""
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(
            list(turns),
            tools=tools,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
    # What templates raise on a shape that they do not know; it is the answer that was asked for.
    except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError):
        return None
    return text if isinstance(text, str) else None


def _without(text: str, start: str | None) -> str | None:
    """Cut `start` off `text`; None if it does not start so, as when a template rewrites turns."""
    return text[len(start) :] if start and text.startswith(start) else None


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False)) if text else []


def _ids_of_end(tokenizer: Any, text: str, turn: Any, added: frozenset[int]) -> set[int]:
    """Find what ends a turn of plain text: the next added token, else the text that follows."""
    if not turn.get("content") or _SAID not in text:
        return set()
    rest = text.rpartition(_SAID)[2]
    ids = _encode(tokenizer, rest)
    marks = [i for i in ids if i in added]
    if marks:
        return {marks[0]}
    return set(_encode(tokenizer, rest.rstrip()))


def _markup(tokenizer: Any, said: str, added: frozenset[int]) -> set[int]:
    """Collect the ids around the payloads of an assistant turn, through its last added token."""
    segments = _PAYLOADS.split(said)
    ids = {i for segment in segments[:-1] for i in _encode(tokenizer, segment)}
    tail = _encode(tokenizer, segments[-1])
    marks = [place for place, i in enumerate(tail) if i in added]
    return ids | set(tail[: marks[-1] + 1] if marks else [])
