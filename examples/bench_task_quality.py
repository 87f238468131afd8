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

`--draft DRAFT` is for all tasks, `--draft math=DRAFT` for one, again and again (and for a place
with `=` in it); tasks that have a draft are measured, or those that `--tasks` names. Prompts begin
with the first short conversations of the training part (`--shots`): without any, small targets
hardly ever answer in the form that is asked for, and all scores are near 0.

16 prompts of each of three tasks took 22 minutes with SmolLM2 on 2 cores, so 40 take about 18 a
task. After `--minutes` it ends, wherever it is, and the same command goes on; what OUTPUT holds of
other tasks, by the same target, stays. OUTPUT holds report.md, figures.json and report.png, WORK
all answers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench_arguments import add_places, data_folder
from bench_files import kept_rows
from bench_parts import check_drafts, model_named, rows_of
from bench_results import (
    FIGURES,
    command_line,
    digest_of,
    ended_after,
    machines_of,
    measured_before,
    write_results,
)
from task_answers import answer_all, scored
from task_quality_report import DTYPES, draw, markdown
from task_questions import TASKS, Questions, read_questions

from vtrim_hf.chat_data import open_chat_data
from vtrim_hf.decoding_ways import machine_facts
from vtrim_hf.kept_rows import KeptRows
from vtrim_hf.named_models import NamedModel
from vtrim_hf.vocabulary import write_atomically

ROW = ("plain", "draft", "accepted", "drafted", "parting")
FORMAT = 2  # raise it when answers would be found or scored otherwise


def measure(
    name: str,
    target: NamedModel,
    draft: NamedModel,
    questions: Questions,
    work: Path,
    call: Mapping[str, Any],
) -> tuple[dict[str, Any], list[KeptRows]]:
    """Answer and score one task in both dtypes, or go on.

    Returns:
        Its figures, and the rows that they come from, which can go once the figures are written.
    """
    found: dict[str, Any] = {}
    every: list[KeptRows] = []
    tokenizer, new_tokens = target.tokenizer, call["max_new_tokens"]
    for dtype in DTYPES:
        model, small = target.model(dtype), draft.model(dtype)
        found |= {
            "machines": machines_of([*found.get("machines", ()), machine_facts(model)]),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "draft_vocab_size": small.config.draft_vocab_size,
        }
        place = {"dtype": dtype, "machine": machine_facts(model)}
        kept = kept_rows(work / f"{name}_{dtype}.json", {**call, **place}, ROW)
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
    write_atomically(work / f"{name}_answers.jsonl", lines.encode())
    return found, every


def named(words: Sequence[str], tasks: Sequence[str] | None) -> dict[str, str]:
    """Return the draft of each task: TASK=DRAFT is for one of them, DRAFT for all others.

    Args:
        words: what names drafts, TASK=DRAFT or DRAFT.
        tasks: what is measured; None for every task that has a draft.

    Raises:
        ValueError: naming a task that has none or several, or what is no task.
    """
    own: dict[str, str] = {}
    for word in words:
        name, equals, place = word.partition("=")
        if not equals:
            name, place = "", word
        elif name not in TASKS:
            raise ValueError(
                f"--draft {word} names no task, which are {', '.join(TASKS)}: name one of them, "
                f"and if {word} is the place of a draft, give it so: math={word}"
            )
        if not place:
            raise ValueError(f"--draft {word} names no draft: give its folder or Hub id")
        if name in own:
            raise ValueError(
                f"there are two drafts for {name or 'all tasks'}, {own[name]} and {place}: leave "
                "one out, or give TASK=DRAFT"
            )
        own[name] = place
    if tasks is None:
        tasks = [task for task in TASKS if task in own or "" in own]
    for task in tasks:
        if task not in own and "" not in own:
            raise ValueError(f"{task} has no draft: give --draft {task}=DRAFT, or leave it out")
    return {task: own.get(task) or own[""] for task in tasks}


def parsed(argv: Sequence[str] | None) -> Any:
    """Read the arguments; `drafts` are those of each task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=data_folder, required=True, help="folder or Hub id")
    parser.add_argument("--target", default="smollm2", help="Hub id, folder or smollm2")
    parser.add_argument("--draft", action="append", required=True, help="DRAFT or TASK=DRAFT")
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, metavar="TASK", help="default: all that have a draft"
    )
    parser.add_argument("--prompts", type=int, default=40, help="of each task")
    parser.add_argument("--shots", type=int, default=2, help="conversations before each prompt")
    parser.add_argument("--max-new-tokens", type=int, help="default: by task, 128 to 256")
    parser.add_argument("--max-prompt-tokens", type=int, default=2048)
    add_places(parser, "quality")
    args = parser.parse_args(argv)
    try:
        args.drafts = named(args.draft, args.tasks)
    except ValueError as error:
        parser.error(str(error))
    args.tasks = [*args.drafts]
    if args.max_new_tokens is None:
        args.new_tokens = {name: TASKS[name].new_tokens for name in args.tasks}
    else:
        args.new_tokens = dict.fromkeys(args.tasks, args.max_new_tokens)
    if min(args.prompts, args.max_prompt_tokens, *args.new_tokens.values()) < 1 or args.shots < 0:
        parser.error("numbers must be at least 1, --shots at least 0")
    return args


def run(args: Any, command: str) -> None:
    """Answer and score every task that is not measured yet.

    Raises:
        SystemExit: if a draft changed a text in float32.
    """
    target = model_named(args.target)
    figures, settings = args.output / FIGURES, {"target_identity": target.identity}
    tasks = measured_before(args.output, settings).get("tasks", {})
    found: dict[str, Any] = {"target": args.target, "settings": settings, "tasks": tasks}
    for folder in (args.output, args.work):
        folder.mkdir(parents=True, exist_ok=True)
    left: dict[str, tuple[NamedModel, Questions, dict[str, Any]]] = {}
    for name in args.tasks:
        draft = NamedModel(args.drafts[name])
        rows_of(draft, target)
        questions = read_questions(
            args.data / name,
            TASKS[name],
            target.tokenizer,
            args.prompts,
            shots=args.shots,
            longest=args.max_prompt_tokens,
        )
        call = {
            "format": FORMAT,
            "target": target.identity,
            "draft": draft.identity,
            "asked": digest_of({"prompts": questions.prompts, "answers": questions.answers}),
            "max_new_tokens": args.new_tokens[name],
        }
        if found["tasks"].get(name, {}).get("call") == call:
            print(f"{name} in {figures} is of this call already; delete it to measure anew")
            continue
        check_drafts(target, [draft], DTYPES[0])
        draft.release()
        left[name] = draft, questions, call
    # All that can be refused is refused by now.
    for name, (draft, questions, call) in left.items():
        data = args.data / name
        identify = open_chat_data(str(data / "test.jsonl")).identity
        measured, rows = measure(name, target, draft, questions, args.work, call)
        found["tasks"][name] = {
            "call": call,
            "command": command,
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
        found["tasks"] = {
            known: found["tasks"][known] for known in TASKS if known in found["tasks"]
        }
        write_results(args.output, found, markdown(found), draw(found))
        for kept in rows:
            kept.remove()
    text = markdown(found)
    write_results(args.output, found, text, draw(found))  # of an older release, perhaps
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


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    args = parsed(argv)
    with ended_after(args.minutes):
        run(args, command_line("bench_task_quality.py", argv))


if __name__ == "__main__":
    main()
