"""One forward of the unroll, as training runs it, equals drafting step by step as `generate` does.

[SafeAILab/EAGLE#305, #194, vllm-project/speculators#818] Where the two differ a draft is trained
on states that it never meets, and nothing but its acceptance tells.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig

from tensor_watch import Made, kept_for_the_way_back
from vtrim_hf import eagle_unroll
from vtrim_hf.eagle_body import EagleBody
from vtrim_hf.eagle_unroll import unroll

ROWS, LENGTH, STEPS = 17, 9, 4
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "initializer_range": 0.3,
}
SHAPES: dict[str, dict[str, Any]] = {
    "a key head for each query head": {},
    "shared key heads": {"num_key_value_heads": 2},
    "one key head": {"num_key_value_heads": 1},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wider heads": {"head_dim": 10, "num_key_value_heads": 2},
    "three heads of eight": {"num_attention_heads": 3, "num_key_value_heads": 3},
    "theta 100,000": {"rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0}},
    "linear rope": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
    },
}
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


def make_body(**settings: Any) -> EagleBody:
    body = EagleBody(LlamaConfig(**{**SIZES, **settings}), ROWS)
    with torch.no_grad():
        for weight in body.parameters():  # norms that weigh, biases that are there
            weight.normal_(0.0, 0.2)
        for name, weight in body.named_parameters():
            if "norm" in name:
                weight.add_(1.0)
    return body.eval()


def make_inputs(batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings of tokens t + 1 and features of tokens t."""
    width = SIZES["hidden_size"]
    return torch.randn(batch, LENGTH, width), torch.randn(batch, LENGTH, 3 * width)


def drafted(
    body: EagleBody, embeds: torch.Tensor, features: torch.Tensor, column: int, packed: bool
) -> list[torch.Tensor]:
    """States of one text drafted on from `column`: features up to there, then its own states."""
    cache = DynamicCache(config=body.config)
    more = {"cache": cache, "packed": body.pack()} if packed else {"cache": cache}
    out = body(embeds[:, : column + 1], features[:, : column + 1], **more)
    states = [out.state[:, -1]]
    for at in range(column + 1, min(column + STEPS, embeds.shape[1])):
        out = body(embeds[:, at : at + 1], state=out.state[:, -1:], **more)
        states.append(out.state[:, -1])
    return states


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_unroll_equals_drafting_at_every_column_and_step(shape: str, packed: bool) -> None:
    body = make_body(**SHAPES[shape])
    embeds, features = make_inputs()
    with torch.no_grad():
        unrolled = list(unroll(body, embeds, features, STEPS))
    assert [state.shape for state in unrolled] == [embeds.shape] * STEPS
    for text, column in ((text, column) for text in range(2) for column in range(LENGTH)):
        one = slice(text, text + 1)
        with torch.no_grad():
            steps = drafted(body, embeds[one], features[one], column, packed)
        assert len(steps) == min(STEPS, LENGTH - column)
        for state, expected in zip(unrolled, steps, strict=False):
            torch.testing.assert_close(state[one, column], expected, **CLOSE)
            torch.testing.assert_close(
                body.score(state[one, column]), body.score(expected), **CLOSE
            )
    # Steps are not alike, nor is a step that forgot its own earlier ones.
    assert not torch.allclose(unrolled[0][:, 1:], unrolled[1][:, :-1], atol=1e-2)


@pytest.mark.parametrize("shape", ["a key head for each query head", "wider heads"])
def test_left_padding_changes_nothing(shape: str) -> None:
    body = make_body(**SHAPES[shape])
    embeds, features = make_inputs(3)
    padding = [0, 2, 5]
    mask = torch.tensor([[0] * n + [1] * (LENGTH - n) for n in padding])
    with torch.no_grad():
        states = list(unroll(body, embeds, features, STEPS, attention_mask=mask))
        for text, pad in enumerate(padding):
            own = embeds[text : text + 1, pad:], features[text : text + 1, pad:]
            alone = list(unroll(body, *own, STEPS))
            for step in range(STEPS):
                # Columns whose guesses would lie beyond the end hold nothing.
                length = LENGTH - pad - step
                ours = states[step][text, pad : pad + length]
                torch.testing.assert_close(ours, alone[step][0, :length], **CLOSE)
            for column in range(LENGTH - pad):
                steps = drafted(body, *own, column, packed=False)
                for state, expected in zip(states, steps, strict=False):
                    torch.testing.assert_close(state[text, pad + column], expected[0], **CLOSE)
        unmasked = next(unroll(body, embeds, features, 1))
    assert torch.isfinite(torch.stack(states)).all()
    assert not torch.allclose(unmasked[1, 2:], states[0][1, 2:], atol=1e-2), "padding matters"


