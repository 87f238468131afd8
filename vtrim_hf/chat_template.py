"""What a tokenizer's chat template does, found out by asking it once.

Beside the text this module knows what ends a turn, what the generation prompt adds, and whether
the template takes content as text or as parts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from .chat_messages import MalformedRow, Message, content_text
from .template_runner import Spans, TemplateRunner

_GENERATION_TAG = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PROBE = "probe7text"


class ChatTemplate:
    """A chat template with the tokens that belong to it.

    Args:
        tokenizer: whose template and special tokens are meant.
        chat_template: a Jinja template, or the name of one of the tokenizer's, instead of its
            default.
        template_kwargs: what else the template is to see, such as `{"enable_thinking": False}`.

    Raises:
        ValueError: if the template cannot be parsed.
    """

    def __init__(
        self,
        tokenizer: Any,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        variables = {**tokenizer.special_tokens_map, **(template_kwargs or {})}
        text = tokenizer.get_chat_template(chat_template)
        with_tools = text
        if isinstance(tokenizer.chat_template, dict):
            with_tools = tokenizer.get_chat_template(chat_template, [{}])
        self._runner = TemplateRunner(text, variables)
        self._tool_runner = (
            self._runner if with_tools == text else TemplateRunner(with_tools, variables)
        )
        self.tracks_generation = bool(_GENERATION_TAG.search(text))
        added = tokenizer.added_tokens_decoder.values()
        self.added_tokens = {token.content: bool(token.special) for token in added}
        self._eos = tokenizer.eos_token
        visible = json.dumps([text, with_tools, dict(template_kwargs or {})], default=repr)
        self.hash = hashlib.sha256(visible.encode("utf-8", "surrogatepass")).hexdigest()
        self.generation_prompt  # noqa: B018 - a template that cannot be parsed is noticed here

    def render(
        self,
        conversations: Sequence[Sequence[Message]],
        tools: Sequence[Any] | None = None,
        *,
        add_generation_prompt: bool = False,
        plain: bool = False,
    ) -> list[str]:
        """Render conversations exactly as `apply_chat_template(tokenize=False)` does.

        Args:
            conversations: lists of messages.
            tools: JSON schemas.
            add_generation_prompt: as for `apply_chat_template`.
            plain: all messages are nothing but a role and a text (`is_plain`), which is faster.

        Raises:
            MalformedRow: if the template refuses one of them.
        """
        if not conversations:
            return []
        runner = self._tool_runner if tools else self._runner
        return runner.run(
            conversations, tools, add_generation_prompt=add_generation_prompt, plain=plain
        )[0]

    def render_tracked(
        self, conversations: Sequence[Sequence[Message]], tools: Sequence[Any] | None = None
    ) -> tuple[list[str], list[Spans]]:
        """Render, and tell what lies inside `{% generation %}` (character ranges)."""
        runner = self._tool_runner if tools else self._runner
        return runner.run(conversations, tools, add_generation_prompt=False, tracked=True)

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """Give every message its content in the form that this template reads: text or parts."""
        if self._reads_parts == self._reads_text:
            return list(messages)
        fitted = []
        for message in messages:
            content = message.get("content")
            if self._reads_text and isinstance(content, list):
                message = {**message, "content": content_text(content)}
            elif self._reads_parts and isinstance(content, str):
                message = {**message, "content": [{"type": "text", "text": content}]}
            fitted.append(message)
        return fitted

    @staticmethod
    def with_text_arguments(messages: Sequence[Message]) -> list[Message] | None:
        """Write tool-call arguments as JSON text, for templates that add them to a string."""

        def as_text(call: Any) -> Any:
            if isinstance(call.get("function"), Mapping):
                return {**call, "function": as_text(call["function"])}
            if "arguments" in call and not isinstance(call["arguments"], str):
                return {**call, "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
            return call

        if not any(message.get("tool_calls") for message in messages):
            return None
        return [
            {**message, "tool_calls": [as_text(call) for call in message["tool_calls"]]}
            if message.get("tool_calls")
            else message
            for message in messages
        ]

    def _tried(
        self, messages: list[Message], *, add_generation_prompt: bool = False
    ) -> str | None:
        try:
            return self.render([messages], add_generation_prompt=add_generation_prompt)[0]
        except MalformedRow:
            return None

    @cached_property
    def _reads_text(self) -> bool:
        text = self._tried([{"role": "user", "content": _PROBE}])
        # Where the probe itself is refused (a template that wants more turns), text is the custom.
        return text is None or _PROBE in text or not self._reads_parts

    @cached_property
    def _reads_parts(self) -> bool:
        parts = [{"type": "text", "text": _PROBE}]
        text = self._tried([{"role": "user", "content": parts}])
        # A template that only prints its content shows the list's own words.
        shown = ("'type'", '"type"')
        return text is not None and _PROBE in text and not any(word in text for word in shown)

    @cached_property
    def _asked(self) -> list[Message]:
        content: Any = _PROBE if self._reads_text else [{"type": "text", "text": _PROBE}]
        return [{"role": "user", "content": content}]

    @cached_property
    def generation_prompt(self) -> str:
        """What `add_generation_prompt` puts behind a conversation; "" where it cannot be told."""
        before = self._tried(self._asked)
        after = self._tried(self._asked, add_generation_prompt=True)
        if before is None or after is None:
            return ""
        same = common_length(before, after)
        # Some templates close a conversation that is not to go on; two tokens that only begin
        # alike are not the same.
        for token in self.added_tokens:
            for length in range(1, min(len(token), same + 1)):
                if after.startswith(token, same - length):
                    return after[same - length :]
        return after[same:]

    @cached_property
    def end_of_turn(self) -> frozenset[str]:
        """Texts of the tokens that end an assistant turn: what the template writes, and EOS."""
        ends = {self._eos} if self._eos else set()
        said = f"{_PROBE}said"
        content: Any = said if self._reads_text else [{"type": "text", "text": said}]
        text = self._tried([*self._asked, {"role": "assistant", "content": content}])
        if text is not None and said in text:
            tail = text[text.rindex(said) + len(said) :].lstrip()
            starts = [token for token in self.added_tokens if tail.startswith(token)]
            if starts:
                ends.add(max(starts, key=len))
        return frozenset(ends)

    def turn_end(self, text: str, start: int) -> int:
        """Find where the assistant's turn that closes `text` ends for the target.

        Behind what was said a template writes the end-of-turn token and sometimes more (a newline,
        a second EOS) that the target never says. The first end-of-turn token among the added
        tokens that close the text is the end; a text that closes with none is said to its end.

        Args:
            text: a conversation rendered up to and with the turn.
            start: where the turn begins.
        """
        position, closing = len(text), []
        while True:
            while position > start and text[position - 1].isspace():
                position -= 1
            token = self._token_before(text, start, position)
            if token is None:
                break
            closing.append((position, token))
            position -= len(token)
        closing.reverse()
        ends = [end for end, token in closing if token in self.end_of_turn]
        ends += [end for end, token in closing if self.added_tokens[token]]
        return ends[0] if ends else len(text)

    def _token_before(self, text: str, start: int, position: int) -> str | None:
        """Give the longest added token that ends at a position and lies behind `start`."""
        if position > start:
            for token in self._tokens_by_end.get(text[position - 1], ()):
                if text.endswith(token, start, position):
                    return token
        return None

    @cached_property
    def _tokens_by_end(self) -> dict[str, list[str]]:
        tokens: dict[str, list[str]] = {}
        for token in sorted(filter(None, self.added_tokens), key=len, reverse=True):
            tokens.setdefault(token[-1], []).append(token)
        return tokens


def common_length(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Tell how far two texts or lists of ids are the same from their beginning."""
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length
