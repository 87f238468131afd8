"""The prompts that benchmarks of drafts ask: evenly from all over chat data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtrim_hf.batch_counting import CountRules
from vtrim_hf.chat_data import open_chat_data
from vtrim_hf.chat_messages import MalformedRow, content_text
from vtrim_hf.chat_rendering import ChatRenderer
from vtrim_hf.chat_rows import read_row
from vtrim_hf.prompt_reading import PromptReader


@dataclass(frozen=True)
class Spread:
    """Prompts that were taken, and what was passed over.

    Attributes:
        prompts: ids, one list a prompt, in the target's own rendering.
        left_out: how many were left out because they are too long.
        unreadable: how many rows have no prompt that can be read, torn lines among them.
    """

    prompts: list[list[int]]
    left_out: int
    unreadable: int


def spread_prompts(data: Any, tokenizer: Any, number: int, longest: int | None = None) -> Spread:
    """Take prompts evenly from all over chat data: many sets are sorted by kind.

    Rows that cannot be read are told of on the screen.

    Args:
        data: anything that `open_chat_data` opens.
        tokenizer: the target's.
        number: how many.
        longest: characters of the messages, above which a prompt is left out.

    Raises:
        SystemExit: if there are fewer.
    """
    name = data if isinstance(data, str | Path) else "the search part"
    reader = PromptReader(open_chat_data(data), ChatRenderer(tokenizer), sys.maxsize, strict=False)
    every = [prompt for prompt in reader if prompt is not None]
    short = [
        prompt
        for prompt in every
        if longest is None
        or sum(len(content_text(turn.get("content"))) for turn in prompt.context.messages)
        <= longest
    ]
    left_out = len(every) - len(short)
    skipped = reader.skipped
    if skipped.number:
        print(
            f"{name}: {skipped.number} rows have no prompt that can be read and are passed over, "
            f"the first one: {skipped.first[0]}"
        )
    if len(short) < number:
        longer = f" ({left_out} longer ones are left out)" if left_out else ""
        raise SystemExit(f"{name} holds {len(short)} prompts{longer}, asked for {number}")
    prompts = [list(short[place * len(short) // number].ids) for place in range(number)]
    return Spread(prompts, left_out, skipped.number)


def search_rows(data: Path, heldout: float, vocab_size: int) -> Iterator[Any]:
    """Give the rows of chat data that are in the search part of its counts."""
    rules = CountRules(vocab_size=vocab_size, heldout=heldout)
    for row in open_chat_data(data):
        try:
            place = rules.place(read_row(row.row).digest())
        except MalformedRow:
            continue
        if place < rules.blocks:
            yield row.row
