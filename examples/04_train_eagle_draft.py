"""Train a draft that reads its target's hidden states (EAGLE-3) on the target's own answers.

Run from anywhere: python examples/04_train_eagle_draft.py [--minutes 3]
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import PrinterCallback, TrainerCallback

import vtrim_hf as vt
from vtrim_hf.embedded_models import load_model, load_tokenizer

DATA = Path(__file__).parent / "data" / "wikisql"
parser = argparse.ArgumentParser()
parser.add_argument("--minutes", type=float, default=3)
parser.add_argument("--steps", type=int, default=-1, help="a number of steps instead of minutes")
parser.add_argument("--answers", type=int, help="the first so many only")
wishes = parser.parse_args()


class SayAcceptance(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics, **kwargs):  # noqa: ARG002
        length = metrics["eval_acceptance_length"]
        print(f"step {state.global_step}: {length:.2f} tokens a verification, held out")


target, tokenizer = load_model("smollm2", dtype="bfloat16"), load_tokenizer("smollm2")
with (DATA / "train.smollm2.jsonl").open(encoding="utf-8") as lines:
    answers = [row for row in map(json.loads, lines) if "messages" in row][: wishes.answers]
counts = vt.TokenCounts.from_dataset(answers, tokenizer, vocab_size=target.config.vocab_size)
latency = vt.LatencyModel.eagle3(target.config)
required = vt.required_token_ids(tokenizer, target.generation_config)
found = vt.search_vocabulary(counts, latency, required=required, min_coverage=0.98)

draft = vt.TrimmedDraftForCausalLM.for_target(target, found.vocabulary)
settings = vt.DraftTrainingArguments(
    "training",  # checkpoints and training_report.json
    max_minutes=wishes.minutes if wishes.steps < 0 else None,
    max_steps=wishes.steps,
    feature_cache="training/features",
    disable_tqdm=True,
)
data = {"train_dataset": answers, "tokenizer": tokenizer, "callbacks": [SayAcceptance()]}
trainer = vt.DraftTrainer(draft, target, args=settings, **data)
trainer.remove_callback(PrinterCallback)
trainer.train()  # afterwards the draft is that of the best evaluation
draft.to(torch.bfloat16).save_pretrained("draft")

draft = vt.TrimmedDraftForCausalLM.from_pretrained("draft")
question = json.loads((DATA / "test.jsonl").read_text().splitlines()[0])["messages"][:1]
ways = {"assistant_model": draft, "max_new_tokens": 48, "do_sample": False}
chat = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
inputs = tokenizer.apply_chat_template(question, **chat)
ids = target.generate(**inputs, **ways)
print(tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :]))
