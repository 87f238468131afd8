"""The prompts in chat data: what is left of a conversation when its answer is taken away."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .batch_counting import KEPT_SKIPS, SkippedRow, SkippedRows
from .chat_data import ChatSource
from .chat_messages import MalformedRow
from .chat_rendering import ChatRenderer
from .chat_rows import RECORD_COLUMN, Conversation, read_row


@dataclass(frozen=True)
class Prompt:
    """What the target is to answer: its hash, what was said, and its ids."""

    key: str
    context: Conversation
    ids: tuple[int, ...]


class PromptReader:
    """Reads prompts; notes the rows that have none."""

    def __init__(
        self, source: ChatSource, renderer: ChatRenderer, longest: int, strict: bool
    ) -> None:
        self._source, self._renderer = source, renderer
        self._longest, self._strict = longest, strict
        self._first: list[SkippedRow] = []
        self._number = 0

    @property
    def skipped(self) -> SkippedRows:
        return SkippedRows(self._number, tuple(self._first))

    def __iter__(self) -> Iterator[Prompt | None]:
        """Give each row's prompt, or None for a row that has none."""
        for row in self._source:
            if isinstance(row.row, Mapping) and row.row.get(RECORD_COLUMN) is not None:
                continue
            try:
                if row.problem is not None:
                    raise MalformedRow(row.problem)
                yield self._prompt(read_row(row.row))
            except MalformedRow as error:
                skipped = SkippedRow(row.source, row.line, str(error))
                if self._strict:
                    raise ValueError(f"{skipped} (strict: the first such row stops)") from error
                self._number += 1
                if len(self._first) < KEPT_SKIPS:
                    self._first.append(skipped)
                yield None

    def _prompt(self, conversation: Conversation) -> Prompt:
        context = _context(conversation, plain=self._renderer.template is None)
        try:
            json.dumps(context.messages)
        except (TypeError, ValueError) as error:
            raise MalformedRow(f"the prompt cannot be written as JSON: {error}") from error
        key = context.digest().hex()
        ids = self._renderer.prompt_ids(context)
        if not 0 < len(ids) <= self._longest:
            raise MalformedRow(
                f"the prompt has {len(ids)} tokens; with max_new_tokens the target takes 1 to "
                f"{self._longest}"
            )
        return Prompt(key, context, tuple(ids.tolist()))


def _context(conversation: Conversation, *, plain: bool) -> Conversation:
    """Cut a conversation to what the target is to answer."""
    if plain and conversation.plain is not None:
        before = conversation.plain[0]
        if not before:
            raise MalformedRow("a row of nothing but text has no prompt")
        return Conversation(conversation.shape, plain=(before, ""))
    messages = conversation.messages
    if messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not messages:
        raise MalformedRow("the row has no prompt before its answer")
    return Conversation(conversation.shape, messages, conversation.tools)


def answered_keys(source: ChatSource, *, plain: bool) -> Iterator[str]:
    """Give the keys of all prompts that rows answer, those of earlier turns among them.

    Args:
        source: chat data; rows without a prompt are passed over.
        plain: whether there is no chat template.
    """
    for row in source:
        is_record = isinstance(row.row, Mapping) and row.row.get(RECORD_COLUMN) is not None
        if is_record or row.problem is not None:
            continue
        try:
            conversation = read_row(row.row)
            yield _context(conversation, plain=plain).digest().hex()
            messages = conversation.messages
            for at in range(1, len(messages)):
                if messages[at]["role"] == "assistant":
                    before = Conversation(conversation.shape, messages[:at], conversation.tools)
                    yield before.digest().hex()
        except MalformedRow:
            continue


def unanswered(
    prompts: PromptReader, answered: set[str], seen: set[str], limit: int | None, bar: Any
) -> Iterator[Prompt]:
    """Give the prompts that have no answer yet; `seen` takes the hashes of all of them."""
    for prompt in prompts:
        if limit is not None and len(seen) >= limit:
            return
        bar.update(1)
        if prompt is None or prompt.key in seen:
            continue
        seen.add(prompt.key)
        if prompt.key not in answered:
            yield prompt


def windows(prompts: Iterator[Prompt], size: int) -> Iterator[list[Prompt]]:
    window: list[Prompt] = []
    for prompt in prompts:
        window.append(prompt)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window
