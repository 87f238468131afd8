"""Which tokens of a conversation are the assistant's own: the one answer for counting and
training.

A turn is what the target says when it is its turn: the conversation up to there is rendered with
the generation prompt, then once more with the turn; the difference, through the end-of-turn token,
is the turn. Templates that write earlier turns anew once others follow (most drop old thinking)
would make a text that no target ever said in that place. So every turn is taken from the rendering
in which it is the last one; where the whole conversation's rendering begins with exactly that
text, as with most templates, all turns lie in this one text, and otherwise a turn gets a text of
its own.

Tokens come from one tokenisation of the whole text. Where a token reaches over the border of a
turn, the token is the assistant's if any of its characters are (the rule of Transformers' own
assistant masks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .assistant_spans import (
    AssistantSpans,
    EncodedConversation,
    generation_spans,
    grouped_turns,
)
from .chat_messages import MalformedRow, Message, is_plain
from .chat_rows import Conversation, read_row
from .chat_template import ChatTemplate
from .span_tokens import SpanTokenizer
from .template_runner import Spans

__all__ = ["AssistantSpans", "ChatRenderer", "EncodedConversation", "render_conversation"]


class ChatRenderer:
    """Renders rows and tells the assistant's tokens apart.

    Args:
        tokenizer: the target's.
        chat_template: a template instead of the tokenizer's own. False renders rows of plain text
            (prompt/completion, instruction/output) without any template: the answer's tokens as
            they stand behind the prompt, then EOS if the tokenizer has one.
        template_kwargs: what else the template is to see.

    Attributes:
        tokens: turns marked text into ids.
        template: the `ChatTemplate`, or None.
        template_hash: its sha256 (hex), or None.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | bool | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokens = SpanTokenizer(tokenizer)
        self._eos = tokenizer.eos_token or ""
        self.template: ChatTemplate | None = None
        own = getattr(tokenizer, "chat_template", None)
        if isinstance(chat_template, str) or (chat_template in (None, True) and own):
            text = chat_template if isinstance(chat_template, str) else None
            self.template = ChatTemplate(tokenizer, text, template_kwargs)
        self.template_hash = self.template.hash if self.template else None

    def render(self, conversation: Conversation) -> tuple[AssistantSpans, ...]:
        """Render one conversation.

        Returns:
            As few texts as hold every assistant turn as the target said it: one for most
            templates, none if the assistant says nothing.

        Raises:
            MalformedRow: if the template refuses it, or renders the history so that the turn
                cannot be told from it.
            ValueError: if the row is a chat and there is no chat template.
        """
        if self.template is None or not conversation.messages:
            return self._render_plain(conversation)
        turns = conversation.assistant_turns
        if not turns:
            return ()
        messages = self.template.fitted(conversation.messages)
        try:
            return self._render_chat(self.template, messages, conversation.tools, turns)
        except MalformedRow:
            as_text = self.template.with_text_arguments(messages)
            if as_text is None:
                raise
            return self._render_chat(self.template, as_text, conversation.tools, turns)

    def encode(self, conversation: Conversation) -> list[EncodedConversation]:
        """Render and tokenise one conversation, for training.

        Returns:
            One sequence for each text of `render`, up to the last token that the assistant says:
            for a conversation of one turn the ids that `generate` is given and then gives. A row
            that carries the target's own ids is one sequence of the prompt's ids and these.
        """
        if conversation.answer_ids is not None:
            return self._encode_answers(conversation)
        encoded = []
        for part in self.render(conversation):
            ids, mask = self.tokens.encode(part.text, part.spans)
            end = int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0
            encoded.append(EncodedConversation(ids[:end], mask[:end]))
        return encoded

    def prompt_ids(self, conversation: Conversation) -> np.ndarray:
        """Give the ids that the target is shown when it is to say what comes next: int64 [length].

        Args:
            conversation: what was said so far; of a plain row, the text that comes before.

        Raises:
            MalformedRow: if the template refuses it.
        """
        if self.template is None or not conversation.messages:
            if conversation.plain is None:
                raise ValueError(self._no_template(conversation))
            text = conversation.plain[0]
        else:
            messages = self.template.fitted(conversation.messages)
            (text,) = self.template.render(
                [messages], conversation.tools, add_generation_prompt=True
            )
        return self.tokens.encode(text, ())[0]

    def _encode_answers(self, conversation: Conversation) -> list[EncodedConversation]:
        answers, messages = conversation.answer_ids or (), conversation.messages
        if len(answers) != 1 or not messages or messages[-1]["role"] != "assistant":
            raise MalformedRow(
                "a row with the target's own ids can be trained on only if its messages end in "
                "the one answer that they belong to"
            )
        prompt = self.prompt_ids(replace(conversation, messages=messages[:-1]))
        answer = np.asarray(answers[0], dtype=np.int64)
        mask = np.arange(prompt.size + answer.size) >= prompt.size
        return [EncodedConversation(np.concatenate([prompt, answer]), mask)]

    def _no_template(self, conversation: Conversation) -> str:
        return (
            f"the rows are chats ({conversation.shape}), but there is no chat template to render "
            "them with: use the instruction-tuned model's tokenizer, set tokenizer.chat_template, "
            "or pass chat_template="
        )

    def _render_plain(self, conversation: Conversation) -> tuple[AssistantSpans, ...]:
        if conversation.plain is None:
            raise ValueError(self._no_template(conversation))
        before, said = conversation.plain
        text = before + said
        if conversation.messages and self._eos and not text.endswith(self._eos):
            text += self._eos  # an answer ends; a text column is a text that may go on
        return (AssistantSpans(text, ((len(before), len(text)),)),)

    def _render_chat(
        self,
        template: ChatTemplate,
        messages: list[Message],
        tools: Sequence[Any] | None,
        turns: tuple[int, ...],
    ) -> tuple[AssistantSpans, ...]:
        plain = is_plain(messages)
        through = [messages[: turn + 1] for turn in turns]
        tracked: list[Spans] | None = None
        if template.tracks_generation:
            texts, tracked = template.render_tracked(through, tools)
        else:
            texts = template.render(through, tools, plain=plain)
        # Templates may refuse to render nothing: a conversation that the assistant opens is seen
        # to later.
        prompts: list[str | None] = [None] if turns[0] == 0 else []
        contexts = [messages[:turn] for turn in turns if turn > 0]
        prompts += template.render(contexts, tools, add_generation_prompt=True, plain=plain)
        spans: list[Spans] = []
        for i, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
            start = self._turn_start(template, prompt, text, messages[: turns[i]], tools)
            end = template.turn_end(text, start)
            spans.append(
                [(start, end)]
                if tracked is None
                else generation_spans(template, tracked[i], start, end, text)
            )
        whole = turns[-1] + 1 == len(messages)
        if whole and len(turns) == 1:  # most conversations
            return (AssistantSpans(texts[0], tuple(spans[0]), turns),)
        full = texts[-1] if whole else template.render([messages], tools, plain=plain)[0]
        return tuple(grouped_turns(full, texts, spans, turns))

    def _turn_start(
        self,
        template: ChatTemplate,
        prompt: str | None,
        text: str,
        context: list[Message],
        tools: Sequence[Any] | None,
    ) -> int:
        """Find where the target begins to speak in a text that ends with its turn."""
        if prompt is None:
            header = template.generation_prompt
            if not header or header not in text:
                raise MalformedRow(
                    "the assistant speaks first, and the chat template does not show where that "
                    "begins"
                )
            return text.index(header) + len(header)
        if text.startswith(prompt):
            return len(prompt)
        # The prompt holds more than the history shows, such as an opened <think>: what both share
        # of the header, in whole tokens, is what the target does not say.
        header = template.generation_prompt
        if header and prompt.endswith(header):
            base = prompt[: -len(header)]
        else:
            base = template.render([context], tools)[0]
            header = prompt[len(base) :] if prompt.startswith(base) else ""
        if not text.startswith(base) or not header:
            raise MalformedRow(
                "the chat template renders the history anew once this turn follows, so that the "
                "turn cannot be told from it"
            )
        shared = self.tokens.shared_whole_tokens(header, text[len(base) :])
        if not shared:
            raise MalformedRow(
                f"the chat template's generation prompt {header!r} is not how its assistant turns "
                "begin"
            )
        return len(base) + shared


