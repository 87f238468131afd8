"""Second half of `make test-vllm`: vLLM accepts of each export what Transformers accepted.

    python tests/engines/check_vllm.py FOLDER

runs where vLLM is installed, and vtrim_hf need not be. It loads each draft that
`export_for_vllm.py` wrote to FOLDER beside its target and compares the greedy texts, and the
acceptance by position where texts are the same. It ends with 1 if they do not agree.

Texts differ by ties in bfloat16. Behind a tie the drafts are worth little, for they know the other
text by heart; so such prompts say nothing about acceptance.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LEAST = 0.3  # of the first positions accepted, below which there is nothing to compare
SAME = {"bfloat16": 0, "float32": 15}  # texts of 16, at least
ENOUGH = 3  # texts, to compare rates
EXACT = {"bfloat16": 0, "float32": 15}  # of these, with the very same figures
APART = {"bfloat16": 0.1, "float32": 0.01}  # two acceptance rates, over 50 drafts and 200
# Logits between 16 and 32 lie an eighth apart in bfloat16; two engines may each be off by one.
TIE = {"bfloat16": 0.25, "float32": 1e-3}
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}


def serve(folder: Path, number: int) -> None:
    """Answer the prompts with one draft and write what happened beside the exports."""
    vllm = importlib.import_module("vllm")
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    ours = expected["runs"][number]
    model = vllm.LLM(
        model=expected["target"],
        dtype=ours["dtype"],
        enforce_eager=True,
        max_num_seqs=1,
        max_model_len=1024,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config={
            "method": "eagle3",
            "model": str(folder / ours["folder"]),
            "num_speculative_tokens": expected["drafted"],
        },
    )
    greedy = vllm.SamplingParams(temperature=0.0, max_tokens=expected["new"], ignore_eos=True)
    found: dict[str, Any] = {"figures": [], "said": []}
    for prompt in expected["prompts"]:
        answer = model.generate([{"prompt_token_ids": prompt}], greedy, use_tqdm=False)[0]
        found["said"].append(list(answer.outputs[0].token_ids))
        so_far = {metric.name: metric for metric in model.get_metrics()}
        found["figures"].append(
            [
                so_far["vllm:spec_decode_num_drafts"].value,
                *so_far["vllm:spec_decode_num_accepted_tokens_per_pos"].values,
            ]
        )
    (folder / f"{ours['folder']}.json").write_text(json.dumps(found), encoding="utf-8")


def rates_of(figures: list[list[int]]) -> list[float]:
    """Return acceptance by position, given drafts and accepted tokens by position a prompt."""
    drafts, *accepted = (sum(column) for column in zip(*figures, strict=True))
    return [count / drafts for count in accepted]


def judge(ours: dict[str, Any], theirs: dict[str, Any], drafted: int) -> list[str]:
    """Print the figures of one draft and return what does not agree, in sentences."""
    dtype, wrong = ours["dtype"], []
    same = [mine == other for mine, other in zip(ours["said"], theirs["said"], strict=True)]
    here = [
        [len(row), *(sum(count > place for count in row) for place in range(drafted))]
        for row in ours["rounds"]
    ]
    # vLLM's counters only grow.
    before = [[0] * (1 + drafted), *theirs["figures"]]
    there = [
        [new - old for new, old in zip(*pair, strict=True)]
        for pair in zip(theirs["figures"], before, strict=False)
    ]
    print(f"{ours['folder']}, layers {ours['layers']}: {sum(same)} of {len(same)} texts the same")
    for name, prompts in (("all texts", [True] * len(same)), ("the same texts", same)):
        if not any(prompts):
            continue
        for engine, figures in (("Transformers", here), ("vLLM", there)):
            chosen = [row for row, taken in zip(figures, prompts, strict=True) if taken]
            rates = rates_of(chosen)
            shown = ", ".join(f"{rate:.3f}" for rate in rates)
            drafts = sum(row[0] for row in chosen)
            print(f"  {name:14} {engine:12} {drafts} drafts, accepted {shown}")
    if sum(same) < SAME[dtype]:
        wrong.append(f"{sum(same)} texts are the same, not at least {SAME[dtype]}")
    for row, (mine, other) in enumerate(zip(ours["said"], theirs["said"], strict=True)):
        if mine == other:
            continue
        place = next(i for i in range(len(mine)) if mine[i : i + 1] != other[i : i + 1])
        token = next(iter(other[place:]), None)
        gap = ours["nearest"][row][place].get(str(token))
        if gap is None or gap > TIE[dtype]:
            wrong.append(
                f"prompt {row}: token {place} is {mine[place]} here and {token} in vLLM, which is "
                f"no tie (logits are {gap} apart)"
            )
    exact = sum(a == b for a, b, taken in zip(here, there, same, strict=True) if taken)
    print(f"  of these {exact} have the same drafts and accepted tokens by position")
    if exact < EXACT[dtype]:
        wrong.append(f"{exact} prompts have the same figures, not at least {EXACT[dtype]}")
    if sum(same) >= ENOUGH:
        pairs = [
            rates_of([row for row, taken in zip(figures, same, strict=True) if taken])
            for figures in (here, there)
        ]
        if pairs[0][0] < LEAST:
            wrong.append(
                f"the draft learnt too little: {pairs[0][0]:.3f} of first tokens accepted"
            )
        for position, (rate, other_rate) in enumerate(zip(*pairs, strict=True), start=1):
            if abs(rate - other_rate) > APART[dtype]:
                wrong.append(
                    f"position {position}: {rate:.3f} accepted here, {other_rate:.3f} in vLLM"
                )
    return wrong


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    if sys.argv[2:]:
        serve(folder, int(sys.argv[2]))
        return
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    wrong = []
    for number, ours in enumerate(expected["runs"]):
        # A process each: an engine does not give all of its memory back.
        command = [sys.executable, str(Path(__file__).resolve()), str(folder), str(number)]
        subprocess.run(command, check=True, env={**os.environ, **SETTINGS})
        theirs = json.loads((folder / f"{ours['folder']}.json").read_text(encoding="utf-8"))
        wrong += judge(ours, theirs, expected["drafted"])
        sys.stdout.flush()
    for fault in wrong:
        print(f"WRONG: {fault}")
    if wrong:
        sys.exit(1)
    print("vLLM and Transformers agree")


if __name__ == "__main__":
    main()
