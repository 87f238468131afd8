from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import DynamicCache, LlamaConfig

from drafting import make_eagle, watch
from eagle_reference import EagleReference
from tiny_models import make_prompt, make_tiny
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.eagle_body import EagleBody, normed, visible

EVEN = range(0, 300, 2)
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SHAPES: dict[str, dict[str, Any]] = {
    "shared key heads": {},
    "a key head for each query head": {"num_key_value_heads": 4},
    "one key head": {"num_key_value_heads": 1},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wider heads": {"head_dim": 10},
}
STANDARD_NAMES = {
    "fc.weight",
    "lm_head.weight",
    "norm.weight",
    "midlayer.hidden_norm.weight",
    "midlayer.input_layernorm.weight",
    "midlayer.post_attention_layernorm.weight",
    "midlayer.mlp.down_proj.weight",
    "midlayer.mlp.gate_proj.weight",
    "midlayer.mlp.up_proj.weight",
    "midlayer.self_attn.k_proj.weight",
    "midlayer.self_attn.o_proj.weight",
    "midlayer.self_attn.q_proj.weight",
    "midlayer.self_attn.v_proj.weight",
}
PACKED = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
)


def make_body(**settings: Any) -> Any:
    body = EagleBody(LlamaConfig(**{**SIZES, **settings}), rows=17)
    with torch.no_grad():
        for name, weight in body.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return body.eval()


