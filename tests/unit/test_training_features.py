from __future__ import annotations

from typing import Any

import pytest
import torch

from drafting import make_eagle
from tensor_watch import Made
from tiny_models import KINDS, make_prompt, make_tiny
from vtrim_hf.training_features import _SCORED_AT_ONCE, TargetReader, Teacher


def reader_of(target: Any, layers: tuple[int, int, int] = (1, 2, 4)) -> TargetReader:
    return TargetReader(target, layers, torch.float32)


@pytest.mark.parametrize("kind", [*KINDS, "gemma3"])
def test_features_are_the_target_s_own(kind: str) -> None:
    layers: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"] * 2}
    target = make_tiny(kind, num_hidden_layers=4, **(layers if kind == "gemma3" else {}))
    target.train()
    ids = make_prompt(20, batch=2)
    lengths = torch.tensor([20, 11])
    scored = torch.zeros(2, 20, dtype=torch.bool)
    scored[0, 4:9], scored[1, 3:10] = True, True
    found = reader_of(target).read(ids, lengths, scored)
    assert target.training, "the target keeps its mode"
    assert not found.states.requires_grad
    target.eval()
    for row, length in enumerate(lengths.tolist()):
        out = target(ids[row : row + 1, :length], output_hidden_states=True)
        states = torch.cat([out.hidden_states[layer] for layer in (1, 2, 4)], dim=-1)
        torch.testing.assert_close(found.states[row, :length], states[0], rtol=2e-3, atol=2e-3)
        top = torch.where(scored[row, :length], out.logits[0].argmax(-1), -1)
        assert found.top[row, :length].tolist() == top.tolist()


@pytest.mark.parametrize("kind", [*KINDS, "gemma3"])
def test_the_teacher_gives_the_kept_rows_of_the_target_s_logits(kind: str) -> None:
    target = make_tiny(kind)
    kept = torch.arange(5, 290, 3)
    reader, teacher = reader_of(target, (0, 1, 2)), Teacher(target, kept, torch.device("cpu"))
    ids = make_prompt(16, batch=1)
    reader.prove(ids[0].tolist(), teacher)
    last = reader.read(ids, torch.tensor([16]), torch.zeros(1, 16, dtype=torch.bool)).last
    own = target(ids).logits[..., kept]
    torch.testing.assert_close(teacher.logits(last), own, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("field", ["logit_scale", "logits_scaling"])
def test_a_scale_that_the_target_does_not_apply_is_noticed(field: str, tiny_llama: Any) -> None:
    setattr(tiny_llama.config, field, 0.25)
    teacher = Teacher(tiny_llama, torch.arange(300), torch.device("cpu"))
    with pytest.raises(ValueError, match="cannot be trained"):
        reader_of(tiny_llama, (0, 1, 2)).prove(list(range(20)), teacher)


def test_a_head_that_does_more_than_multiply_is_refused(tiny_llama: Any) -> None:
    forward = tiny_llama.forward

    def shifted(*args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        out.logits = out.logits + torch.linspace(0, 5, out.logits.shape[-1])
        return out

    tiny_llama.forward = shifted
    teacher = Teacher(tiny_llama, torch.arange(300), torch.device("cpu"))
    with pytest.raises(ValueError, match="not its head's rows"):
        reader_of(tiny_llama, (0, 1, 2)).prove(list(range(20)), teacher)


def test_bfloat16_targets_are_proven_within_their_rounding() -> None:
    target = make_tiny("llama", num_hidden_layers=4).to(torch.bfloat16)
    draft = make_eagle(target, range(3, 200))
    teacher = Teacher(target, draft.kept_ids, torch.device("cpu"))
    reader_of(target).prove(list(range(30)), teacher)
    teacher.weight += 0.2
    with pytest.raises(ValueError, match="cannot be trained"):
        reader_of(target).prove(list(range(30)), teacher)


def test_logits_are_of_few_positions_at_a_time() -> None:
    """[full width for every position of a long conversation takes gigabytes]"""
    target = make_tiny("llama", num_hidden_layers=4)
    batch, length = 2, 290
    ids = make_prompt(length, batch=batch)
    with Made() as made:
        found = reader_of(target).read(
            ids, torch.full((batch,), length), torch.ones(batch, length, dtype=torch.bool)
        )
    assert max(made.rows(target.config.vocab_size)) == _SCORED_AT_ONCE == 256
    assert found.top.min() >= 0, "all of them were asked for"
