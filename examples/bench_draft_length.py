"""How many tokens to draft a round: fixed numbers, confidence thresholds, the adaptive schedule.

    python examples/bench_draft_length.py DRAFT DATA [--target ID] [--prompts 20] [--output FOLDER]

DRAFT is the folder or Hub id of a trained draft, DATA chat data whose last user turns are prompts;
the target is the embedded SmolLM2 by default. The draft's confidence is calibrated on the prompts
that follow those measured; "raw" thresholds go without. Every way of drafting answers every
prompt, greedy, in turns; each is compared with a fixed number of 4 tokens on the same prompt.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from bench_arguments import add_dtype, results_folder
from bench_parts import check_drafts, model_named
from tqdm.auto import tqdm

from vtrim_hf import TrimmedDraftForCausalLM, calibrate_confidence
from vtrim_hf.confidence import CALIBRATION
from vtrim_hf.decode_entry import Spread
from vtrim_hf.decoding_prompts import prepare_prompts
from vtrim_hf.decoding_ways import machine_facts
from vtrim_hf.measuring_step import read_prompts
from vtrim_hf.named_models import NamedModel
from vtrim_hf.vocabulary import write_atomically

CALIBRATION_PROMPTS = 12
BASE = "4 tokens"


def way(number: int, least: float = 0.0, *, raw: bool = False, **more: Any) -> dict[str, Any]:
    """Return the settings of one way; those that are not named are the plainest."""
    return {
        "num_assistant_tokens": number,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": least,
        "raw": raw,
        **more,
    }


WAYS: dict[str, dict[str, Any]] = {
    **{f"{n} tokens": way(n) for n in (2, 3, 4, 5, 6, 8)},
    **{
        f"at most {n}, threshold {least}": way(n, least)
        for n, least in ((4, 0.2), (4, 0.4), (6, 0.2), (6, 0.4), (8, 0.2))
    },
    **{f"at most 4, raw threshold {least}": way(4, least, raw=True) for least in (0.2, 0.4)},
    **{
        f"adaptive from 4, threshold {least}": way(
            4, least, num_assistant_tokens_schedule="adaptive"
        )
        for least in (0.0, 0.2)
    },
}


def speed(target: Any, inputs: dict[str, torch.Tensor], new: int, **how: Any) -> float:
    """Return new tokens a second of one call."""
    start = time.perf_counter()
    ids = target.generate(**inputs, max_new_tokens=new, do_sample=False, **how)
    return float(ids.shape[1] - inputs["input_ids"].shape[1]) / (time.perf_counter() - start)


def measured(target: Any, draft: Any, every: Sequence[Any], new: int) -> dict[str, list[float]]:
    """Return tokens a second of every way, prompt by prompt; "target alone" is one of them."""
    fitted = getattr(draft.generation_config, CALIBRATION, None)
    for how in ({}, {"assistant_model": draft}):  # both have run once before the clock does
        speed(target, every[0], 16, **how)
    speeds: dict[str, list[float]] = {"target alone": [], **{name: [] for name in WAYS}}
    for turn, inputs in enumerate(tqdm(every, desc="prompts", disable=None)):
        speeds["target alone"].append(speed(target, inputs, new))
        names = list(WAYS)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            settings = dict(WAYS[name])
            setattr(draft.generation_config, CALIBRATION, None if settings.pop("raw") else fitted)
            for field, value in settings.items():
                setattr(draft.generation_config, field, value)
            speeds[name].append(speed(target, inputs, new, assistant_model=draft))
    return speeds


def markdown(found: dict[str, Any]) -> str:
    """Return what people read."""
    machine = found["machine"]
    lines = [
        f"{found['draft']} for {found['target']}: {found['prompts']} prompts of {found['data']}, "
        f"greedy, at most {found['max_new_tokens']} new tokens, {found['dtype']}",
        "",
        f"{machine['gpu'] or machine['cpu']}, {machine['threads']} threads of {machine['cores']} "
        f"cores, torch {machine['versions']['torch']}, Transformers "
        f"{machine['versions']['transformers']}",
        "",
        f"| way of drafting | over {BASE} (95 %) | over the target alone (95 %) |",
        "|---|---|---|",
    ]
    for name, row in found["ways"].items():
        cells = [f"{s['median']:.3f} ({s['low']:.3f} to {s['high']:.3f})" for s in row.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"    {found['command']}", ""])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("draft", help="folder or Hub id of a trained draft")
    parser.add_argument("data", help="chat data")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    add_dtype(parser, "of target and draft")
    parser.add_argument(
        "--output", type=results_folder, help="folder for draft_length.json and .md"
    )
    args = parser.parse_args(argv)
    if args.prompts < 1 or args.max_new_tokens < 1:
        parser.error("--prompts and --max-new-tokens must be at least 1")
    judge = model_named(args.target)
    check_drafts(judge, [NamedModel(args.draft)], args.dtype)
    target = judge.model(args.dtype)
    dtype = getattr(torch, args.dtype)
    draft = TrimmedDraftForCausalLM.from_pretrained(args.draft, dtype=dtype)
    prompts = read_prompts(args.data, judge.tokenizer, args.prompts + CALIBRATION_PROMPTS)
    if len(prompts) < args.prompts + CALIBRATION_PROMPTS:
        raise SystemExit(
            f"{args.data} holds {len(prompts)} prompts, {args.prompts} to measure and "
            f"{CALIBRATION_PROMPTS} to calibrate on are needed: lower --prompts"
        )
    every = prepare_prompts(
        prompts[: args.prompts],
        judge.tokenizer,
        device=target.device,
        max_new_tokens=args.max_new_tokens,
    )
    calibrate_confidence(
        target,
        draft,
        prompts[args.prompts :],
        tokenizer=judge.tokenizer,
        max_new_tokens=args.max_new_tokens,
    )
    speeds = measured(target, draft, every, args.max_new_tokens)
    alone, base = speeds["target alone"], speeds[BASE]

    def over(values: Sequence[float], others: Sequence[float]) -> dict[str, float]:
        return vars(Spread.of([one / other for one, other in zip(values, others, strict=True)]))

    words = sys.argv[1:] if argv is None else argv
    found = {
        **{name: value for name, value in vars(args).items() if name != "output"},
        "machine": machine_facts(target),
        "ways": {
            name: {"over_base": over(speeds[name], base), "over_plain": over(speeds[name], alone)}
            for name in WAYS
        },
        "command": shlex.join(["python", "examples/bench_draft_length.py", *words]),
    }
    text = markdown(found)
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        place = args.output / "draft_length.json"
        write_atomically(place, json.dumps(found, indent=2).encode())
        write_atomically(place.with_suffix(".md"), text.encode())
    print(text)


if __name__ == "__main__":
    main()
