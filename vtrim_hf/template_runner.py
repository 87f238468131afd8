"""Running a chat template: the text that `apply_chat_template` gives, at less cost per call.

Transformers' own `render_jinja_template` first rebuilds everything that the template will see,
which takes longer than the template. For messages that are nothing but a role and a text this
changes nothing, so they go straight to the compiled template, after the first of them have been
rendered both ways and compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from transformers.utils import chat_template_utils

from .chat_messages import MalformedRow, Message

Spans = list[tuple[int, int]]

_COMPARED = 16


class TemplateRunner:
    """One Jinja template with what it sees beside the conversation.

    Args:
        text: the template.
        variables: such as the special tokens.

    Raises:
        ValueError: from `run`, if the template cannot be parsed.
    """

    def __init__(self, text: str, variables: Mapping[str, Any]) -> None:
        self._text = text
        self._variables = dict(variables)
        # Private, and so only used while it is there and gives what the public function gives.
        compile_template = getattr(chat_template_utils, "_compile_jinja_template", None)
        self._compile = compile_template if _is_plain_value(self._variables) else None
        self._compiled: Any = None
        self._seen: dict[str, Any] = {}
        self._compared = 0

    def run(
        self,
        conversations: Sequence[Sequence[Message]],
        tools: Sequence[Any] | None,
        *,
        add_generation_prompt: bool,
        tracked: bool = False,
        plain: bool = False,
    ) -> tuple[list[str], list[Spans]]:
        """Render conversations.

        Args:
            conversations: lists of messages.
            tools: JSON schemas.
            add_generation_prompt: as for `apply_chat_template`.
            tracked: give the ranges inside `{% generation %}` too.
            plain: every message `is_plain`.

        Returns:
            Texts, and for each the ranges (empty unless tracked).

        Raises:
            MalformedRow: if the template refuses one of them.
        """
        straight = plain and not tools and not tracked and self._compile is not None
        try:
            if straight and self._compared >= _COMPARED:
                return self._straight(conversations, add_generation_prompt), []
            rendered: Any = chat_template_utils.render_jinja_template(
                conversations=list(map(list, conversations)),
                tools=list(tools) if tools else None,
                chat_template=self._text,
                return_assistant_tokens_mask=tracked,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
            if straight:
                self._compare(rendered[0], self._straight(conversations, add_generation_prompt))
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template cannot be parsed (line {error.lineno}: {error.message}); "
                "repair tokenizer.chat_template or pass chat_template="
            ) from error
        except Exception as error:  # a template is a program of strangers: it may raise anything
            raise MalformedRow(f"the chat template refuses it: {error}") from error
        texts, spans = rendered
        return texts, spans

    def _straight(
        self, conversations: Sequence[Sequence[Message]], add_generation_prompt: bool
    ) -> list[str]:
        if self._compiled is None and self._compile is not None:
            self._compiled = self._compile(self._text)
            # What the template sees does not change: it is put together once, not for every text.
            self._seen = {
                **self._compiled.globals,
                **self._variables,
                "tools": None,
                "documents": None,
            }
        compiled, texts = self._compiled, []
        for messages in conversations:
            seen = {
                **self._seen,
                "messages": list(messages),
                "add_generation_prompt": add_generation_prompt,
            }
            context = compiled.new_context(seen, shared=True)
            texts.append("".join(compiled.root_render_func(context)))
        return texts

    def _compare(self, theirs: list[str], ours: list[str]) -> None:
        if theirs == ours:
            self._compared += len(ours)
        else:
            self._compile = None


def _is_plain_value(value: Any) -> bool:
    if type(value) in (list, dict):
        return all(map(_is_plain_value, value.values() if type(value) is dict else value))
    return value is None or type(value) in (str, int, float, bool)
