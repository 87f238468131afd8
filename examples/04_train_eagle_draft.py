"""Train a draft that reads its target's hidden states (EAGLE-3) on the target's own answers.

Run from anywhere: python examples/04_train_eagle_draft.py [--minutes 3]; after a kill, again.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from transformers import PrinterCallback, TrainerCallback

import vtrim_hf as vt
from vtrim_hf.embedded_models import load_model, load_tokenizer
from vtrim_hf.training_checkpoints import last_whole_checkpoint

DATA = Path(__file__).parent / "data" / "wikisql"
parser = argparse.ArgumentParser()
parser.add_argument("--minutes", type=float, default=3)
parser.add_argument("--steps", type=int, default=-1, help="at most")
parser.add_argument("--answers", type=int, help="the first so many only")
wishes = parser.parse_args()


class SayAcceptance(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics, **kwargs):  # noqa: ARG002
        length = metrics["eval_acceptance_length"]
        print(f"step {state.global_step}: {length:.2f} tokens a verification, held out")


place = Path("training")  # checkpoints, features, training_report.json
common = {"max_minutes": wishes.minutes, "max_steps": wishes.steps, "disable_tqdm": True}
args = vt.DraftTrainingArguments(str(place), feature_cache=str(place / "features"), **common)
dtype = "bfloat16" if args.bf16 else "float32"  # what this machine is fast at
target = load_model("smollm2", dtype=dtype).to(args.device)
tokenizer = load_tokenizer("smollm2")
with (DATA / "train.smollm2.jsonl").open(encoding="utf-8") as lines:
    answers = [row for row in map(json.loads, lines) if "messages" in row][: wishes.answers]
counts = vt.TokenCounts.from_dataset(answers, tokenizer, vocab_size=target.config.vocab_size)
always = vt.required_token_ids(tokenizer, target.generation_config)
latency = vt.LatencyModel.eagle3(target.config)
found = vt.search_vocabulary(counts, latency, required=always, min_coverage=0.98)
draft = vt.TrimmedDraftForCausalLM.for_target(target, found.vocabulary)
data = {"train_dataset": answers, "tokenizer": tokenizer, "callbacks": [SayAcceptance()]}
trainer = vt.DraftTrainer(draft, target, args=args, **data)
trainer.remove_callback(PrinterCallback)
last = last_whole_checkpoint(place)
trainer.train(last and str(last))  # afterwards the draft is that of the best evaluation
draft.to(torch.bfloat16).save_pretrained("draft")
shutil.move(place / "training_report.json", "draft/training_report.json")
shutil.rmtree(place)  # the draft is there: the next run begins anew

draft = vt.TrimmedDraftForCausalLM.from_pretrained("draft", dtype=target.dtype).to(args.device)
question = json.loads((DATA / "test.jsonl").read_text().splitlines()[0])["messages"][:1]
chat = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
inputs = tokenizer.apply_chat_template(question, **chat).to(args.device)
ids = target.generate(**inputs, assistant_model=draft, max_new_tokens=48, do_sample=False)
print(tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :]))
