"""Does a draft change how well its target does its tasks? Scores with and without, side by side.

    python examples/bench_task_quality.py --data domains --target smollm2 --draft drafts/ner

Three tasks of the folder that `build_domains.py` makes, answered by the target alone and with the
draft, greedy, on the same prompts:

- `math`: GSM8K's test part, the final number (`number_match`);
- `ner`: sentences with tagged entities, F1 against the tags (`entity_f1`);
- `function_calling`: the right calls with the right arguments (`call_match`).

In float32 the two texts are compared for every prompt: they must be the same, and then so is every
score. In bfloat16 near-ties round otherwise where several tokens are verified at once: there both
scores are told, and the share of same texts. Scores come from the package's `evaluate` modules,
and beside them the acceptance length, and which share of what the target said the draft can say.

`--draft DRAFT` is for all tasks, `--draft math=DRAFT` for one, again and again. Prompts begin with
the first short conversations of the training part (`--shots`): without any, small targets hardly
ever answer in the form that is asked for, and all scores are near 0.

40 prompts take about 20 minutes a task with SmolLM2 on 2 cores (estimated: 30 s for the four
answers to a prompt), so an hour in all; `--tasks` takes them one by one. The same command goes on
where it was interrupted. OUTPUT holds report.md, figures.json and all answers.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from bench_parts import command_line
from task_quality_report import DTYPES, markdown
from task_questions import TASKS, Questions, Task, read_questions
from tqdm.auto import tqdm

from vtrim_hf import check_pair
from vtrim_hf.chat_data import open_chat_data
from vtrim_hf.decoding_prompts import prepare_prompts
from vtrim_hf.decoding_runs import DecodingRuns
from vtrim_hf.decoding_ways import machine_facts, plain_ways, ways
from vtrim_hf.kept_rows import KeptRows
from vtrim_hf.metrics import metric_path
from vtrim_hf.named_models import NamedModel
from vtrim_hf.vocabulary import write_atomically

NEAR_TIE_STEPS = 2
FORMAT = 1  # raise it when answers would be found or scored otherwise


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


@torch.no_grad()
def parting(
    target: Any, prompt: torch.Tensor, alone: Sequence[int], other: Sequence[int]
) -> dict[str, Any]:
    """Say where two texts part, and whether the two tokens are as good as equal there."""
    pairs = enumerate(itertools.zip_longest(alone, other))
    position = next(at for at, (one, two) in pairs if one != two)
    found: dict[str, Any] = {"position": position, "gap": None, "near_tie": False}
    if position < min(len(alone), len(other)):
        said = torch.tensor([alone[:position]], dtype=prompt.dtype, device=prompt.device)
        logits = target(torch.cat([prompt, said], dim=1), logits_to_keep=1).logits[0, -1].float()
        gap = float((logits[alone[position]] - logits[other[position]]).abs())
        step = torch.finfo(target.dtype).eps * max(1.0, float(logits.abs().max()))
        found |= {"gap": gap, "near_tie": gap <= NEAR_TIE_STEPS * step}
    return found


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
                row["parting"] = parting(target, every[index]["input_ids"], said, other)
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


def measure(
    name: str,
    target: NamedModel,
    draft: NamedModel,
    questions: Questions,
    output: Path,
    call: Mapping[str, Any],
) -> dict[str, Any]:
    """Answer and score one task in both dtypes, or go on; return its figures."""
    found: dict[str, Any] = {}
    every: list[KeptRows] = []
    tokenizer, new_tokens = target.tokenizer, call["max_new_tokens"]
    for dtype in DTYPES:
        model, small = target.model(dtype), draft.model(dtype)
        check_pair(model, small, tokenizer=tokenizer)
        found |= {
            "machine": machine_facts(model),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "draft_vocab_size": small.config.draft_vocab_size,
        }
        place = {"dtype": dtype, "machine": found["machine"]}
        kept = KeptRows.beside(output / f"{name}_{dtype}.json", {**call, **place})
        if kept.rows:
            print(f"{name}, {dtype}: going on, {len(kept.rows)} prompts are answered already")
        answer_all(model, small, questions, new_tokens, kept, f"{name}, {dtype}")
        every.append(kept)
        ids = None if small.kept_ids is None else small.kept_ids.tolist()
        found[dtype] = scored(TASKS[name], kept.rows, questions.answers, tokenizer, ids)
        found[dtype]["cut"] = sum(len(row["plain"]) >= new_tokens for row in kept.rows)
    target.release()
    answers = [
        {
            dtype: {way: tokenizer.decode(row[way]) for way in ("plain", "draft")}
            for dtype, row in zip(DTYPES, rows, strict=True)
        }
        for rows in zip(*(kept.rows for kept in every), strict=True)
    ]
    lines = "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
    write_atomically(output / f"{name}_answers.jsonl", lines.encode())
    for kept in every:
        kept.remove()
    return found


def named(words: Sequence[str], tasks: Sequence[str]) -> dict[str, str]:
    """Return the draft of each task: TASK=DRAFT is for one of them, DRAFT for all others.

    Raises:
        ValueError: naming a task that has none.
    """
    own: dict[str, str] = {}
    for word in words:
        name, equals, place = word.partition("=")
        own |= {name: place} if equals and name in TASKS else {"": word}
    for task in tasks:
        if task not in own and "" not in own:
            raise ValueError(f"{task} has no draft: give --draft {task}=DRAFT, or leave it out")
    return {task: own.get(task) or own[""] for task in tasks}


def parsed(argv: Sequence[str] | None) -> Any:
    """Read the arguments; `drafts` are those of each task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="what build_domains.py made")
    parser.add_argument("--target", default="smollm2", help="Hub id, folder or smollm2")
    parser.add_argument("--draft", action="append", required=True, help="DRAFT or TASK=DRAFT")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS], metavar="TASK")
    parser.add_argument("--prompts", type=int, default=40, help="of each task")
    parser.add_argument("--shots", type=int, default=2, help="conversations before each prompt")
    parser.add_argument("--max-new-tokens", type=int, help="default: by task, 128 to 256")
    parser.add_argument("--max-prompt-tokens", type=int, default=2048)
    parser.add_argument("--output", type=Path, default=Path("examples/evidence/task_quality"))
    args = parser.parse_args(argv)
    if args.max_new_tokens is None:
        args.new_tokens = {name: TASKS[name].new_tokens for name in args.tasks}
    else:
        args.new_tokens = dict.fromkeys(args.tasks, args.max_new_tokens)
    if min(args.prompts, args.max_prompt_tokens, *args.new_tokens.values()) < 1 or args.shots < 0:
        parser.error("numbers must be at least 1, --shots at least 0")
    try:
        args.drafts = named(args.draft, args.tasks)
    except ValueError as error:
        parser.error(str(error))
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    args = parsed(argv)
    target = NamedModel(args.target)
    figures = args.output / "figures.json"
    found = json.loads(figures.read_text("utf-8")) if figures.is_file() else {}
    if found.get("target_identity") != target.identity:
        found = {"target": args.target, "target_identity": target.identity, "tasks": {}}
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.tasks:
        data, draft = args.data / name, NamedModel(args.drafts[name])
        questions = read_questions(
            data, target.tokenizer, args.prompts, shots=args.shots, longest=args.max_prompt_tokens
        )
        asked = json.dumps([questions.prompts, questions.answers]).encode()
        call = {
            "format": FORMAT,
            "target": target.identity,
            "draft": draft.identity,
            "asked": hashlib.sha256(asked).hexdigest(),
            "max_new_tokens": args.new_tokens[name],
        }
        if found["tasks"].get(name, {}).get("call") == call:
            print(f"{name} in {figures} is of this call already; delete it to measure anew")
            continue
        identify = open_chat_data(str(data / "test.jsonl")).identity
        measured = measure(name, target, draft, questions, args.output, call)
        found["tasks"][name] = {
            "call": call,
            "command": command_line("bench_task_quality.py", argv),
            "draft": args.drafts[name],
            "data": str(data / "test.jsonl"),
            "data_fingerprint": (identify() if identify else "").rpartition("=")[2],
            "prompts": args.prompts,
            "longer": questions.longer,
            "shots": args.shots,
            "max_new_tokens": args.new_tokens[name],
            "max_prompt_tokens": args.max_prompt_tokens,
            "evaluate": metadata.version("evaluate"),
            **measured,
        }
        found["parameters"] = measured["parameters"]
        found["tasks"] = {
            known: found["tasks"][known] for known in TASKS if known in found["tasks"]
        }
        write_atomically(figures, (json.dumps(found, indent=1) + "\n").encode())
        write_atomically(args.output / "report.md", markdown(found).encode())
    text = markdown(found)
    write_atomically(args.output / "report.md", text.encode())
    print(text)
    changed = [
        f"{name}, prompt {apart['prompt']}, token {apart['position']}"
        for name in args.tasks
        for apart in found["tasks"][name]["float32"]["partings"]
        if not apart["near_tie"]
    ]
    if changed:
        raise SystemExit(
            "a draft changed a text in float32, at no near-tie: " + "; ".join(changed)
        )


if __name__ == "__main__":
    main()
