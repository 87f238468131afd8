"""What bench_task_quality.py asks: its tasks, their prompts and their right answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtrim_hf.chat_data import open_chat_data
from vtrim_hf.decoding_prompts import prepare_prompts

SHOT_CHARACTERS = 1500  # of a conversation that is shown


@dataclass(frozen=True)
class Task:
    """What is asked, and how answers are scored.

    Attributes:
        title: for people.
        metric: the `evaluate` module, whose main output has the same name.
        new_tokens: of an answer at most, unless it is given.
        others: further outputs that are told.
    """

    title: str
    metric: str
    new_tokens: int
    others: tuple[str, ...]


TASKS = {
    "math": Task("GSM8K, final number", "number_match", 256, ("unanswered",)),
    "ner": Task(
        "named entities, F1", "entity_f1", 128, ("precision", "recall", "exact", "unreadable")
    ),
    "function_calling": Task(
        "function calls, all right", "call_match", 192, ("name_match", "unreadable")
    ),
}
"""By the name of their folder."""


@dataclass(frozen=True)
class Questions:
    """What one task asks.

    Attributes:
        prompts: ids, in the target's own rendering.
        answers: the right ones, as texts.
        longer: how many prompts were passed over because they are too long.
    """

    prompts: list[list[int]]
    answers: list[str]
    longer: int


def conversations(path: Path) -> Iterator[list[dict[str, str]]]:
    """Give the conversations of a file that end in an answer.

    Raises:
        SystemExit: if there is no such file.
    """
    if not path.is_file():
        raise SystemExit(f"there is no {path}: examples/build_domains.py makes it")
    for row in open_chat_data(str(path)):
        messages = row.row["messages"] if isinstance(row.row, Mapping) else []
        if len(messages) > 1 and messages[-1]["role"] == "assistant":
            yield messages


def examples(path: Path, number: int) -> list[dict[str, str]]:
    """Return the first short conversations whose answer is not empty, one behind the other."""
    short = (
        messages
        for messages in conversations(path)
        if sum(len(message["content"]) for message in messages) <= SHOT_CHARACTERS
        and messages[-1]["content"].strip() not in ("", "{}", "[]")
    )
    return list(itertools.chain.from_iterable(itertools.islice(short, number)))


def read_questions(
    folder: Path, tokenizer: Any, number: int, *, shots: int, longest: int
) -> Questions:
    """Take the first prompts of a task's test part that are not too long.

    Args:
        folder: with train.jsonl and test.jsonl.
        tokenizer: the target's.
        number: how many.
        shots: conversations of the training part that are shown before each.
        longest: tokens of a prompt.

    Raises:
        SystemExit: if there are fewer.
    """
    before = examples(folder / "train.jsonl", shots) if shots else []
    prompts: list[list[int]] = []
    answers: list[str] = []
    longer = 0
    for messages in conversations(folder / "test.jsonl"):
        if len(prompts) == number:
            break
        (asked,) = prepare_prompts([[*before, *messages[:-1]]], tokenizer)
        ids = asked["input_ids"][0].tolist()
        if len(ids) > longest:
            longer += 1
            continue
        prompts.append(ids)
        answers.append(messages[-1]["content"])
    if len(prompts) < number:
        raise SystemExit(
            f"{folder / 'test.jsonl'} holds {len(prompts)} prompts of at most {longest:,} tokens, "
            f"asked for {number}"
        )
    return Questions(prompts, answers, longer)
