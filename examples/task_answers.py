"""Answers for bench_task_quality.py: the target's own and those with a draft; their scores."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from task_questions import Questions, Task
from tqdm.auto import tqdm

from vtrim_hf.decoding_prompts import prepare_prompts
from vtrim_hf.decoding_runs import DecodingRuns, first_difference
from vtrim_hf.decoding_ways import plain_ways, ways
from vtrim_hf.kept_rows import KeptRows
from vtrim_hf.metrics import metric_path


def each_draft(by_position: Sequence[int], drafts: int) -> list[int]:
    """Return one length a draft, in ascending order.

    Args:
        by_position: how many drafts reach each position.
        drafts: how many there are.
    """
    reached = itertools.pairwise([drafts, *by_position, 0])
    return [
        length for length, (here, further) in enumerate(reached) for _ in range(here - further)
    ]


def answer_all(
    target: Any, draft: Any, questions: Questions, new_tokens: int, kept: KeptRows, title: str
) -> None:
    """Answer every prompt alone and with the draft; what is kept already is not done again."""
    run = DecodingRuns(
        model=target,
        kwargs={},
        max_new_tokens=new_tokens,
        do_sample=False,
        seed=0,
        tokenizer=None,
    )
    alone, drafted = plain_ways(target, [])[0][0], ways(target, {"draft": draft})[0]
    every = prepare_prompts(
        questions.prompts,
        device=target.device,
        max_positions=getattr(target.config.get_text_config(), "max_position_embeddings", None),
        max_new_tokens=new_tokens,
    )
    with drafted:
        for index in tqdm(range(len(kept.rows), len(every)), desc=title, disable=None):
            said, _ = run.call(alone, every[index], index, clocks="none")
            other, tally = run.call(drafted, every[index], index, clocks="none")
            row = {
                "plain": said,
                "draft": other,
                "accepted": each_draft(tally.accepted, tally.verified_drafts),
                "drafted": each_draft(tally.drafted, tally.verified_drafts),
                "parting": None,
            }
            if said != other:
                row["parting"] = first_difference(target, every[index]["input_ids"], said, other)
            kept.add(row)


def scored(
    task: Task,
    rows: Sequence[Mapping[str, Any]],
    right: Sequence[str],
    tokenizer: Any,
    kept_ids: Any,
) -> dict[str, Any]:
    """Score all answers, and what the draft did for them."""
    import evaluate

    def computed(name: str, **inputs: Any) -> Any:
        return evaluate.load(metric_path(name), keep_in_memory=True).compute(**inputs)

    texts = {
        way: [tokenizer.decode(row[way], skip_special_tokens=True) for row in rows]
        for way in ("plain", "draft")
    }
    taken, drafted, said = (
        [row[part] for row in rows] for part in ("accepted", "drafted", "plain")
    )
    partings = [{"prompt": at, **row["parting"]} for at, row in enumerate(rows) if row["parting"]]
    return {
        **{
            way: computed(task.metric, predictions=some, references=list(right))
            for way, some in texts.items()
        },
        "identical": [len(rows) - len(partings), len(rows)],
        "partings": partings,
        "acceptance_length": computed("acceptance_length", predictions=taken, drafted=drafted)
        if any(taken)
        else None,
        "token_coverage": None
        if kept_ids is None
        else computed("token_coverage", predictions=said, kept_ids=kept_ids, tokenizer=tokenizer),
    }
