"""Count what a target must say in chat data, and choose the vocabulary of its draft.

Run from anywhere: python examples/01_count_and_search.py
"""

from pathlib import Path

from vtrim_hf import LatencyModel, TokenCounts, required_token_ids, search_vocabulary
from vtrim_hf.embedded_models import load_model, load_tokenizer

DATA = Path(__file__).parent / "data" / "wikisql"

tokenizer = load_tokenizer("smollm2")
target = load_model("smollm2")

# Only the assistant's own words count. A fifth of the conversations is held out.
counts = TokenCounts.from_dataset(
    str(DATA / "train.jsonl"), tokenizer, vocab_size=target.config.vocab_size
)
print(f"{counts.total():,} assistant tokens in {counts.conversations():,} conversations")

# Ids that stay whatever the data says: ends of turns, tool tags, single bytes, and our own wish.
required = required_token_ids(tokenizer, target.generation_config, extra=["SELECT", " FROM"])
print(f"{len(required)} required ids")

result = search_vocabulary(
    counts,
    LatencyModel.eagle3(target.config),
    required=required,
    min_coverage=0.97,
)
low, high = result.heldout_interval
print(
    f"k = {result.k:,} of {target.config.vocab_size:,} ids: "
    f"{result.coverage:.1%} of the tokens, held out {result.heldout_coverage:.1%} "
    f"(95 % interval {low:.1%} to {high:.1%}), a draft step {result.reduction:.1%} cheaper"
)

# The paper's method gets there too, by trial; it says how far from the best it ended.
tpe = search_vocabulary(
    counts,
    LatencyModel.eagle3(target.config),
    required=required,
    min_coverage=0.97,
    method="tpe",
    trials=50,
    progress=False,
)
print(f"TPE, 50 trials: k = {tpe.k:,}, utility {tpe.gap_to_exact:.2e} below the best")

result.save("search.json")
result.vocabulary.save("vocabulary")
