"""Train a draft that reads its target's hidden states (EAGLE-3) on the target's own answers.

Run from anywhere: python examples/04_train_eagle_draft.py [--minutes 3]; after a kill, again.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from transformers import PrinterCallback

import vtrim_hf as vt
from vtrim_hf.embedded_models import load_model, load_tokenizer
from vtrim_hf.training_checkpoints import last_whole_checkpoint
from vtrim_hf.training_pace import NoTimeLeftError
from vtrim_hf.training_progress import TrainingBar

DATA = Path(__file__).parent / "data" / "wikisql"
parser = argparse.ArgumentParser()
parser.add_argument("--minutes", type=float, default=3)
parser.add_argument("--steps", type=int, default=-1, help="at most")
parser.add_argument("--answers", type=int, help="the first so many only")
wishes = parser.parse_args()

place = Path("training")  # checkpoints, features, training_report.json
common = {"max_minutes": wishes.minutes, "max_steps": wishes.steps, "disable_tqdm": True}
args = vt.DraftTrainingArguments(str(place), feature_cache=str(place / "features"), **common)
target = load_model("smollm2", dtype="bfloat16" if args.bf16 else "float32").to(args.device)
tokenizer = load_tokenizer("smollm2")
with (DATA / "train.smollm2.jsonl").open(encoding="utf-8") as lines:
    answers = [row for row in map(json.loads, lines) if "messages" in row][: wishes.answers]
counts = vt.TokenCounts.from_dataset(answers, tokenizer, vocab_size=target.config.vocab_size)
always = vt.required_token_ids(tokenizer, target.generation_config)
latency = vt.LatencyModel.eagle3(target.config)
found = vt.search_vocabulary(counts, latency, required=always, min_coverage=0.98)
draft = vt.TrimmedDraftForCausalLM.for_target(target, found.vocabulary)
done = None
while done is None:
    trainer = vt.DraftTrainer(draft, target, args, answers, tokenizer=tokenizer)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(TrainingBar(trainer.pace.share, print, shown=False))
    last = last_whole_checkpoint(place)
    try:
        done = trainer.train(last and str(last))  # then the draft is that of the best evaluation
    except NoTimeLeftError as error:  # the target's states took it; they are found again
        args.max_minutes = wishes.minutes + 1.25 * error.spent
        print(f"the target's states alone take long here: {args.max_minutes:.1f} minutes in all")
draft.to(torch.bfloat16).save_pretrained("draft")
shutil.move(place / "training_report.json", "draft/training_report.json")
shutil.rmtree(place)  # the draft is there: the next run begins anew

draft = vt.TrimmedDraftForCausalLM.from_pretrained("draft", dtype=target.dtype).to(args.device)
question = json.loads((DATA / "test.jsonl").read_text().splitlines()[0])["messages"][:1]
chat = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
inputs = tokenizer.apply_chat_template(question, **chat).to(args.device)
ids = target.generate(**inputs, assistant_model=draft, max_new_tokens=48, do_sample=False)
print(tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :]))