def make_inputs(length: int = 9, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings of tokens t + 1 and features of tokens t."""
    return torch.randn(batch, length, 24), torch.randn(batch, length, 72)


def weights(body: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in body.state_dict().items()}


def linears(body: Any) -> list[nn.Linear]:
    return [body.midlayer.get_submodule(name) for name in PACKED]


# What it computes.


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_key_value_heads": 1},
        {"num_key_value_heads": 4},
        {"head_dim": 20, "attention_bias": True, "mlp_bias": True},
        {"num_attention_heads": 3, "num_key_value_heads": 3, "intermediate_size": 17},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0}},
        {"rms_norm_eps": 0.3},
    ],
    ids=str,
)
def test_a_pass_is_plain_arithmetic(settings: dict[str, Any]) -> None:
    of_target = settings.keys() & {"rope_parameters", "rms_norm_eps"}
    target = make_tiny("llama", **{name: settings[name] for name in of_target})
    own = {name: value for name, value in settings.items() if name not in of_target}
    draft = make_eagle(target, EVEN, **own)
    with torch.no_grad():
        for name, weight in draft.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.3)
    reference = EagleReference(draft, target)
    ids = make_prompt(20)
    with torch.no_grad():
        states, embeds = reference.entries(ids)
        found = target(ids[:, :-1], output_hidden_states=True).hidden_states
        features = torch.cat([found[i] for i in draft.config.target_layer_ids], dim=-1)
        for packed in ((None, None), draft.body.pack()):
            ours = draft.body(embeds, features, packed=packed)
            expected = reference.layer(embeds, states)
            scale = expected.abs().max().item()
            torch.testing.assert_close(ours.state, expected, rtol=1e-5, atol=2e-6 * scale)
            torch.testing.assert_close(
                ours.logits, reference.logits(expected), rtol=1e-4, atol=1e-4
            )


def test_the_residual_is_the_state_as_it_is() -> None:
    """With nothing added by attention and MLP the state goes through, not its normed copy."""
    body = make_body()
    with torch.no_grad():
        body.midlayer.self_attn.o_proj.weight.zero_()
        body.midlayer.mlp.down_proj.weight.zero_()
        embeds, features = make_inputs()
        out = body(embeds, features)
        torch.testing.assert_close(out.state, body.fc(features), rtol=0, atol=0)
        assert torch.equal(body(embeds, state=out.state).state, out.state)
        torch.testing.assert_close(out.logits, body.lm_head(body.norm(out.state)))


@pytest.mark.parametrize("split", [1, 4, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_in_parts_as_in_one(shape: str, split: int) -> None:
    """What was read before is in the cache; several positions after it see each other in order."""
    body = make_body(**SHAPES[shape])
    embeds, features = make_inputs()
    with torch.no_grad():
        whole = body(embeds, features)
        for packed in ((None, None), body.pack()):
            cache = DynamicCache(config=body.config)
            parts = [
                body(part, of, cache=cache, packed=packed)
                for part, of in zip(
                    embeds.split([split, 9 - split], 1),
                    features.split([split, 9 - split], 1),
                    strict=True,
                )
            ]
            assert cache.get_seq_length() == 9
            torch.testing.assert_close(
                torch.cat([part.state for part in parts], dim=1), whole.state, **CLOSE
            )
            torch.testing.assert_close(
                torch.cat([part.logits for part in parts], dim=1), whole.logits, **CLOSE
            )


@pytest.mark.parametrize("keep", [0, 1, 3, torch.tensor([0, 4])], ids=["0", "1", "3", "tensor"])
def test_logits_to_keep(keep: Any) -> None:
    body = make_body()
    embeds, features = make_inputs()
    seen = []
    body.lm_head.register_forward_hook(lambda module, args, out: seen.append(args[0].shape[1]))
    with torch.no_grad():
        whole, some = body(embeds, features), body(embeds, features, logits_to_keep=keep)
    rows = slice(-keep, None) if isinstance(keep, int) else keep
    assert seen == [9, whole.logits[:, rows].shape[1]]
    torch.testing.assert_close(some.logits, whole.logits[:, rows], **CLOSE)
    assert torch.equal(some.state, whole.state)


def test_positions_can_be_given_and_matter_only_by_their_distances() -> None:
    body = make_body()
    embeds, features = make_inputs()
    with torch.no_grad():
        plain = body(embeds, features).state
        moved = body(embeds, features, position_ids=torch.arange(9)[None] + 50).state
        torch.testing.assert_close(moved, plain, rtol=1e-4, atol=1e-4)
        wider = body(embeds, features, position_ids=torch.arange(9)[None] * 2).state
        assert not torch.allclose(wider, plain, atol=1e-2)
        ready = body(embeds, features, rope=body.rope(torch.arange(9)[None], embeds)).state
        assert torch.equal(ready, plain)


# Masks.


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
def test_left_padding_changes_nothing(packed: bool) -> None:
    body = make_body()
    embeds, features = make_inputs(batch=3)
    padding = (0, 3, 7)
    mask = torch.tensor([[0] * n + [1] * (9 - n) for n in padding])
    more = {"packed": body.pack()} if packed else {}
    with torch.no_grad():
        cache = DynamicCache(config=body.config)
        parts = [
            body(
                embeds[:, start:end],
                features[:, start:end],
                attention_mask=mask[:, :end],
                cache=cache,
                **more,
            )
            for start, end in ((0, 8), (8, 9))
        ]
        ours = torch.cat([part.state for part in parts], dim=1)
        for text, pad in enumerate(padding):
            alone = body(embeds[text, None, pad:], features[text, None, pad:], **more).state
            torch.testing.assert_close(ours[text, None, pad:], alone, **CLOSE)
        unmasked = body(embeds, features).state
        assert not torch.allclose(unmasked[1, 3:], ours[1, 3:], atol=1e-2)
    assert torch.isfinite(ours).all(), "padding itself must not spread"


@pytest.mark.parametrize("past", [0, 3])
def test_every_position_sees_something(past: int) -> None:
    """A softmax over nothing is not a number on some devices: padding sees itself."""
    mask = torch.tensor([[0] * n + [1] * (past + 5 - n) for n in (0, 1, past + 2)])
    seen = visible(mask, past, torch.zeros(3, 5, 1))
    assert seen is not None
    assert seen.shape == (3, 1, 5, past + 5)
    for text, row in ((text, row) for text in range(3) for row in range(5)):
        real = [at for at in range(past + row + 1) if mask[text, at]]
        expected = set(real) | ({past + row} if not mask[text, past + row] else set())
        assert set(seen[text, 0, row].nonzero()[:, 0].tolist()) == expected != set()


def test_a_mask_of_ones_is_no_mask() -> None:
    body = make_body()
    embeds, features = make_inputs()
    with torch.no_grad():
        masked = body(embeds, features, attention_mask=torch.ones(2, 9)).state
        assert torch.equal(masked, body(embeds, features).state)


def test_a_position_sees_no_later_one() -> None:
    body = make_body()
    embeds, features = make_inputs()
    later = features.clone()
    later[:, 5:] += 1.0
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1]] * 2)
    with torch.no_grad():
        for given in (None, mask):
            before = body(embeds, features, attention_mask=given).state
            after = body(embeds, later, attention_mask=given).state
            torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=0)
            assert not torch.allclose(before[:, 5:], after[:, 5:], atol=1e-2)


# Packed weights.


@pytest.mark.parametrize("shape", SHAPES)
def test_packing_changes_no_result_and_no_weight(shape: str) -> None:
    body = make_body(**SHAPES[shape])
    embeds, features = make_inputs()
    before = weights(body)
    names = [name for name, _ in body.named_parameters()]
    same = dict(body.named_parameters())
    with torch.no_grad():
        plain = body(embeds, features)
        packed = body.pack()
        for more in ({"packed": packed}, {}):
            ours = body(embeds, features, **more)
            for one, other in zip(ours, plain, strict=True):
                assert (one - other).abs().max() <= 1e-6 * other.abs().max()
    assert [name for name, _ in body.named_parameters()] == names
    for name, weight in body.named_parameters():
        assert weight is same[name], "an optimizer holds the parameters themselves"
        assert torch.equal(weight, before[name])
    assert [part is not None for part in packed] == [True, True]


def test_nothing_is_held_twice() -> None:
    body = make_body()
    attention, mlp = body.pack()
    for packed, parts in ((attention, linears(body)[:3]), (mlp, linears(body)[3:])):
        storage = packed.weight.untyped_storage()
        assert storage.nbytes() == 4 * sum(part.weight.numel() for part in parts)
        for part in parts:
            assert part.weight.untyped_storage().data_ptr() == storage.data_ptr()
    again = body.pack()
    assert again[0].weight.data_ptr() == attention.weight.data_ptr()
    assert again[1].weight.data_ptr() == mlp.weight.data_ptr()


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (0, None, 1, 2)], ids=str)
def test_weights_that_share_a_storage_in_another_way(order: tuple[int | None, ...]) -> None:
    """As slices of a file may: another order, or with something in between."""
    body = make_body(num_key_value_heads=4)  # three of one size
    embeds, features = make_inputs()
    parts = linears(body)[:3]
    with torch.no_grad():
        plain = body(embeds, features).state
        size = parts[0].weight.shape[0]
        whole = torch.randn(len(order) * size, parts[0].weight.shape[1])
        for place, which in enumerate(order):
            if which is not None:
                rows = whole[place * size : (place + 1) * size]
                parts[which].weight.data = rows.copy_(parts[which].weight)
        ours = body(embeds, features, packed=body.pack()).state
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("biases", [False, True], ids=["", "biases"])
def test_a_packed_draft_is_saved_as_any_other(biases: bool, tmp_path: Any) -> None:
    settings: dict[str, Any] = {"attention_bias": biases, "mlp_bias": biases}
    draft = make_eagle(make_tiny("llama"), EVEN, **settings)
    draft.save_pretrained(tmp_path / "before")
    before = weights(draft)
    draft.body.pack()
    draft.save_pretrained(tmp_path / "after")
    first, second = (tmp_path / name / "model.safetensors" for name in ("before", "after"))
    assert first.read_bytes() == second.read_bytes()
    saved = {name.removeprefix("body.") for name in load_file(second)}
    biased = {name for name in saved if name.endswith("bias")}
    assert saved - biased == STANDARD_NAMES | {"kept_ids"}
    assert len(biased) == (7 if biases else 0)
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path / "after")
    loaded.body.pack()
    state = loaded.state_dict()
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], value) for name, value in before.items())


@pytest.mark.parametrize("shape", ["shared key heads", "biases"])
def test_training_goes_on_after_packing(shape: str) -> None:
    body = make_body(**SHAPES[shape])
    optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
    embeds, features = make_inputs()
    old = body.pack()
    with torch.no_grad():
        before = body(embeds, features, packed=old).logits
    body(embeds, features).logits.square().mean().backward()
    assert all(weight.grad is not None for weight in body.parameters())
    optimizer.step()
    with torch.no_grad():
        plain = body(embeds, features).logits
        assert not torch.allclose(plain, before, atol=1e-3)
        new = body.pack()
        torch.testing.assert_close(body(embeds, features, packed=new).logits, plain)
    assert new[0].weight.data_ptr() == old[0].weight.data_ptr(), "the step wrote into the storage"
    before_loading = weights(body)
    with torch.no_grad():
        for weight in body.parameters():
            weight.zero_()
    body.load_state_dict(before_loading)
    with torch.no_grad():
        torch.testing.assert_close(body(embeds, features, packed=body.pack()).logits, plain)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda body: body.to(torch.bfloat16), id="bfloat16"),
        pytest.param(lambda body: body.to(torch.bfloat16).float(), id="there and back"),
        pytest.param(lambda body: body.double(), id="float64"),
        pytest.param(copy.deepcopy, id="deepcopy"),
        pytest.param(lambda body: body.requires_grad_(False), id="frozen"),
    ],
)
def test_changes_after_packing(change: Any) -> None:
    body = make_body()
    body.pack()
    fresh = change(copy.deepcopy(body))
    changed = change(body)
    embeds, features = (part.to(changed.dtype) for part in make_inputs())
    with torch.no_grad():
        plain = fresh(embeds, features).logits
        torch.testing.assert_close(changed(embeds, features).logits, plain)
        ours = changed(embeds, features, packed=changed.pack()).logits
        torch.testing.assert_close(ours, plain)
    if changed is not body:
        with torch.no_grad():
            for linear in linears(changed):
                linear.weight.zero_()
        assert all(linear.weight.abs().sum() > 0 for linear in linears(body))


def test_packing_in_inference_mode_leaves_weights_that_can_be_trained() -> None:
    body = make_body()
    embeds, features = make_inputs()
    with torch.inference_mode():
        packed = body.pack()
        body(embeds, features, packed=packed)
    assert not any(weight.is_inference() for weight in body.parameters())
    body(embeds, features).logits.sum().backward()


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("way", ["forward hook", "pre-hook", "another class", "meta", "no weight"])
def test_what_is_no_plain_weight_is_not_packed(which: int, way: str) -> None:
    body = make_body()
    linear = linears(body)[which]
    parent = body.midlayer.get_submodule(PACKED[which].rpartition(".")[0])
    name = PACKED[which].rpartition(".")[2]
    if way == "forward hook":
        linear.register_forward_hook(lambda module, args, out: out * 2)
    elif way == "pre-hook":
        linear.register_forward_pre_hook(lambda module, args: args[0] * 2)
    elif way == "another class":
        setattr(parent, name, nn.utils.parametrizations.weight_norm(linear))
    elif way == "meta":
        linear.to("meta")
    else:
        setattr(parent, name, nn.Sequential(linear))
    attention, mlp = body.pack()
    assert (attention is None, mlp is None) == (which < 3, which >= 3)
    if way == "meta":
        return
    embeds, features = make_inputs()
    with torch.no_grad():
        ours = body(embeds, features, packed=(attention, mlp)).state
        torch.testing.assert_close(ours, body(embeds, features).state)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_are_not_packed_away() -> None:
    peft = pytest.importorskip("peft")
    draft = make_eagle(make_tiny("llama"), EVEN)
    plain = copy.deepcopy(draft.body)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    wrapped = peft.get_peft_model(draft, config).eval()
    body = wrapped.get_base_model().body
    attention, mlp = body.pack()
    assert attention is None
    assert mlp is not None
    embeds, features = torch.randn(1, 5, 48), torch.randn(1, 5, 144)
    with torch.no_grad():
        adapted = body(embeds, features, packed=(attention, mlp)).state
        assert not torch.allclose(adapted, plain(embeds, features).state, atol=1e-2)
        merged = wrapped.merge_and_unload().body
        assert merged.pack()[0] is not None
        ours = merged(embeds, features, packed=merged.pack()).state
        torch.testing.assert_close(ours, adapted, rtol=1e-4, atol=1e-4)


# Refusals.


def test_features_or_a_state_but_not_both() -> None:
    body = make_body()
    embeds, features = make_inputs()
    with pytest.raises(ValueError, match=r"target_hidden_states or the state.*got neither"):
        body(embeds)
    with pytest.raises(ValueError, match="got both"):
        body(embeds, features, state=embeds)


def test_there_are_no_embeddings() -> None:
    with pytest.raises(NotImplementedError, match=r"target\.get_input_embeddings\(\)"):
        make_body().get_input_embeddings()


def test_the_head_can_be_replaced() -> None:
    body = make_body()
    head = nn.Linear(24, 17)
    body.set_output_embeddings(head)
    assert body.get_output_embeddings() is body.lm_head is head


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_angles_stay_exact_in_every_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    """A draft turns as it did when it was trained, before and after it is saved."""
    target = make_tiny("llama").to(dtype)
    draft = make_eagle(target, EVEN)
    exact = make_eagle(make_tiny("llama"), EVEN).body.rotary_emb.inv_freq
    assert exact.dtype == torch.float32
    draft.save_pretrained(tmp_path)
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path)
    for each in (draft, loaded, draft.to(torch.float32), draft.half(), copy.deepcopy(draft)):
        assert torch.equal(each.body.rotary_emb.inv_freq, exact)
    prompt = make_prompt(20)
    draft, loaded = draft.to(dtype), loaded.to(dtype)
    runs = [watch(target, each, prompt, max_new_tokens=12) for each in (draft, loaded)]
    assert runs[0].proposals == runs[1].proposals


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_are_the_root_mean_square(dtype: torch.dtype) -> None:
    numbers = (torch.randn(2, 5, 48) * torch.logspace(-3, 2, 5)[:, None]).to(dtype)
    weight = torch.rand(48).to(dtype)
    found = normed(numbers, weight, 1e-5)
    exact = numbers.double() * (numbers.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    near = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), exact * weight.double(), rtol=near, atol=near)
    assert found.dtype == dtype
