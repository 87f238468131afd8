"""Cut a draft's head to a vocabulary, save it, load it back, and let it draft for its target.

Run from anywhere: python examples/02_trim_and_generate.py
"""

import json
from pathlib import Path

import torch

from vtrim_hf import DraftVocabulary, TokenCounts, TrimmedDraftForCausalLM, required_token_ids
from vtrim_hf.embedded_models import load_model, load_tokenizer

DATA = Path(__file__).parent / "data" / "wikisql"

tokenizer = load_tokenizer("smollm2")
target = load_model("smollm2")
counts = TokenCounts.from_dataset(
    str(DATA / "train.jsonl"), tokenizer, vocab_size=target.config.vocab_size
)
required = required_token_ids(tokenizer, target.generation_config)
vocabulary = DraftVocabulary.from_counts(counts, 2000, required=required)

# Any small model of the same tokenizer will do; here it is the target's own first 24 layers.
draft = TrimmedDraftForCausalLM.from_draft_model(target, vocabulary, target=target, layers=24)
draft.save_pretrained("draft")
tokenizer.save_pretrained("draft")

draft = TrimmedDraftForCausalLM.from_pretrained("draft")
print(
    f"the head has {draft.lm_head.out_features:,} rows, the target's {target.config.vocab_size:,}"
)

question = json.loads((DATA / "test.jsonl").read_text().splitlines()[0])["messages"][:1]
inputs = tokenizer.apply_chat_template(
    question, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
plain = target.generate(**inputs, max_new_tokens=32, do_sample=False)
assisted = target.generate(**inputs, max_new_tokens=32, do_sample=False, assistant_model=draft)
print(tokenizer.decode(assisted[0, inputs["input_ids"].shape[1] :]))
print("same ids as without a draft:", torch.equal(plain, assisted))
