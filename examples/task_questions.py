"""What bench_task_quality.py asks: its tasks, their prompts and their right answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtrim_hf.chat_data import open_chat_data
from vtrim_hf.chat_messages import MalformedRow, Message, content_text
from vtrim_hf.chat_rendering import ChatRenderer
from vtrim_hf.chat_rows import Conversation, read_row
from vtrim_hf.metrics.call_match.function_calls import call_match
from vtrim_hf.metrics.entity_f1.entity_lists import entity_f1
from vtrim_hf.metrics.number_match.final_numbers import number_match

SHOT_CHARACTERS = 1500  # of a conversation that is shown


@dataclass(frozen=True)
class Task:
    """What is asked, and how answers are scored.

    Attributes:
        title: for people.
        metric: the `evaluate` module, whose main output has the same name.
        score: what that module computes with, of answers and right answers.
        new_tokens: of an answer at most, unless it is given.
        others: further outputs that are told.
    """

    title: str
    metric: str
    score: Callable[[Sequence[str], Sequence[str]], object]
    new_tokens: int
    others: tuple[str, ...]


TASKS = {
    "math": Task("GSM8K, final number", "number_match", number_match, 256, ("unanswered",)),
    "ner": Task(
        "named entities, F1",
        "entity_f1",
        entity_f1,
        128,
        ("precision", "recall", "exact", "unreadable"),
    ),
    "function_calling": Task(
        "function calls, all right", "call_match", call_match, 192, ("name_match", "unreadable")
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


def conversations(path: Path) -> Iterator[tuple[int, Conversation]]:
    """Give the conversations of a file that end in an answer of text, whatever shape rows have.

    Each stands behind the number of its line.

    Raises:
        SystemExit: if there is no such file.
    """
    if not path.is_file():
        raise SystemExit(f"there is no {path}: examples/build_domains.py makes it")
    for row in open_chat_data(str(path)):
        try:
            found = read_row(row.row)
        except MalformedRow:
            continue
        last = found.messages[-1] if len(found.messages) > 1 else {}
        if last.get("role") == "assistant" and isinstance(last.get("content"), str):
            yield row.line, found


def examples(path: Path, number: int) -> list[Message]:
    """Return the first short conversations whose answer is not empty, one behind the other.

    Those with tools of their own are left out: a prompt has only the tools of its last turn.

    Raises:
        SystemExit: if there are fewer.
    """
    short = (
        one.messages
        for _, one in conversations(path)
        if sum(len(content_text(turn.get("content"))) for turn in one.messages) <= SHOT_CHARACTERS
        and one.messages[-1]["content"].strip() not in ("", "{}", "[]")
        and not one.tools
    )
    found = list(itertools.islice(short, number))
    if len(found) < number:
        raise SystemExit(
            f"{path} holds {len(found)} answered conversations of at most {SHOT_CHARACTERS:,} "
            f"characters and without tools, asked for {number}: lower --shots"
        )
    return list(itertools.chain.from_iterable(found))


def read_questions(
    folder: Path, task: Task, tokenizer: Any, number: int, *, shots: int, longest: int
) -> Questions:
    """Take the first prompts of a task's test part that are not too long.

    Args:
        folder: with train.jsonl and test.jsonl.
        task: what is asked; every right answer must be one that it can score.
        tokenizer: the target's.
        number: how many.
        shots: conversations of the training part that are shown before each.
        longest: tokens of a prompt.

    Raises:
        SystemExit: if there are fewer prompts or conversations, or a right answer cannot be
            scored.
        ValueError: if the tokenizer has no chat template.
    """
    before = examples(folder / "train.jsonl", shots) if shots else []
    renderer = ChatRenderer(tokenizer)
    prompts: list[list[int]] = []
    answers: list[str] = []
    longer = 0
    test = folder / "test.jsonl"
    for line, one in conversations(test):
        if len(prompts) == number:
            break
        asked = Conversation("messages", (*before, *one.messages[:-1]), one.tools)
        ids = renderer.prompt_ids(asked)
        if ids.size > longest:
            longer += 1
            continue
        answer = one.messages[-1]["content"]
        try:
            task.score([answer], [answer])
        except ValueError as error:
            raise SystemExit(
                f"{test}:{line}: the right answer {str(error).removeprefix('reference 0 ')}, or "
                f"{task.metric} cannot score by it: mend the row or take it out"
            ) from error
        prompts.append(ids.tolist())
        answers.append(answer)
    if len(prompts) < number:
        raise SystemExit(
            f"{test} holds {len(prompts)} prompts of at most {longest:,} tokens, "
            f"asked for {number}: lower --prompts or raise --max-prompt-tokens"
        )
    return Questions(prompts, answers, longer)
