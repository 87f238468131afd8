"""Two questions answered with and without a draft that is trained already: the same text, sooner.

Run from anywhere: python examples/00_speed_up_generate.py
"""

import argparse
import json
import time
from pathlib import Path

import torch

from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.embedded_models import load_model, load_tokenizer

HERE = Path(__file__).parent
parser = argparse.ArgumentParser()
parser.add_argument("--draft", default=HERE / "drafts" / "smollm2_wikisql", help="another draft")
parser.add_argument(
    "--dtype",
    default="float32",
    choices=["float32", "bfloat16"],
    help="of both; lower ones may flip near-ties",
)
wishes = parser.parse_args()

tokenizer = load_tokenizer("smollm2")
target = load_model("smollm2", dtype=wishes.dtype)
draft = TrimmedDraftForCausalLM.from_pretrained(wishes.draft, dtype=wishes.dtype)


def answer(question: str, tokens: int, **how: object) -> tuple[torch.Tensor, float]:
    """Return the ids of the answer, and tokens a second."""
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    start = time.perf_counter()
    ids = target.generate(**inputs, max_new_tokens=tokens, do_sample=False, **how)
    new = ids[0, inputs["input_ids"].shape[1] :]
    return new, len(new) / (time.perf_counter() - start)


rows = (HERE / "data" / "wikisql" / "test.jsonl").read_text(encoding="utf-8").splitlines()
questions = [json.loads(row)["messages"][0]["content"] for row in rows[:2]]
for how in ({}, {"assistant_model": draft}):  # both run once before the clock counts
    answer(questions[0], 8, **how)
for question in questions:
    plain, slow = answer(question, 96)
    drafted, fast = answer(question, 96, assistant_model=draft)
    print(tokenizer.decode(drafted, skip_special_tokens=True).strip())
    print(
        f"  {slow:.1f} tokens/s alone, {fast:.1f} with the draft ({fast / slow:.2f} times), "
        f"text {'the same' if torch.equal(plain, drafted) else 'DIFFERENT'}"
    )
