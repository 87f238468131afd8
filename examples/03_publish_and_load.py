"""Publish a draft to a Hub and bring it back in another process, with its card and metadata.

The Hub here is a folder served by `vtrim_hf.local_hub`: nothing leaves this machine. Without
`endpoint` and `token` the same call publishes to the Hub that you are logged in to.

Run from anywhere: python examples/03_publish_and_load.py
"""

import os
import subprocess
import sys
from pathlib import Path

import vtrim_hf as vt
from vtrim_hf.embedded_models import load_model, load_tokenizer
from vtrim_hf.local_hub import LocalHub

DATA = Path(__file__).parent / "data" / "wikisql" / "train.smollm2.jsonl"
NAME = "user/smollm2-sql-draft"

LOAD_AND_GENERATE = f"""
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.embedded_models import load_model, load_tokenizer

draft = TrimmedDraftForCausalLM.from_pretrained("{NAME}", dtype="float32")
target, tokenizer = load_model("smollm2"), load_tokenizer("smollm2")
inputs = tokenizer("SELECT name FROM", return_tensors="pt")
ids = target.generate(**inputs, assistant_model=draft, max_new_tokens=12, do_sample=False)
print("loaded", len(draft.kept_ids), "ids; text:", repr(tokenizer.decode(ids[0])))
print("held-out coverage:", draft.coverage_metadata["coverage"]["heldout"])
"""

target, tokenizer = load_model("smollm2"), load_tokenizer("smollm2")
counts = vt.TokenCounts.from_dataset(str(DATA), tokenizer, domain="sql")
latency = vt.LatencyModel.standalone(target.config, num_hidden_layers=24)
required = vt.required_token_ids(tokenizer, target.generation_config)
found = vt.search_vocabulary(counts, latency, required=required, min_coverage=0.98)
draft = vt.TrimmedDraftForCausalLM.from_draft_model(target, found.vocabulary, layers=24)

with LocalHub("local_hub") as hub:
    published = vt.publish(
        draft.bfloat16(),
        NAME,
        tokenizer=tokenizer,
        search=found,
        license="apache-2.0",
        exist_ok=True,
        endpoint=hub.endpoint,
        token=hub.token,
    )
    print(f"published {published.url} at {published.commit[:12]}")
    # Which Hub it is and who you are is read once, when huggingface_hub is imported.
    there = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.token}
    subprocess.run([sys.executable, "-c", LOAD_AND_GENERATE], env=there, check=True)
