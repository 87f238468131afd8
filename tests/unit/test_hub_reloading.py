"""A folder is proven in a fresh process, which notices what a stranger would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from published_facts import make_pair
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.coverage_metadata import make_metadata
from vtrim_hf.hub_reloading import _compare, prove_it_loads


@pytest.fixture
def draft() -> TrimmedDraftForCausalLM:
    pair = make_pair()
    pair.draft.coverage_metadata = make_metadata(pair.draft, search=pair.search)
    return pair.draft


@pytest.mark.slow
def test_what_comes_back_is_proven(draft: TrimmedDraftForCausalLM, tmp_path: Path) -> None:
    half: Any = draft
    half.to(torch.bfloat16).save_pretrained(tmp_path)
    make_pair().tokenizer.save_pretrained(tmp_path)
    draft.train()
    prove_it_loads(draft, tmp_path)
    assert all(module.training for module in draft.modules()), "left as it was"


def change_a_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["body.lm_head.weight"] *= 1.01
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def take_code_away(folder: Path) -> None:
    (folder / "losses.py").unlink()


def break_the_facts(folder: Path) -> None:
    place = folder / "vtrim" / "coverage.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "extra": 1}))


def give_another_tokenizer(folder: Path) -> None:
    tokenizer = make_pair().tokenizer
    tokenizer.add_tokens(["<other>"])
    tokenizer.save_pretrained(folder)


@pytest.mark.newest
@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (take_code_away, "losses"),
        pytest.param(change_a_weight, "the draft says something else", marks=pytest.mark.slow),
        pytest.param(break_the_facts, r"coverage.json do not come back", marks=pytest.mark.slow),
        pytest.param(give_another_tokenizer, "another one than", marks=pytest.mark.slow),
    ],
)
def test_what_does_not_come_back_is_named(
    draft: TrimmedDraftForCausalLM, tmp_path: Path, spoil: Any, named: str
) -> None:
    draft.save_pretrained(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ValueError, match=named):
        prove_it_loads(draft, tmp_path)


def test_other_ids_and_other_logits_are_told_apart(draft: TrimmedDraftForCausalLM) -> None:
    kept = draft.vocabulary.ids
    ids = kept[:4][None]
    with torch.no_grad():
        logits = draft(ids).logits
    wanted = {"input_ids": ids, "kept_ids": kept, "logits": logits}
    own = draft.vocabulary.fingerprint
    _compare(draft, wanted, own, "us")
    with pytest.raises(ValueError, match="loaded by us, the draft has other kept ids"):
        _compare(draft, wanted, "0" * 64, "us")
    with pytest.raises(ValueError, match="other kept ids"):
        _compare(draft, {**wanted, "kept_ids": kept + 1}, own, "us")
    near = logits * (1 + 1e-6)
    _compare(draft, {**wanted, "logits": near}, own, "us")
    for other in (logits * 1.01, logits.roll(1, -1)):
        with pytest.raises(ValueError, match="says something else"):
            _compare(draft, {**wanted, "logits": other}, own, "us")