def render_conversation(
    tokenizer: Any,
    conversation: Conversation | Mapping[str, Any] | Sequence[Message],
    *,
    chat_template: str | bool | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[EncodedConversation]:
    """Give one conversation's token ids and a mask of those that are the assistant's own.

    For many conversations make one `ChatRenderer` and call its `encode`.

    Args:
        tokenizer: the target's.
        conversation: a row of any known shape, or its messages.
        chat_template: see `ChatRenderer`.
        template_kwargs: see `ChatRenderer`.

    Returns:
        One sequence for most templates; more where a template writes earlier turns anew (each turn
        is marked in exactly one of them); none if the assistant says nothing.

    Example:
        ```python
        (encoded,) = render_conversation(tokenizer, [{"role": "user", "content": "Hi"},
                                                     {"role": "assistant", "content": "Hello!"}])
        tokenizer.decode(encoded.input_ids[encoded.assistant_mask])   # "Hello!<|im_end|>"
        ```
    """
    if not isinstance(conversation, Conversation):
        is_row = isinstance(conversation, Mapping)
        conversation = read_row(conversation if is_row else {"messages": list(conversation)})
    renderer = ChatRenderer(
        tokenizer, chat_template=chat_template, template_kwargs=template_kwargs
    )
    return renderer.encode(conversation)
