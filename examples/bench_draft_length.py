"""How many tokens to draft a round: fixed numbers, confidence thresholds, the adaptive schedule.

    python examples/bench_draft_length.py DRAFT DATA [--target ID] [--prompts 12]

DRAFT is the folder or Hub id of a trained draft, DATA chat data whose last user turns are prompts;
the target is the embedded SmolLM2 by default. The draft's confidence is calibrated on the prompts
that follow those measured. Every way of drafting answers every prompt, greedy, in turns, each
compared with the target alone on the same prompt; medians and quartiles of tokens a second count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from vtrim_hf import TrimmedDraftForCausalLM, calibrate_confidence
from vtrim_hf.decoding_prompts import prepare_prompts
from vtrim_hf.measuring_step import read_prompts
from vtrim_hf.named_models import NamedModel

CALIBRATION = 12  # prompts

WAYS: dict[str, dict[str, Any]] = {
    **{f"{n} tokens": {"num_assistant_tokens": n} for n in (1, 2, 3, 4, 5, 6, 8)},
    **{
        f"at most {n}, threshold {least}": {
            "num_assistant_tokens": n,
            "assistant_confidence_threshold": least,
        }
        for n, least in ((4, 0.2), (4, 0.4), (4, 0.6), (6, 0.2), (6, 0.4), (8, 0.4))
    },
    **{
        f"adaptive from 4, threshold {least}": {
            "num_assistant_tokens": 4,
            "num_assistant_tokens_schedule": "adaptive",
            "assistant_confidence_threshold": least,
        }
        for least in (0.0, 0.4)
    },
}
DEFAULTS = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}


def speed(target: Any, inputs: dict[str, torch.Tensor], new: int, **how: Any) -> float:
    start = time.perf_counter()
    ids = target.generate(**inputs, max_new_tokens=new, do_sample=False, **how)
    return float(ids.shape[1] - inputs["input_ids"].shape[1]) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("draft", help="folder or Hub id of a trained draft")
    parser.add_argument("data", help="chat data")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    judge = NamedModel(args.target)
    dtype = getattr(torch, args.dtype)
    target = judge.model(args.dtype)
    draft = TrimmedDraftForCausalLM.from_pretrained(args.draft, dtype=dtype)
    prompts = read_prompts(args.data, judge.tokenizer, args.prompts + CALIBRATION)
    found = calibrate_confidence(
        target,
        draft,
        prompts[args.prompts :],
        tokenizer=judge.tokenizer,
        max_new_tokens=args.max_new_tokens,
    )
    print(f"calibration: {found}")
    every = prepare_prompts(
        prompts[: args.prompts],
        judge.tokenizer,
        device=target.device,
        max_new_tokens=args.max_new_tokens,
    )
    ratios: dict[str, list[float]] = {name: [] for name in WAYS}
    for how in ({}, {"assistant_model": draft}):  # both have run once before the clock does
        speed(target, every[0], 16, **how)
    for turn, inputs in enumerate(every):
        alone = speed(target, inputs, args.max_new_tokens)
        names = list(WAYS)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            for field, value in {**DEFAULTS, **WAYS[name]}.items():
                setattr(draft.generation_config, field, value)
            assisted = speed(target, inputs, args.max_new_tokens, assistant_model=draft)
            ratios[name].append(assisted / alone)
    for name, values in ratios.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{name:32} {middle:.3f} over the target alone ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
