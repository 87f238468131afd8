"""Which of a domain's counted conversations are for what: trained on, choosing, or measured.

Nothing that is measured was searched on, trained on, or chose the checkpoint; and no prompt that
is answered, in whichever turn, is of two kinds: of conversations that share one, the hash of one
decides for all. So they stay where they are, whatever order the rows come in.

                         with test data                   without
    measured             the test data                    the counts' held-out share, but a quarter
    chooses checkpoint   1 in 20                          that quarter of the held-out share
    trained on           the rest                         all that is not held out
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .batch_counting import CountRules
from .chat_data import open_chat_data
from .chat_messages import MalformedRow
from .chat_rows import RECORD_COLUMN, Conversation, read_row
from .recipe import Domain
from .training_split import answered_prompts, by_prompt, held_out

KEPT_PROMPTS = 1000
"""Held-out conversations of a domain without test data that are kept to be measured."""

DIVIDING = 3
"""Part of what a training depends on: raise it when rows would be divided otherwise."""

_CHOOSING = 0.05  # of all conversations, where they are held out for nothing else
_MOST_CHOOSING = 4  # of the conversations that may, one in so many chooses at most


@dataclass(frozen=True)
class DividedRows:
    """A domain's conversations as JSON lines, each kind in the order of their hashes.

    Attributes:
        training: to be trained on.
        evaluation: to choose the best checkpoint by.
        measured: to be measured, if the domain has no test data; none of the others.
    """

    training: tuple[str, ...]
    evaluation: tuple[str, ...]
    measured: tuple[str, ...]


def counted_rows(domain: Domain, counted: Iterable[Any]) -> Iterator[tuple[Any, Conversation]]:
    """Give the rows that were counted for a domain, and what they say.

    Args:
        domain: the domain.
        counted: its data, or the target's answers to it.
    """
    for data in counted:
        split = None if domain.from_target is not None else domain.split
        for row in open_chat_data(data, split=split):
            is_record = isinstance(row.row, Mapping) and RECORD_COLUMN in row.row
            if row.problem is not None or is_record:
                continue
            try:
                yield row.row, read_row(row.row, text_column=domain.text_column)
            except MalformedRow:
                continue


def held_out_rows(domain: Domain, counted: Iterable[Any]) -> Iterator[Any]:
    """Give the rows that the counts hold out: no conversation is one that was searched on."""
    for row, conversation in counted_rows(domain, counted):
        try:
            if _is_held_out(domain, conversation.digest()):
                yield row
        except MalformedRow:
            continue


def divided(domain: Domain, counted: Iterable[Any]) -> DividedRows:
    """Divide a domain's conversations, for a draft that is trained.

    Args:
        domain: the domain.
        counted: its data, or the target's answers to it.
    """
    lines: dict[bytes, list[str]] = {}
    prompts: dict[bytes, tuple[bytes, ...]] = {}
    speaking = set()
    for row, conversation in counted_rows(domain, counted):
        try:
            digest = conversation.digest()
            prompts[digest] = answered_prompts(conversation)
        except MalformedRow:
            continue
        lines.setdefault(digest, []).append(line_of(row))
        if conversation.has_answer:
            speaking.add(digest)
    groups = by_prompt(prompts)
    apart = {one for one in groups if domain.test is None and _is_held_out(domain, one)}
    answered = {one for one, group in groups.items() if group & speaking}
    rest = answered - apart
    eligible = sorted(apart & answered)
    if eligible and len(apart) > 1:
        chosen = set(eligible[: max(1, len(apart) // _MOST_CHOOSING)])
    else:
        by_chance = sorted(held_out(rest, _CHOOSING))  # of few it might be all
        chosen = set(by_chance[: max(1, len(rest) // _MOST_CHOOSING)])

    def those(ones: set[bytes]) -> set[bytes]:
        return {digest for one in ones for digest in groups[one]}

    # Of several answers to a prompt that is held out, some may have been searched on.
    measured = {digest for digest in those(apart - chosen) if _is_held_out(domain, digest)}

    def of(digests: set[bytes]) -> tuple[str, ...]:
        return tuple(text for digest in sorted(digests) for text in lines[digest])

    return DividedRows(
        of(those(rest - chosen) & speaking),
        of(those(chosen) & speaking),
        of(measured)[:KEPT_PROMPTS],
    )


def line_of(row: Any) -> str:
    """Return a row as a line of JSON; columns that no conversation has may hold anything."""
    return json.dumps(row, ensure_ascii=False, default=str) + "\n"


def _is_held_out(domain: Domain, digest: bytes) -> bool:
    rules = CountRules(vocab_size=1, heldout=domain.heldout)
    return rules.place(digest) >= rules.blocks
