"""Packed weights: nothing is lost by whoever saves a draft, and nothing odd is packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_model
from torch import nn

from drafting import make_eagle
from tiny_models import make_prompt, make_tiny
from vtrim_hf.packed_rows import packed_rows

EVEN = range(0, 300, 2)


def used_draft() -> tuple[Any, Any]:
    target = make_tiny("llama")
    draft = make_eagle(target, EVEN)
    target.generate(make_prompt(), assistant_model=draft, max_new_tokens=4)
    return target, draft


def test_the_rows_are_those_of_the_layers_one_after_the_other() -> None:
    layers = [nn.Linear(6, rows) for rows in (4, 2, 3)]
    expected = torch.cat([layer.weight.detach().clone() for layer in layers])
    for _ in range(2):  # the second time they lie together already
        packed = packed_rows(layers)
        assert packed is not None
        assert packed.bias is not None
        assert torch.equal(packed.weight, expected)
        assert torch.equal(packed.bias, torch.cat([layer.bias for layer in layers]))
        assert packed.weight.data_ptr() == layers[0].weight.data_ptr()


def test_layers_that_are_not_alike_are_not_packed() -> None:
    assert packed_rows([nn.Linear(6, 4), nn.Linear(6, 2, bias=False)]) is None
    assert packed_rows([nn.Linear(6, 4), nn.Linear(6, 2).to(torch.bfloat16)]) is None


def test_accelerate_saves_every_weight_of_a_draft_that_was_used(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    _, draft = used_draft()
    wanted = {name: weight.clone() for name, weight in draft.state_dict().items()}
    accelerate.Accelerator(cpu=True).save_model(draft, str(tmp_path))
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_safetensors_saves_a_draft_that_was_used(tmp_path: Path) -> None:
    _, draft = used_draft()
    save_model(draft, str(tmp_path / "draft.safetensors"))
    assert load_file(tmp_path / "draft.safetensors").keys() == draft.state_dict().keys()


def test_a_state_dict_stands_alone_and_the_draft_stays_packed() -> None:
    _, draft = used_draft()
    place = draft.body.midlayer.self_attn.q_proj.weight.untyped_storage().data_ptr()
    assert draft.body.midlayer.self_attn.v_proj.weight.untyped_storage().data_ptr() == place
    for tensor in draft.state_dict().values():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    kept = draft.state_dict(keep_vars=True)["body.midlayer.self_attn.q_proj.weight"]
    assert kept is draft.body.midlayer.self_attn.q_proj.weight


def test_a_draft_made_inside_inference_mode_drafts_inside_and_outside() -> None:
    target, prompt = make_tiny("llama"), make_prompt()
    plain = target.generate(prompt, max_new_tokens=6)
    with torch.inference_mode():
        draft = make_eagle(target, EVEN)
        assert torch.equal(target.generate(prompt, assistant_model=draft, max_new_tokens=6), plain)
    assert torch.equal(target.generate(prompt, assistant_model=draft, max_new_tokens=6), plain)
