"""The trial of a "none of these" class: its replay of greedy rounds, and the class itself."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from drafting import make_eagle, teach
from training_samples import PROMPT, fluent_target, rule_texts, said_by
from vtrim_hf.decoding_meter import metered

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "bench_none_class.py"
LENGTH = 20


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        spec = importlib.util.spec_from_file_location("bench_none_class", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def target() -> Any:
    torch.manual_seed(0)
    return fluent_target()


@pytest.fixture(scope="module")
def texts(target: Any) -> Any:
    torch.manual_seed(1)
    return said_by(target, rule_texts(24, PROMPT), LENGTH)


@pytest.fixture(scope="module")
def answers(bench: Any, target: Any, texts: Any) -> Any:
    """What a draft without a third of the ids does on the texts."""
    torch.manual_seed(2)
    draft = make_eagle(target, [i for i in range(300) if i % 3], length=3)
    ids = torch.stack([torch.tensor(row["input_ids"]).long() for row in texts])
    teach(draft, target, ids, passes=30)
    with torch.inference_mode():
        batches = bench.read_target(target, draft, texts, 3)
        found = list(bench.drafted(draft, batches, 3))
    return draft, found


def never(answer: Any) -> torch.Tensor:
    return torch.zeros_like(answer.hits)


def test_the_replay_counts_what_generate_does(
    bench: Any, target: Any, texts: Any, answers: Any
) -> None:
    draft, found = answers
    rounds = accepted = 0
    for row, answer in zip(texts, found, strict=True):
        ids = torch.tensor(row["input_ids"]).long()[None]
        with metered(target, draft) as tally:
            target.generate(
                ids[:, :PROMPT],
                assistant_model=draft,
                max_new_tokens=ids.shape[1] - PROMPT,
                do_sample=False,
            )
        replayed = bench.replay([answer], never, behind=False)
        rounds += replayed[0]
        accepted += replayed[2]
        # `generate` leaves the last of max_new_tokens to the target.
        assert replayed[0] - tally.verified_drafts in (0, 1)
        assert replayed[2] - sum(tally.accepted) in (0, 1)
    assert accepted > rounds / 4


def test_an_oracle_loses_nothing_and_saves_what_is_outside(bench: Any, answers: Any) -> None:
    _, found = answers
    fixed = bench.replay(found, never, behind=False)
    oracle = bench.replay(found, lambda a: a.outside, behind=False)
    assert (oracle[0], oracle[2]) == (fixed[0], fixed[2])
    assert oracle[1] < fixed[1]
    assert not any((a.hits & a.outside).any() for a in found)


def test_the_class_learns_what_is_outside(bench: Any, answers: Any) -> None:
    _, found = answers
    none = bench.train_class(found)
    at = torch.cat([a.reached.flatten() for a in found])
    said = torch.cat([none(a).flatten() for a in found])[at]
    outside = torch.cat([a.outside.flatten() for a in found])[at]
    assert 0.1 < outside.float().mean() < 0.9
    assert said[outside].mean() > said[~outside].mean() + 0.2
    assert said.mean() == pytest.approx(float(outside.float().mean()), abs=0.05)


def test_every_rule_is_told_against_drafts_of_fixed_length(bench: Any, answers: Any) -> None:
    _, found = answers
    rules = bench.replayed(found, bench.train_class(found), 0.04)
    assert rules[bench.FIXED]["time"] == 1
    # What an oracle drafts in vain is drafted by no rule, so nothing saves more at equal rounds.
    assert rules["oracle of outside"]["time"] < 1
    facts = {
        "draft": "d", "target": "t", "train": "a", "test": "b", "draft_length": 3, "step": 0.04,
        "answers": {"train": 24, "test": 24}, "command": "python x",
        "sizes": [{"k": 200, "outside": 0.25, "rules": rules}],
    }  # fmt: skip
    text = bench.markdown(facts)
    assert "| 200 | 25.00% | oracle of outside |" in text
    assert f"{rules['oracle of outside']['time']:.4f} |" in text