def test_a_mask_of_ones_is_no_mask() -> None:
    body = make_body()
    embeds, features = make_inputs()
    ones = torch.ones(2, LENGTH, dtype=torch.long)
    with torch.no_grad():
        masked = list(unroll(body, embeds, features, STEPS, attention_mask=ones))
        for ours, plain in zip(masked, unroll(body, embeds, features, STEPS), strict=True):
            torch.testing.assert_close(ours, plain, **CLOSE)


def test_the_first_step_is_one_forward_of_the_body() -> None:
    body = make_body(**SHAPES["shared key heads"])
    embeds, features = make_inputs()
    with torch.no_grad():
        torch.testing.assert_close(
            next(unroll(body, embeds, features, 1)), body(embeds, features).state, **CLOSE
        )


def test_later_columns_do_not_reach_earlier_ones() -> None:
    body = make_body()
    embeds, features = make_inputs(1)
    later = features.clone()
    later[:, 5:] += 1.0
    with torch.no_grad():
        before = list(unroll(body, embeds, features, STEPS))
        after = list(unroll(body, embeds, later, STEPS))
    for ours, changed in zip(before, after, strict=True):
        torch.testing.assert_close(ours[:, :5], changed[:, :5], rtol=0, atol=0)
        assert not torch.allclose(ours[:, 5], changed[:, 5], atol=1e-2)


@pytest.mark.parametrize("shape", ["biases", "wider heads"])
def test_every_weight_gets_a_gradient(shape: str) -> None:
    body = make_body(**SHAPES[shape])
    embeds, features = make_inputs()
    total = torch.zeros(())
    for state in unroll(body, embeds, features, STEPS):
        total = total + body.score(state).logsumexp(-1).sum()
    total.backward()
    for name, weight in body.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().max() > 1e-6, name


@pytest.mark.parametrize("shape", ["shared key heads", "biases"])
def test_gradients_are_those_of_drafting_step_by_step(shape: str) -> None:
    """Nothing is cut off on the way back, neither the residual nor what attention read."""
    body = make_body(**SHAPES[shape])
    embeds, features = make_inputs(1)
    weigh = torch.randn(STEPS, LENGTH, SIZES["hidden_size"])

    def gradients(states: Any) -> dict[str, torch.Tensor]:
        body.zero_grad()
        torch.stack(states).sum().backward()
        return {name: w.grad.clone() for name, w in body.named_parameters() if w.grad is not None}

    columns = (0, 3, LENGTH - STEPS)
    unrolled = list(unroll(body, embeds, features, STEPS))
    ours = gradients(
        [
            (unrolled[step][0, at] * weigh[step, at]).sum()
            for at in columns
            for step in range(STEPS)
        ]
    )
    stepwise = {at: drafted(body, embeds, features, at, packed=False) for at in columns}
    theirs = gradients(
        [
            (stepwise[at][step][0] * weigh[step, at]).sum()
            for at in columns
            for step in range(STEPS)
        ]
    )
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        scale = gradient.abs().max().item()
        assert scale > 0
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=1e-5 * scale)


def test_gradients_flow_back_through_earlier_steps() -> None:
    """The state of step s - 1 is not cut off: that is what the training-time test is for."""
    body = make_body()
    embeds, features = make_inputs(1)
    features.requires_grad_(True)
    *_, last = unroll(body, embeds, features, 3)
    last[0, 4].sum().backward()
    assert features.grad is not None
    moved = features.grad[0].abs().amax(dim=-1)
    assert bool((moved[:5] > 1e-6).all())
    assert bool((moved[5:] == 0).all())


