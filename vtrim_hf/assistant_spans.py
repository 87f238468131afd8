"""Where in rendered texts the assistant speaks, and how turns share a text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .chat_template import ChatTemplate
from .template_runner import Spans


@dataclass(frozen=True)
class AssistantSpans:
    """A rendered text and where in it the assistant speaks.

    Attributes:
        text: what the tokenizer is given (`add_special_tokens=False`).
        spans: character ranges [start, end), ascending, each through its end-of-turn token.
        turns: positions, in the conversation, of the messages that the spans come from.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    turns: tuple[int, ...] = ()

    def said(self) -> tuple[str, ...]:
        """The texts of the spans."""
        return tuple(self.text[start:end] for start, end in self.spans)


@dataclass(frozen=True, eq=False)
class EncodedConversation:
    """Token ids and a mask of the assistant's own.

    Attributes:
        input_ids: int64 [length].
        assistant_mask: bool [length], true where the target must say the token.
    """

    input_ids: np.ndarray
    assistant_mask: np.ndarray

    def __len__(self) -> int:
        return int(self.input_ids.size)


def generation_spans(
    template: ChatTemplate, marked: Spans, start: int, end: int, text: str
) -> Spans:
    """Cut `{% generation %}` ranges to the turn; the last one takes the end-of-turn token in."""
    inside = [(max(a, start), min(b, end)) for a, b in marked if b > start and a < end]
    if inside and text[inside[-1][1] : end].strip() in template.added_tokens:
        # Templates often close the block before the end-of-turn token; the target says it all the
        # same.
        inside[-1] = (inside[-1][0], end)
    return inside


def grouped_turns(
    full: str, texts: list[str], spans: list[Spans], turns: tuple[int, ...]
) -> list[AssistantSpans]:
    """Put the turns into as few texts as hold each as it was said, the latest text first."""
    left, groups, text = list(range(len(turns))), [], full
    while left:
        held = [i for i in left if not spans[i] or text.startswith(texts[i][: spans[i][-1][1]])]
        if held:
            ranges = tuple(span for i in held for span in spans[i])
            groups.append(AssistantSpans(text, ranges, tuple(turns[i] for i in held)))
            left = [i for i in left if i not in held]
        if left:
            text = texts[left[-1]]
    return groups
