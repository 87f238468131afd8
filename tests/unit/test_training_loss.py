from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from drafting import make_eagle
from tensor_watch import Made, kept_for_the_way_back
from tiny_models import make_prompt, make_tiny
from vtrim_hf import training_features, training_loss
from vtrim_hf.training_batches import collate
from vtrim_hf.training_data import TrainingSequences
from vtrim_hf.training_features import Features, TargetReader, Teacher
from vtrim_hf.training_forward import ForwardInputs, computing_the_loss
from vtrim_hf.training_loss import COUNTED, LOSS, MASKED, TAKEN, acceptance, figures

DECAY = 0.8


def two_turns() -> TrainingSequences:
    """Three texts of different lengths; the first has two turns of the assistant."""
    ids = make_prompt(18, batch=3)
    masks = [np.zeros(18, dtype=bool) for _ in range(3)]
    masks[0][4:8] = masks[0][11:16] = True
    masks[1][9:18] = True
    masks[2][1:6] = True
    lengths = (18, 18, 11)
    return TrainingSequences.from_pairs(
        (row[:n].numpy(), mask[:n]) for row, mask, n in zip(ids, masks, lengths, strict=True)
    )


def given(target: Any, draft: Any, data: TrainingSequences) -> tuple[Any, Any, Any]:
    reader = TargetReader(target, draft.config.target_layer_ids, torch.float32)
    kept = torch.arange(300) if draft.kept_ids is None else draft.kept_ids
    teacher = Teacher(target, kept, torch.device("cpu"))
    return reader, teacher, collate([data[at] for at in range(len(data))])


def computed(
    target: Any, draft: Any, data: TrainingSequences, steps: int, bf16: bool = False
) -> Any:
    reader, teacher, batch = given(target, draft, data)
    with computing_the_loss(draft, teacher, DECAY):
        return draft(**ForwardInputs(reader, torch.device("cpu"), bf16).inputs(batch, steps))


def by_hand(target: Any, draft: Any, data: TrainingSequences, steps: int) -> tuple[Any, Any]:
    """The same with loops: each column drafts alone, with a cache, as generation does."""
    kept = list(range(300)) if draft.kept_ids is None else draft.kept_ids.tolist()
    total = torch.zeros(())
    sums = torch.zeros(len(data), steps, 4)
    for row, item in enumerate(data):
        ids, mask = torch.tensor(item["input_ids"]).long(), item["assistant_mask"]
        with torch.no_grad():
            out = target(ids[None], output_hidden_states=True)
        states = torch.cat([out.hidden_states[i] for i in draft.config.target_layer_ids], dim=-1)
        embeds = target.get_input_embeddings()(ids)[None].detach()
        for column in range(len(ids) - 2):
            cache, state, taken = DynamicCache(config=draft.body.config), None, True
            for step in range(steps):
                token = column + step + 2
                if token >= len(ids) or not mask[column + 2 : token + 1].all():
                    break
                if step == 0:
                    read = draft.body(
                        embeds[:, 1 : column + 2],
                        target_hidden_states=states[:, : column + 1],
                        cache=cache,
                    )
                else:
                    here = column + step + 1
                    read = draft.body(embeds[:, here : here + 1], state=state, cache=cache)
                state, logits = read.state[:, -1:], read.logits[0, -1]
                wanted = out.logits[0, token - 1]
                best = int(wanted.argmax())
                sums[row, step, COUNTED] += 1
                taken = taken and best in kept and kept[int(logits.argmax())] == best
                sums[row, step, TAKEN] += taken
                if best not in kept:
                    sums[row, step, MASKED] += 1
                    continue
                loss = -(wanted[kept].softmax(-1) * logits.log_softmax(-1)).sum()
                sums[row, step, LOSS] += loss.detach()
                total = total + DECAY**step * loss
    return total, sums


@pytest.mark.parametrize("kind", ["llama", "gemma-softcap"])
@pytest.mark.parametrize("ids", [None, range(3, 200)])
def test_the_loss_is_that_of_drafting_column_by_column(kind: str, ids: Any) -> None:
    target = make_tiny(kind, num_hidden_layers=4)
    draft = make_eagle(target, ids, initializer_range=0.1).train()
    found = computed(target, draft, two_turns(), steps=3)
    total, sums = by_hand(target, draft, two_turns(), steps=3)
    torch.testing.assert_close(found.total, total, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.sums, sums, rtol=1e-4, atol=1e-3)
    assert sums[..., MASKED].sum() > 0 or ids is None
    assert sums[:, 0, COUNTED].tolist() == [9, 9, 4]
    found.total.backward()
    mine = {name: weight.grad.clone() for name, weight in draft.named_parameters()}
    draft.zero_grad()
    total.backward()
    for name, weight in draft.named_parameters():
        scale = float(weight.grad.abs().max())
        torch.testing.assert_close(mine[name], weight.grad, rtol=1e-3, atol=1e-4 * scale)