@pytest.mark.parametrize("masked", [False, True], ids=["", "left padding"])
def test_some_columns_are_as_they_are_among_all(masked: bool) -> None:
    body = make_body(**SHAPES["shared key heads"])
    embeds, features = make_inputs()
    columns = torch.tensor([[0, 3, 4], [2, 5, 5]])
    mask = torch.tensor([[1] * LENGTH, [0, 0] + [1] * (LENGTH - 2)]) if masked else None
    with torch.no_grad():
        every = list(unroll(body, embeds, features, STEPS, attention_mask=mask))
        some = list(unroll(body, embeds, features, STEPS, columns=columns, attention_mask=mask))
    assert len(some) == STEPS
    for ours, whole in zip(some, every, strict=True):
        expected = torch.stack([whole[text, columns[text]] for text in range(2)])
        torch.testing.assert_close(ours, expected, **CLOSE)


def test_half_precision_stays_close() -> None:
    body = make_body(num_key_value_heads=2)
    embeds, features = make_inputs()
    with torch.no_grad():
        exact = list(unroll(body, embeds, features, STEPS))
        body.bfloat16()
        half = list(unroll(body, embeds.bfloat16(), features.bfloat16(), STEPS))
    for ours, expected in zip(half, exact, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours.float() - expected).norm() < 0.1 * expected.norm()


def learnt(
    body: EagleBody, inputs: tuple[torch.Tensor, torch.Tensor], columns: torch.Tensor, bf16: bool
) -> tuple[torch.Tensor, dict[str, torch.Tensor], int, int]:
    """Loss, gradients (of the inputs, too), numbers of the largest tensor, bytes that are kept."""
    embeds, features = (numbers.clone().requires_grad_(True) for numbers in inputs)
    body.zero_grad()
    total = torch.zeros(())
    with Made() as made:
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=bf16),
            kept_for_the_way_back() as kept,
        ):
            for state in unroll(body, embeds, features, STEPS, columns=columns):
                total = total + body.score(state).float().logsumexp(-1).mean()
        total.backward()
    weights = {**dict(body.named_parameters()), "embeds": embeds, "features": features}
    gradients = {name: weight.grad.clone() for name, weight in weights.items()}
    return total.detach(), gradients, made.largest, sum(kept.values())


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("at_once", [1, 4])
def test_a_few_columns_at_a_time_give_the_same(
    at_once: int, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = make_body(**SHAPES["shared key heads"]).train()
    inputs = make_inputs()
    columns = torch.tensor([[0, 1, 3, 4, 5, 6, 7], [2, 3, 4, 5, 6, 0, 0]])
    loss, gradients, *_ = learnt(body, inputs, columns, bf16)
    each = 4 * 2 * 4 * (LENGTH + STEPS)  # bytes, numbers of texts, heads and what is seen
    monkeypatch.setattr(eagle_unroll, "_WEIGHED_AT_ONCE", at_once * each)
    again, same, *_ = learnt(body, inputs, columns, bf16)
    close: dict[str, Any] = {"rtol": 2e-2, "atol": 2e-2} if bf16 else CLOSE
    torch.testing.assert_close(again, loss, **close)
    for name, gradient in gradients.items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(same[name] / scale, gradient / scale, **close)


def test_what_is_weighed_at_once_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """[memory grows with heads x columns x length x steps]"""
    body, length = make_body(), 150
    inputs = torch.randn(2, length, 24), torch.randn(2, length, 72)
    columns = torch.arange(length - 1).expand(2, -1)
    weighed = 2 * 4 * (length - 1) * length  # texts, heads, columns, positions
    _, _, largest, kept = learnt(body, inputs, columns, bf16=False)
    assert largest >= weighed
    monkeypatch.setattr(eagle_unroll, "_WEIGHED_AT_ONCE", 1 << 16)
    _, _, largest, kept_now = learnt(body, inputs, columns, bf16=False)
    assert largest <= 2 * length * length, "what is visible, which no head has for itself"
    assert kept - kept_now > (STEPS - 1) * weighed * 4
