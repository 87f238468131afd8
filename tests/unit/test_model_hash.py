"""What tells targets apart, and what does not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tiny_models import make_tiny
from vtrim_hf.model_hash import model_hash


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("llama", "rope_parameters", {"rope_type": "default", "rope_theta": 5e5}),
        ("llama", "rms_norm_eps", 1e-5),
        ("mistral-sliding", "sliding_window", 8),
        ("gemma-softcap", "final_logit_softcapping", 20.0),
        ("gemma3", "layer_types", ["full_attention", "full_attention"]),
        ("llama", "a_field_of_tomorrow", 3),
    ],
)
def test_the_same_weights_with_another_config_are_another_model(
    kind: str, field: str, value: Any
) -> None:
    target: Any = make_tiny(kind)
    before = model_hash(target)
    setattr(target.config, field, value)
    assert model_hash(target) != before


def test_names_dtypes_and_what_decides_nothing_are_left_out(tmp_path: Path) -> None:
    target: Any = make_tiny("llama").to(torch.bfloat16)
    before = model_hash(target)
    target.config.use_cache = False
    target.config.pad_token_id = 7
    assert model_hash(target) == before
    target.save_pretrained(tmp_path)
    for dtype in ("bfloat16", "float32"):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        assert model_hash(loaded) == before, dtype
    assert model_hash(target.to(torch.float32)) == before
    assert model_hash(make_tiny("llama")) != before, "these were not rounded"


def test_any_number_counts_wherever_it_stands() -> None:
    """[only the rows of added tokens are trained anew]"""
    target: Any = make_tiny("llama")
    before = model_hash(target)
    embeddings = target.get_input_embeddings().weight
    head = target.get_output_embeddings().weight
    with torch.no_grad():
        for weight in (embeddings, head, target.model.layers[-1].mlp.down_proj.weight):
            kept = weight.clone()
            weight[-3, 7] += 1e-3
            assert model_hash(target) != before
            weight.copy_(kept)
            weight[[-3, -5]] = weight[[-5, -3]]
            assert model_hash(target) != before, "the sums know their rows"
            weight.copy_(kept)
            weight[:, [1, 3]] = weight[:, [3, 1]]
            assert model_hash(target) != before, "what is sampled comes from all columns"
            weight.copy_(kept)
    assert model_hash(target) == before


def test_tied_weights_count_once_trained() -> None:
    target: Any = make_tiny("qwen-padded")
    before = model_hash(target)
    assert before == model_hash(copy.deepcopy(target))
    with torch.no_grad():
        target.get_output_embeddings().weight[301] += 1
    assert model_hash(target) != before


def test_buffers_that_are_saved_count() -> None:
    """[quantised weights that are held as buffers]"""
    target: Any = make_tiny("llama")
    target.register_buffer("codes", torch.arange(5000, dtype=torch.uint8).view(50, 100))
    before = model_hash(target)
    target.codes[49, 98] += 1
    assert model_hash(target) != before
    target.codes[49, 98] -= 1
    target.register_buffer("scratch", torch.ones(3), persistent=False)
    target.register_buffer("nothing", torch.ones(0, 4), persistent=False)
    assert model_hash(target) == before


def test_other_threads_give_the_same() -> None:
    target: Any = make_tiny("llama", hidden_size=96, intermediate_size=700)
    threads = torch.get_num_threads()
    try:
        found = set()
        for number in (1, 2):
            torch.set_num_threads(number)
            found.add(model_hash(target))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


@pytest.mark.parametrize("to_disk", [False, True])
def test_offloaded_weights_are_the_same(to_disk: bool, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    target: Any = make_tiny("qwen-padded")
    before = model_hash(target)
    if to_disk:
        accelerate.disk_offload(target, str(tmp_path), execution_device="cpu")
    else:
        accelerate.cpu_offload(target, execution_device="cpu")
    assert any(weight.is_meta for weight in target.parameters())
    assert model_hash(target) == before
    assert any(weight.is_meta for weight in target.parameters())


def test_a_model_without_weights_is_refused() -> None:
    target: Any = make_tiny("llama").to("meta")
    with pytest.raises(ValueError, match=r"on the device 'meta'.*from_pretrained"):
        model_hash(target)