def test_bfloat16_is_close_and_leaves_gradients_in_float32() -> None:
    target = make_tiny("llama", num_hidden_layers=4)
    draft = make_eagle(target, initializer_range=0.1).train()
    whole = computed(target, draft, two_turns(), steps=2)
    rounded = computed(target, draft, two_turns(), steps=2, bf16=True)
    assert rounded.total.dtype == torch.float32
    assert abs(float((rounded.total / whole.total).detach()) - 1) < 0.02
    rounded.total.backward()
    assert all(weight.grad.dtype == torch.float32 for weight in draft.parameters())


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("at_once", [1, 5])
def test_a_few_columns_at_a_time_give_the_same(
    at_once: int, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[memory grows with columns x kept ids x steps]"""
    target = make_tiny("llama", num_hidden_layers=4)
    draft = make_eagle(target, range(3, 200), initializer_range=0.1).train()
    with kept_for_the_way_back() as kept:
        whole = computed(target, draft, two_turns(), steps=3, bf16=bf16)
    whole.total.backward()
    gradients = {name: weight.grad.clone() for name, weight in draft.named_parameters()}
    draft.zero_grad()
    monkeypatch.setattr(training_loss, "_SCORED_AT_ONCE", at_once * 4 * 197)
    with Made() as made:
        with kept_for_the_way_back() as kept_of_parts:
            parts = computed(target, draft, two_turns(), steps=3, bf16=bf16)
        parts.total.backward()
    close: dict[str, Any] = {"rtol": 1e-2, "atol": 1e-2} if bf16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(parts.total, whole.total, **close)
    torch.testing.assert_close(parts.sums, whole.sums, **close)
    for name, weight in draft.named_parameters():
        scale = float(gradients[name].abs().max())
        torch.testing.assert_close(weight.grad / scale, gradients[name] / scale, **close)
    columns, every = int(whole.sums[:, 0, COUNTED].sum()), int(whole.sums[..., COUNTED].sum())
    assert max(made.rows(197) - {columns}) == at_once, "the target's chances are of all columns"
    learnt = every - int(whole.sums[..., MASKED].sum())
    # Otherwise each guess keeps its own logits, and the chances that they are compared with.
    saved = 4 * 197 * (2 * learnt - columns)
    assert sum(kept.values()) - sum(kept_of_parts.values()) > 0.9 * saved


def test_nothing_is_as_wide_as_the_target_s_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the few positions at a time whose likeliest tokens are asked for."""
    monkeypatch.setattr(training_features, "_SCORED_AT_ONCE", 5)
    target = make_tiny("llama", num_hidden_layers=4, hidden_size=36, intermediate_size=72)
    draft = make_eagle(target, range(3, 200), initializer_range=0.1).train()
    reader, teacher, batch = given(target, draft, two_turns())
    inputs = ForwardInputs(reader, torch.device("cpu"), bf16=False)
    with Made() as made:
        arguments = inputs.inputs(batch, 3)
    assert max(made.rows(300)) == 5
    with Made() as made, computing_the_loss(draft, teacher, DECAY):
        draft(**arguments).total.backward()
    assert not made.rows(300)
    assert max(made.rows(197)) == int((batch["runs"] > 0).sum()), "one for each column"


def test_tokens_outside_the_vocabulary_are_counted_and_missed() -> None:
    target = make_tiny("llama", num_hidden_layers=4)
    data = two_turns()
    reader, _, batch = given(target, make_eagle(target), data)
    likely = reader.read(batch["input_ids"], batch["lengths"], torch.ones(3, 18, dtype=torch.bool))
    gone = int(likely.top[1, 10])
    draft = make_eagle(target, [n for n in range(300) if n != gone])
    sums = computed(target, draft, data, steps=1).sums
    expected = [
        sum(
            int(likely.top[row, column + 1]) == gone
            for column, run in zip(c, r, strict=True)
            if run
        )
        for row, (c, r) in enumerate(
            zip(batch["columns"].tolist(), batch["runs"].tolist(), strict=True)
        )
    ]
    assert expected[1] >= 1
    assert sums[:, 0, MASKED].tolist() == expected
    assert figures(sums.double().sum(0), DECAY)["masked_share"] == pytest.approx(
        sum(expected) / 22
    )


def test_a_draft_that_knows_none_of_the_tokens_has_no_loss() -> None:
    target = make_tiny("llama", num_hidden_layers=4)
    reader, _, batch = given(target, make_eagle(target), two_turns())
    top = reader.read(
        batch["input_ids"], batch["lengths"], torch.ones(3, 18, dtype=torch.bool)
    ).top
    draft = make_eagle(target, sorted(set(range(300)) - set(top.flatten().tolist()))).train()
    found = computed(target, draft, two_turns(), steps=2)
    found.total.backward()
    assert float(found.total.detach()) == 0
    assert found.sums[..., MASKED].equal(found.sums[..., COUNTED])
    assert float(found.sums[..., TAKEN].sum()) == 0


def test_acceptance_length_counts_from_the_first_guess() -> None:
    sums = torch.tensor([[10.0, 5, 0, 0], [8.0, 2, 0, 0]])
    assert acceptance(sums) == ([0.5, 0.25], 1.75)


def test_the_draft_s_forward_is_its_own_again() -> None:
    target = make_tiny("llama", num_hidden_layers=4)
    draft = make_eagle(target)
    _, teacher, _ = given(target, draft, two_turns())
    with computing_the_loss(draft, teacher, DECAY):
        assert "forward" in vars(draft)
        assert set(draft.state_dict()) == set(make_eagle(target).state_dict())
        embeds = torch.zeros(1, 3, 48)
        out = draft(inputs_embeds=embeds, target_hidden_states=torch.zeros(1, 3, 144))
        assert out.logits.shape == (1, 3, 300)
    assert "forward" not in vars(draft)
    assert isinstance(Features(embeds, embeds, embeds), tuple)
