"""Sampled text follows the target's distribution, whatever the draft proposes.

Two proofs. In the small one the draft's choices are made by our functions, many at a time, and
judged by Transformers' own acceptance step; the frequencies of all 64 two-token texts are compared
with the exact law. In the large one `generate` itself writes text of a target whose next token
depends on the last one alone, so that every token written is one draw from a row of a table that
is known exactly.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.utils import _speculative_sampling

from drafting import chi_square_p, make_draft, make_eagle, teach, watch
from tiny_models import make_tiny
from vtrim_hf.assisted_generation import DraftSpaceProcessors, choose_rows, widen
from vtrim_hf.draft_space import certain

V, K = 8, 3
KEPT = torch.tensor([1, 4, 6])
PROMPT = torch.tensor([[2, 4]])
DRAWS = 2000

SETTINGS: dict[str, list[Any]] = {
    "plain": [],
    "temperature": [TemperatureLogitsWarper(0.7)],
    "top-k": [TopKLogitsWarper(3)],
    "top-p": [TopPLogitsWarper(0.5)],
    "min-p": [MinPLogitsWarper(0.2)],
    "typical": [TypicalLogitsWarper(0.6)],
    "penalty": [RepetitionPenaltyLogitsProcessor(2.0)],
    "all": [
        RepetitionPenaltyLogitsProcessor(1.3),
        TemperatureLogitsWarper(1.4),
        TopKLogitsWarper(6),
        TopPLogitsWarper(0.97),
        MinPLogitsWarper(0.01),
        TypicalLogitsWarper(0.98),
    ],
}


class TwoTokenWorld:
    """A target and a draft that are tables: logits of the first token, and of the second given the
    first."""

    def __init__(self, processors: list[Any], *, greedy_draft: bool, law_is_wrong: bool) -> None:
        generator = torch.Generator().manual_seed(11)
        self.target = [
            torch.randn(1, V, generator=generator),
            torch.randn(V, V, generator=generator),
        ]
        # The draft leans towards the target, as drafts do, and knows its own three ids only.
        noise = [torch.randn(1, K, generator=generator), torch.randn(V, K, generator=generator)]
        self.draft = [
            table[:, KEPT] + extra for table, extra in zip(self.target, noise, strict=True)
        ]
        self.processors = LogitsProcessorList(processors)
        self.in_draft_space = DraftSpaceProcessors(self.processors, KEPT, V)
        self.greedy_draft = greedy_draft
        self.law_is_wrong = law_is_wrong

    def target_logits(self, text: torch.Tensor) -> torch.Tensor:
        """Processed logits that follow texts [batch, length] at the target's width."""
        new = text.shape[1] - PROMPT.shape[1]
        logits = self.target[0].expand(len(text), -1) if new == 0 else self.target[1][text[:, -1]]
        processed = self.processors(text, logits.clone())  # type: ignore[arg-type]
        assert isinstance(processed, torch.Tensor)
        return processed

    def exact_law(self) -> torch.Tensor:
        first = self.target_logits(PROMPT).softmax(-1)[0]
        texts = torch.cat([PROMPT.expand(V, -1), torch.arange(V)[:, None]], dim=1)
        return first[:, None] * self.target_logits(texts).softmax(-1)

    def propose(self, text: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Propose for texts [batch, length]: longer texts, and the scores handed over [batch, n,
        V]."""
        handed_over = []
        for _ in range(count):
            new = text.shape[1] - PROMPT.shape[1]
            raw = self.draft[0].expand(len(text), -1) if new == 0 else self.draft[1][text[:, -1]]
            scores = self.in_draft_space(text, raw.clone())
            assert scores is not None
            rows = choose_rows(scores, sample=not self.greedy_draft)
            law = certain(scores, rows) if self.greedy_draft else scores
            handed_over.append(torch.zeros_like(raw) if self.law_is_wrong else law)
            text = torch.cat([text, KEPT[rows]], dim=1)
        return text, widen(torch.stack(handed_over, dim=1), KEPT, V)

    def sample(self) -> torch.Tensor:
        """Draw `DRAWS` texts of two tokens the assisted way; return how often each came, [V,
        V]."""
        texts, handed_over = self.propose(PROMPT.expand(DRAWS, -1), 2)
        # Laws of the target at the three positions, once for each text that was proposed.
        known: dict[tuple[int, ...], torch.Tensor] = {}
        firsts: list[int] = []
        counts = torch.zeros(V, V)
        for text, scores in zip(texts, handed_over, strict=True):
            key = tuple(text[2:].tolist())
            if key not in known:
                steps = [self.target_logits(text[None, :end]) for end in (2, 3)]
                known[key] = torch.stack([*steps, torch.zeros(1, V)], dim=1)
            said, _ = _speculative_sampling(text[None], scores[None], 2, known[key])
            if said.shape[1] == 1:
                firsts.append(int(said))
            else:
                counts[said[0, 0], said[0, 1]] += 1
        # Where the first proposal was refused another round follows.
        first = torch.tensor(firsts, dtype=torch.long)[:, None]
        resumed = torch.cat([PROMPT.expand(len(firsts), -1), first], dim=1)
        texts, handed_over = self.propose(resumed, 1)
        laws = self.target_logits(resumed)
        for text, scores, law in zip(texts, handed_over, laws, strict=True):
            both = torch.stack([law, torch.zeros(V)])[None]
            said, _ = _speculative_sampling(text[None], scores[None], 1, both)
            counts[text[2], said[0, 0]] += 1
        assert int(counts.sum()) == DRAWS
        return counts


@pytest.mark.parametrize("draft", ["sampling draft", "greedy draft"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_two_token_law(setting: str, draft: str) -> None:  # transformers#47932
    torch.manual_seed(5)
    world = TwoTokenWorld(
        SETTINGS[setting], greedy_draft=draft == "greedy draft", law_is_wrong=False
    )
    assert chi_square_p(world.sample(), world.exact_law() * DRAWS) > 0.001


@pytest.mark.parametrize("draft", ["sampling draft", "greedy draft"])
@pytest.mark.parametrize("setting", ["plain", "temperature", "top-p", "all"])
def test_the_test_notices_a_wrong_law(setting: str, draft: str) -> None:
    """Report an even law over the kept ids instead of the one that was drawn from."""
    torch.manual_seed(5)
    world = TwoTokenWorld(
        SETTINGS[setting], greedy_draft=draft == "greedy draft", law_is_wrong=True
    )
    assert chi_square_p(world.sample(), world.exact_law() * DRAWS) < 1e-6


def test_the_processors_change_the_law() -> None:
    laws = {
        name: TwoTokenWorld(chain, greedy_draft=False, law_is_wrong=False).exact_law()
        for name, chain in SETTINGS.items()
    }
    for name, law in laws.items():
        assert float(law.sum()) == pytest.approx(1.0, abs=1e-5)
        assert name == "plain" or float((law - laws["plain"]).abs().sum()) > 0.05, name


def markov_target(layers: int = 1) -> Any:
    """A target of 8 tokens whose attention adds nothing: the last token alone decides."""
    target: Any = make_tiny(
        "llama",
        seed=1,
        vocab_size=V,
        num_hidden_layers=layers,
        hidden_size=16,
        intermediate_size=16,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
    )
    with torch.no_grad():
        for layer in target.model.layers:
            layer.self_attn.o_proj.weight.zero_()
        target.lm_head.weight *= 0.45
    return target


def transitions(ids: torch.Tensor) -> torch.Tensor:
    counts = torch.zeros(V, V)
    counts.index_put_((ids[:-1], ids[1:]), torch.ones(len(ids) - 1), accumulate=True)
    return counts


def half_way_draft(body: str, target: Any, law: torch.Tensor) -> tuple[Any, set[int]]:
    """A draft of the five ids that are said most, which agrees half-way; and those ids."""
    kept = torch.linalg.matrix_power(law, 50)[0].topk(5).indices.tolist()
    if body == "standalone":
        source = markov_target()
        with torch.no_grad():
            source.lm_head.weight += 0.1 * torch.randn_like(source.lm_head.weight)
        draft = make_draft(source, kept, length=2)
    else:
        draft = make_eagle(target, kept, length=2, initializer_range=0.1)
        texts = target.generate(
            torch.arange(1, V)[:, None], do_sample=True, top_k=0, max_new_tokens=20
        )
        teach(draft, target, texts, passes=15, steps=2)
    return draft, set(kept)


@pytest.mark.parametrize("body", ["standalone", pytest.param("eagle3", marks=pytest.mark.newest)])
@pytest.mark.parametrize(
    ("settings", "draft_settings"),
    [
        pytest.param(
            {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
            {"assistant_confidence_threshold": 0.7},
            id="top-k top-p, unsure drafts stop",
        ),
        pytest.param(
            {"temperature": 0.6},
            {
                "assistant_confidence_threshold": 0.3,
                "assistant_confidence_calibration": [0.8, 0.2],
                "num_assistant_tokens_schedule": "adaptive",
                "num_assistant_tokens": 4,
            },
            id="calibrated drafts stop",
        ),
        pytest.param({"temperature": 1.3}, {"do_sample": False}, id="greedy draft"),
    ],
)
def test_law_of_generate(
    settings: dict[str, Any], draft_settings: dict[str, Any], body: str
) -> None:
    """2,000 tokens of `generate`, each a draw from a known row.

    [vllm#40149, SafeAILab/EAGLE#183] Also of an EAGLE-3 draft, whose law counts as any other's.
    """
    target = markov_target(layers=1 if body == "standalone" else 2)
    settings = {"do_sample": True, "top_k": 0, **settings}
    with torch.no_grad():
        table = target(torch.arange(V)[:, None]).logits[:, 0]
        twice = target(torch.tensor([[3, 5]])).logits[0, 1]
    torch.testing.assert_close(twice, table[5])
    chain = target._get_logits_processor(
        target._prepare_generation_config(None, **settings)[0], logits_processor=None
    )
    law = chain(torch.arange(V)[:, None], table.clone()).softmax(-1)
    draft, kept = half_way_draft(body, target, law)
    draft.generation_config.update(**draft_settings)
    counts = torch.zeros(V, V)
    accepted = proposed = 0
    for start in range(4):
        run = watch(target, draft, torch.tensor([[start]]), max_new_tokens=500, **settings)
        counts += transitions(run.sequences[0])
        accepted += run.accepted
        proposed += run.proposed
        assert run.proposed_ids <= kept
    assert 0.1 < accepted / proposed < 0.95
    assert float(counts.sum()) == 2000
    expected = counts.sum(1, keepdim=True) * law
    assert chi_square_p(counts, expected) > 0.001
    # The same numbers are no sample of the unprocessed law, or of the draft's.
    assert chi_square_p(counts, counts.sum(1, keepdim=True) * table.softmax(-1)) < 1e-6


def test_the_test_notices_an_eagle_draft_whose_law_is_not_told() -> None:
    """As if every kept id had been as likely as the others [vllm#40149]."""
    target = markov_target(layers=2)
    with torch.no_grad():
        law = (target(torch.arange(V)[:, None]).logits[:, 0] / 0.5).softmax(-1)
    draft, _ = half_way_draft("eagle3", target, law)
    original = draft.make_candidate_generator

    def make_candidate_generator(**call: Any) -> Any:
        generator = original(**call)
        fetch = generator.get_candidates

        def get_candidates(input_ids: torch.Tensor, **inputs: Any) -> Any:
            ids, scores = fetch(input_ids, **inputs)
            if scores is not None:
                scores = scores.masked_fill(scores.isfinite(), 0.0)
            return ids, scores

        generator.get_candidates = get_candidates
        return generator

    draft.make_candidate_generator = make_candidate_generator
    settings: dict[str, Any] = {"do_sample": True, "top_k": 0, "temperature": 0.5}
    prompt = torch.tensor([[1]])
    ids = target.generate(prompt, assistant_model=draft, max_new_tokens=800, **settings)
    counts = transitions(ids[0])
    assert chi_square_p(counts, counts.sum(1, keepdim=True) * law) < 1e-6
