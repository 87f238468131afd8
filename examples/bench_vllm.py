"""What trained EAGLE-3 drafts gain in vLLM: trimmed and with every row, against vLLM alone.

    python examples/bench_vllm.py --vllm-python .venv-vllm/bin/python --target smollm2 \
        --data domains --draft sql=drafts/sql --draft ner=drafts/ner

`make bench-vllm` makes both environments first. Each draft is exported as it is and with the rows
of the whole vocabulary (`draft.extend`); then three engines of vLLM's CPU build run side by side,
a process each: the target alone and with either draft. In every round each of them answers all
prompts of DOMAIN/test.jsonl, in turns, and only one computes at a time.

`--data` is a folder of domains as `build_domains.py` makes it, or DOMAIN=FILE; it may be given
several times. The engines take a few GB of memory each, one of them for the cache (the variable
VLLM_CPU_KVCACHE_SPACE). With SmolLM2 on 2 cores a domain took 6.5 minutes with `--rounds 3`, so
about 10 with 5, for each number of texts at a time (`--concurrency`); what OUTPUT holds of other
domains, measured alike, stays. After `--minutes` it ends, wherever it is, and the same command
goes on, as after a kill. OUTPUT holds report.md, figures.json and report.png; WORK what is not
yet finished.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from bench_arguments import add_dtype, add_places, data_folder
from bench_files import kept_rows
from bench_parts import check_drafts, model_named
from bench_results import (
    command_line,
    digest_of,
    ended_after,
    machines_of,
    measured_before,
    write_results,
)
from vllm_domains import check_trimmed, domains_of, prepare, prompts_of
from vllm_engine import Engines, installed
from vllm_report import FULL, TRIMMED, WAYS, cell_of, draw, markdown

from vtrim_hf.decoding_ways import machine_facts
from vtrim_hf.embedded_models import resolve_model
from vtrim_hf.kept_rows import KeptRows

DIGITS = 16  # of a text's hash
NUMBERS = ("prompts", "max_prompt_tokens", "max_new_tokens", "draft_length", "rounds")

Say = Callable[[str], None]


def turned(number: int) -> tuple[str, ...]:
    """Return the ways in the order of a round."""
    shift = number % len(WAYS)
    return (*WAYS[shift:], *WAYS[:shift])


def measure(
    name: str,
    prompts: Sequence[Sequence[int]],
    settings: Mapping[str, Any],
    asked: Mapping[str, Mapping[str, Any]],
    engines: Engines,
    kept: KeptRows,
    say: Say,
) -> None:
    """Measure a domain, or what is left of it, a row a round and way.

    Args:
        name: of the domain.
        prompts: lists of ids.
        settings: the same for all domains.
        asked: what an engine is made of, by way, but for the texts at a time.
        engines: those that run.
        kept: rows that are done, and a place for more.
        say: is told of every row.
    """
    done = {(row["at_once"], row["round"], row["way"]) for row in kept.rows}
    for at_once in settings["concurrency"]:
        made = {way: {**one, "at_once": at_once} for way, one in asked.items()}
        left = [
            (number, way)
            for number in range(settings["rounds"])
            for way in turned(number)
            if (at_once, number, way) not in done
        ]
        if left:
            engines.keep(list(made.values()))
        for number, way in left:
            request = {"prompts": prompts, "new": settings["max_new_tokens"]}
            answer = engines.answer(made[way], request)
            said = answer.pop("said")
            digests = [hashlib.sha256(json.dumps(ids).encode()).hexdigest() for ids in said]
            row = {
                "at_once": at_once,
                "round": number,
                "way": way,
                "tokens": sum(map(len, said)),
                **answer,
                "said": [digest[:DIGITS] for digest in digests],
            }
            kept.add(row)
            say(
                f"{name}, {at_once} at a time, round {number + 1} of {settings['rounds']}, {way}: "
                f"{row['tokens'] / row['seconds']:.1f} tokens/s"
            )


def run(args: argparse.Namespace, command: str, say: Say = print) -> None:
    """Measure every domain that is not measured yet."""
    domains, target = domains_of(args.draft, args.data), model_named(args.target)
    check_trimmed(domains, target)
    (machine,) = machines_of([machine_facts(SimpleNamespace(device=torch.device("cpu")))])
    there = installed(args.vllm_python)
    settings = {
        "target_identity": target.identity,
        **{name: getattr(args, name) for name in (*NUMBERS, "concurrency", "dtype")},
        "environment": there["environment"],
    }
    place = {
        "machine": {name: machine[name] for name in ("cpu", "cores", "system")},
        "versions": there["versions"],
        "exported_with": machine["versions"],
    }
    before = measured_before(args.output, settings).get("domains", {})
    found: dict[str, Any] = {"target": args.target, "settings": settings, "domains": before}
    every = {
        domain.name: prompts_of(domain, target.tokenizer, args.prompts, args.max_prompt_tokens)
        for domain in domains
    }
    # All that can be refused is refused before anything is measured.
    for domain in domains:
        check_drafts(target, [domain.draft], args.dtype)
        domain.draft.release()
    room = args.max_prompt_tokens + args.max_new_tokens + args.draft_length + 1
    args.output.mkdir(parents=True, exist_ok=True)
    exports, logs = args.work / "exports", args.work / "logs"
    with Engines(args.vllm_python, logs) as engines:
        for domain in domains:
            prompts, longer = every[domain.name]
            call = {**settings, "draft": domain.draft.identity, "prompts": prompts}
            digest = digest_of(call)
            if found["domains"].get(domain.name, {}).get("call") == digest:
                say(f"{domain.name} is measured already; delete {args.output} to measure anew")
                continue
            kept = kept_rows(
                args.work / f"{domain.name}.json", {**call, **place}, ["at_once", "round", "way"]
            )
            if kept.rows:
                say(f"{domain.name}: going on, {len(kept.rows)} answers of all prompts are done")
            rows = prepare(domain, target, args.dtype, exports / domain.name)
            asked: dict[str, dict[str, Any]] = {
                way: {"target": resolve_model(args.target), "dtype": args.dtype, "longest": room}
                for way in WAYS
            }
            for way in (TRIMMED, FULL):
                export = (exports / domain.name / way).resolve()
                asked[way] |= {"draft": str(export), "drafted": args.draft_length}
            measure(domain.name, prompts, settings, asked, engines, kept, say)
            cells = {
                str(at_once): cell_of(row for row in kept.rows if row["at_once"] == at_once)
                for at_once in args.concurrency
            }
            found["domains"][domain.name] = {
                "call": digest,
                "command": command,
                **domain.facts,
                **place,
                "longer": longer,
                "vocab_size": target.vocab_size,
                "head_rows": rows,
                "cells": cells,
            }
            write_results(args.output, found, markdown(found), draw(found))
            kept.remove()
    shutil.rmtree(exports, ignore_errors=True)
    shutil.rmtree(logs, ignore_errors=True)
    print(markdown(found))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm-python", required=True, help="a Python that has vLLM")
    parser.add_argument("--target", default="smollm2", help="Hub id, folder or smollm2")
    parser.add_argument(
        "--draft", action="append", required=True, help="NAME=DRAFT, or a folder of drafts"
    )
    parser.add_argument(
        "--data",
        action="append",
        required=True,
        type=lambda word: word if "=" in word else str(data_folder(word)),
        help="folder of domains, Hub id of such a data set, or NAME=FILE",
    )
    parser.add_argument("--prompts", type=int, default=16, help="a domain")
    parser.add_argument("--max-prompt-tokens", type=int, default=1024, help="longer ones are left")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--draft-length", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=[1], help="texts at a time, such as 1 4"
    )
    add_dtype(parser, "of target and drafts")
    add_places(parser, "vllm")
    args = parser.parse_args(argv)
    if min(*(getattr(args, name) for name in NUMBERS), *args.concurrency) < 1:
        parser.error("all numbers must be at least 1")
    if len(set(args.concurrency)) < len(args.concurrency):
        parser.error("--concurrency names a number twice")
    with ended_after(args.minutes):
        run(args, command_line("bench_vllm.py", argv))


if __name__ == "__main__":
    main()
