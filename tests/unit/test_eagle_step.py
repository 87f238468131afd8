from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.cache_utils import DynamicCache

from vtrim_hf.eagle_body import EagleBody
from vtrim_hf.eagle_session import EagleSession
from vtrim_hf.eagle_step import Entries, PlainStep, is_plain

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
    "another activation": {"hidden_act": "gelu_pytorch_tanh"},
    "a large eps": {"rms_norm_eps": 0.3},
}


def make_body(head_bias: bool = False, **settings: Any) -> Any:
    body = EagleBody(LlamaConfig(**{**SIZES, **settings}), rows=17, head_bias=head_bias)
    with torch.no_grad():
        for name, weight in body.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return body.eval()


def make_session(body: Any) -> Any:
    """A session whose target is an embedding and whatever states it is given."""
    torch.manual_seed(3)
    return EagleSession(body, (0, 1, 2), nn.Embedding(40, 24), None)


def outputs(length: int) -> Any:
    return SimpleNamespace(hidden_states=tuple(torch.randn(3, 1, length, 24).unbind(0)))


def watched(body: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each pass through the body's modules reads."""
    passes: list[int] = []
    forward = EagleBody.forward

    def counted(self: Any, embeds: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        passes.append(embeds.shape[1])
        return forward(self, embeds, *args, **kwargs)

    monkeypatch.setattr(EagleBody, "forward", counted)
    return passes


# The short cut gives what the body gives.


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["", "inference"])
@pytest.mark.parametrize("head_bias", [False, True], ids=["", "head bias"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_is_a_pass_of_one_token(shape: str, head_bias: bool, mode: Any) -> None:
    body = make_body(head_bias, **SHAPES[shape])
    embeds, features = torch.randn(1, 9, 24), torch.randn(1, 9, 72)
    rope = body.rope(torch.arange(9)[None], embeds)
    with mode():
        assert is_plain(body)
        packed = body.pack()
        entries = Entries(body.midlayer.self_attn.key_heads, body.config.head_dim, body.fc.weight)
        step = PlainStep(body, packed, entries)
        cache = DynamicCache(config=body.config)
        body(embeds[:, :4], features[:, :4], cache=cache)
        body(embeds[:, :4], features[:, :4], cache=entries)
        state: Any = None
        for at in range(4, 9):
            # Features and states take turns.
            given = {"state": state} if at % 2 else {"target_hidden_states": features[:, [at]]}
            if state is None:
                given = {"target_hidden_states": features[:, [at]]}
            angles = (rope[0][:, :, [at]], rope[1][:, :, [at]])
            before = {name: part.clone() for name, part in given.items()}
            logits, new = step(embeds[:, [at]], angles, **given)
            expected = body(embeds[:, [at]], cache=cache, **given)
            torch.testing.assert_close(new, expected.state, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(logits, expected.logits[:, 0], rtol=1e-5, atol=1e-5)
            assert all(torch.equal(part, before[name]) for name, part in given.items())
            state = new
        assert entries.get_seq_length() == cache.get_seq_length() == 9
        for ours, theirs in ((entries.keys, "keys"), (entries.values, "values")):
            torch.testing.assert_close(ours, getattr(cache.layers[0], theirs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the same weights in float64, as near as the dtype allows."""
    body = make_body().to(dtype)
    ours, exact = make_session(body), make_session(copy.deepcopy(body).double())
    exact._plain = None
    ids, read = torch.randint(40, (1, 9)), outputs(8)
    near = 1e-9 if dtype == torch.float64 else 0.1
    passes = watched(body, monkeypatch)
    with torch.no_grad():
        for session in (ours, exact):
            session.catch_up(ids, model_outputs=read)
        for token in (3, 5, 8):
            logits, expected = (each.step(torch.tensor([[token]])) for each in (ours, exact))
            assert logits.dtype == dtype
            torch.testing.assert_close(logits.double(), expected, rtol=near, atol=near)
    assert passes == [8, 8, 1, 1, 1]


def test_nothing_of_an_earlier_step_is_written_over() -> None:
    session = make_session(make_body())
    with torch.no_grad():
        first = session.catch_up(torch.tensor([[1, 2]]), model_outputs=outputs(1))
        kept = [first, session.step(torch.tensor([[3]])), session._state]
        copies = [each.clone() for each in kept]
        session.step(torch.tensor([[4]]))
    assert all(torch.equal(each, copied) for each, copied in zip(kept, copies, strict=True))


def test_a_vector_of_zeros() -> None:
    body = make_body()
    session = make_session(body)
    with torch.no_grad():
        zeros = torch.zeros(1, 1, 24)
        ours = session.read(zeros, target_hidden_states=torch.zeros(1, 1, 72))
        torch.testing.assert_close(ours, body(zeros, torch.zeros(1, 1, 72)).logits[:, 0])


# Who takes it.


def test_a_session_takes_it_for_single_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    body = make_body()
    session = make_session(body)
    passes = watched(body, monkeypatch)
    ids = torch.randint(40, (1, 9))
    with torch.no_grad():
        session.catch_up(ids[:, :6], model_outputs=outputs(5))
        session.step(ids[:, 6:7])
        session.catch_up(ids[:, :7], model_outputs=outputs(1))
        session.step(ids[:, 7:8])
        session.catch_up(ids, model_outputs=outputs(2))
    assert passes == [5, 2]


CHANGES: dict[str, Any] = {
    "hook": lambda body: body.register_forward_hook(lambda *_: None),
    "hook inside": lambda body: body.midlayer.mlp.act_fn.register_forward_pre_hook(
        lambda *_: None
    ),
    "forward": lambda body: setattr(body.lm_head, "forward", body.lm_head.forward),
    "compiled": lambda body: setattr(body.midlayer, "_compiled_call_impl", body.midlayer.forward),
    "class": lambda body: setattr(body, "norm", type("Other", (nn.RMSNorm,), {})(24, 1e-6)),
    "dtype": lambda body: body.norm.to(torch.float64),
    "meta": lambda body: body.fc.to("meta"),
    "no eps": lambda body: setattr(body.midlayer, "norm_eps", 0.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_plain_goes_its_own_way(change: str) -> None:
    body = make_body()
    assert make_session(body)._plain is not None
    CHANGES[change](body)
    assert not is_plain(body)
    assert make_session(body)._plain is None


def test_not_under_hooks_on_all_modules() -> None:
    body = make_body()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not is_plain(body)
    finally:
        handle.remove()
    assert is_plain(body)


@pytest.mark.parametrize("way", ["autocast", "gradients"])
def test_not_where_torch_does_more_than_it_is_told(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = make_body()
    session = make_session(body)
    passes = watched(body, monkeypatch)
    with torch.no_grad():
        session.catch_up(torch.tensor([[1, 2, 3]]), model_outputs=outputs(2))
    context = torch.enable_grad() if way == "gradients" else torch.autocast("cpu", torch.bfloat16)
    with torch.set_grad_enabled(way == "gradients"), context:
        session.step(torch.tensor([[3]]))
    assert passes == [2, 1]


# What a session remembers.


def test_entries_are_kept_while_their_room_grows() -> None:
    entries = Entries(2, 3, torch.empty(0, dtype=torch.float64))
    keys, values = torch.randn(2, 1, 2, 700, 3, dtype=torch.float64).unbind(0)
    start = 0
    for new in (200, 1, 55, 1, 300, 143):
        end = start + new
        found = entries.update(keys[:, :, start:end], values[:, :, start:end], 0)
        for part, whole in zip(
            (*found, entries.keys, entries.values), (keys, values) * 2, strict=True
        ):
            assert torch.equal(part, whole[:, :, :end])
        start = end
    assert entries.get_seq_length() == entries.length == 700


def test_what_was_forgotten_is_written_over() -> None:
    entries = Entries(1, 2, torch.empty(0))
    keys, values = torch.randn(2, 1, 1, 6, 2).unbind(0)
    entries.update(keys[:, :, :4], values[:, :, :4])
    entries.forget(2)
    assert torch.equal(entries.keys, keys[:, :, :2])
    found = entries.update(keys[:, :, 4:], values[:, :, 4:])
    assert torch.equal(found[0], keys[:, :, [0, 1, 4, 5]])
    assert torch.equal(found[1], values[:, :, [0, 1, 4, 5]])


def test_entries_made_in_inference_mode_can_be_added_to_outside() -> None:
    with torch.inference_mode():
        entries = Entries(1, 2, torch.empty(0))
        entries.update(*torch.randn(2, 1, 1, 300, 2))
    entries.update(*torch.randn(2, 1, 1, 1, 2))
    assert entries.length == 301
