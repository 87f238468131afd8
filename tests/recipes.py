"""What the tests of recipes share: a folder with tiny models and data, and a recipe over them."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_models import make_byte_tokenizer, make_tiny, perturbed

RECIPE = """\
target: target
draft:
  model: small
  dtype: float32
  draft_length: 2
domains:
  a:
    train: a.jsonl
    test: a_test.jsonl
  b:
    train: b.jsonl
    heldout: 0.4
    from_target: {limit: 16, max_new_tokens: 6, batch_size: 4}
search:
  min_coverage: 0.9
measure:
  prompts: 2
  max_new_tokens: 6
"""

TRAINED = """\
target: target
draft:
  body: eagle3
  layers: [0, 1, 2]
  dtype: float32
  draft_length: 2
domains:
  a:
    train: a.jsonl
    test: a_test.jsonl
  b:
    train: b.jsonl
    heldout: 0.4
    from_target: {limit: 24, max_new_tokens: 6, batch_size: 4}
search:
  min_coverage: 0.9
train:
  epochs: 3
  unroll: 2
  batch_size: 4
  bf16: false
measure:
  prompts: 2
  max_new_tokens: 6
"""
"""Of the same folder, with a draft that is trained."""


def write_rows(path: Path, subject: str, start: int, end: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(start, end):
            turns = [
                {"role": "user", "content": f"{subject} {number}?"},
                {"role": "assistant", "content": f"SELECT name FROM {subject} WHERE a = {number}"},
            ]
            file.write(json.dumps({"messages": turns}) + "\n")


def make_recipe_folder(folder: Path, recipe: str = RECIPE) -> Path:
    """Write models, data and `recipe.yaml` into a folder; returns the recipe's path."""
    target = make_tiny("llama", eos_token_id=2)
    small = perturbed(target, 0.05)
    for name, model in (("target", target), ("small", small)):
        model.save_pretrained(folder / name)
        make_byte_tokenizer().save_pretrained(folder / name)
    write_rows(folder / "a.jsonl", "fox", 0, 30)
    write_rows(folder / "a_test.jsonl", "fox", 30, 34)
    write_rows(folder / "b.jsonl", "city", 0, 24)
    path = folder / "recipe.yaml"
    path.write_text(recipe, encoding="utf-8")
    return path
