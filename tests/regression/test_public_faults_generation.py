"""Public faults of assisted generation, each pinned by the thread that reported it, and known
limits.

The limits at the end are Transformers' own. They are tests of the behaviour one would want,
expected to fail: when one of them passes, a limit has gone upstream and our refusal or note can go
too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from drafting import make_draft, watch
from tiny_models import (
    KINDS,
    SLIDING_WINDOW,
    VOCAB_SIZE,
    make_byte_tokenizer,
    make_prompt,
    make_tiny,
    perturbed,
)
from vtrim_hf import assisted_generation
from vtrim_hf.compatibility import check_pair

NEW = 32


def plain_ids(target: Any, prompt: torch.Tensor, **settings: Any) -> list[int]:
    ids: list[int] = target.generate(prompt, **settings)[0, prompt.shape[1] :].tolist()
    return ids


@pytest.mark.parametrize("length", [1, 3, 7], ids="transformers#40739-{}".format)
def test_draft_length_is_the_drafts_own(length: int) -> None:
    """Set on the draft it counts; the target reads that many and one more, never wider."""
    target = make_tiny("llama")
    draft = make_draft(target, length=length)
    run = watch(target, draft, make_prompt(), max_new_tokens=NEW)
    assert max(run.widths[1:]) == length + 1
    assert run.widths[1:-1] == [length + 1] * (run.forwards - 2)
    # Given to the target it is the target's setting, for models that draft for it; ours keeps its
    # own.
    again = watch(target, draft, make_prompt(), max_new_tokens=NEW, num_assistant_tokens=9)
    assert again.widths == run.widths


@pytest.mark.parametrize("sampling", [False, True], ids=["greedy", "sampling"])
@pytest.mark.parametrize("margin", [0, 2, 5])
def test_stop_string_completed_in_mid_draft(margin: int, sampling: bool) -> None:
    """[transformers#48039] The text ends where the plain one does."""
    tokenizer = make_byte_tokenizer()
    target = make_tiny("llama")
    prompt = make_prompt()
    plain = plain_ids(target, prompt, max_new_tokens=NEW)
    # The text of the ids from 7 + margin on, as far as it is text.
    pieces = [str(tokenizer.decode([token])) for token in plain]
    place = next(i for i in range(7 + margin, NEW) if pieces[i].isascii() and pieces[i].strip())
    stop = pieces[place]
    settings: dict[str, Any] = {
        "max_new_tokens": NEW,
        "stop_strings": [stop, "no such words"],
        "tokenizer": tokenizer,
        "do_sample": sampling,
        **({"top_k": 1} if sampling else {}),  # sampling with one choice, so that texts compare
    }
    stopped = plain_ids(target, prompt, **settings)
    assert 1 < len(stopped) <= place + 1 < NEW
    assert stop in pieces[len(stopped) - 1]
    run = watch(target, make_draft(target, plain), prompt, **settings)
    assert run.new_ids == stopped
    assert run.accepted == run.proposed > 0
    assert stopped[-1] not in run.proposed_ids or stopped[-1] in stopped[:-1]


@pytest.mark.parametrize(
    "after",
    [{}, {"renormalize_logits": True}, {"eta_cutoff": 0.2}, {"top_h": 0.5}, {"typical_p": 0.5}],
    ids=lambda after: f"textgen#6113-{next(iter(after), 'plain')}",
)
@pytest.mark.parametrize("ban", ["suppress_tokens", "bad_words_ids"])
@pytest.mark.parametrize("sampling", [False, True], ids=["greedy", "sampling"])
def test_all_kept_ids_forbidden(sampling: bool, ban: str, after: dict[str, Any]) -> None:
    target = make_tiny("llama")
    kept = [5, 8, 11]
    prompt = make_prompt()
    if not sampling and "renormalize_logits" not in after:
        after = {}  # warpers are for sampling
    settings = {
        "max_new_tokens": 8,
        "do_sample": sampling,
        ban: kept if ban == "suppress_tokens" else [[token] for token in kept],
        **after,
    }
    run = watch(target, make_draft(target, kept), prompt, **settings)
    assert len(run.new_ids) == 8
    assert run.proposed == 0
    assert not set(run.new_ids) & set(kept)
    if not sampling:
        assert run.new_ids == plain_ids(target, prompt, **settings)


@pytest.mark.parametrize("sampling", [False, True], ids=["greedy", "sampling"])
def test_proposals_are_kept_ids_on_every_public_way(sampling: bool) -> None:
    """[vllm-ascend#16166] Rows 0, 1, 2 of the head are never taken for ids 0, 1, 2."""
    target = make_tiny("llama")
    draft = make_draft(target, {5, 8, 11})
    prompt = make_prompt()
    torch.manual_seed(1)
    run = watch(target, draft, prompt, max_new_tokens=NEW, do_sample=sampling)
    assert run.proposed_ids <= {5, 8, 11}
    assert len(run.proposed_ids) == 3
    for scores, proposal in zip(run.proposed_scores, run.proposals, strict=True):
        assert (scores is not None) is (sampling and bool(proposal))
        if scores is not None:
            assert set(scores.isfinite().nonzero()[:, 2].tolist()) == {5, 8, 11}
    own = draft.generate(prompt, max_new_tokens=NEW, do_sample=sampling, pad_token_id=0)
    assert set(own[0, prompt.shape[1] :].tolist()) <= {5, 8, 11}
    assert set(draft(prompt).logits[0].argmax(-1).tolist()) <= {5, 8, 11}


def test_row_numbers_taken_for_ids_would_be_seen() -> None:
    """[vllm-ascend#16166] The fault itself, made on purpose: the text stays right, the acceptance
    goes."""
    target = make_tiny("llama")
    prompt = make_prompt()
    plain = plain_ids(target, prompt, max_new_tokens=NEW)
    draft = make_draft(target, {*plain, 290})
    good = watch(target, draft, prompt, max_new_tokens=NEW)
    original = assisted_generation.TrimmedCandidateGenerator.__init__

    def unmapped(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **{**kwargs, "kept_ids": torch.arange(len(draft.vocabulary))})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assisted_generation.TrimmedCandidateGenerator, "__init__", unmapped)
        bad = watch(target, draft, prompt, max_new_tokens=NEW)
    assert good.new_ids == bad.new_ids == plain
    assert good.accepted == good.proposed
    assert bad.accepted < bad.proposed / 4


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["mistral-sliding", "gemma3"])
def test_across_the_sliding_window(kind: str, attention: str) -> None:
    """[transformers#48280] From below the window to far past it, with rejections on the way."""
    target = make_tiny(kind)
    target.set_attn_implementation(attention)
    prompt = make_prompt(SLIDING_WINDOW - 6)
    plain = plain_ids(target, prompt, max_new_tokens=60)
    run = watch(target, make_draft(perturbed(target), plain), prompt, max_new_tokens=60)
    assert run.new_ids == plain
    assert 0 < run.accepted < run.proposed
    same = watch(target, make_draft(target, plain), prompt, max_new_tokens=60)
    assert same.accepted == same.proposed


class Listener(BaseStreamer):
    def __init__(self) -> None:
        self.heard: list[int] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.heard += value.flatten().tolist()

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("others", [None, [299], [298, 299]], ids="transformers#47912-{}".format)
@pytest.mark.parametrize("kind", KINDS)
def test_eos_accepted_in_mid_draft(kind: str, others: list[int] | None) -> None:
    target = make_tiny(kind)
    prompt = make_prompt()
    free = plain_ids(target, prompt, max_new_tokens=NEW)
    eos = free[6]
    settings = {
        "max_new_tokens": NEW,
        "eos_token_id": eos if others is None else [*others, eos],
        "pad_token_id": 0,
    }
    listener, ours = Listener(), Listener()
    plain = plain_ids(target, prompt, **settings, streamer=listener)
    assert plain == free[: free.index(eos) + 1]
    run = watch(target, make_draft(target, free), prompt, **settings, streamer=ours)
    assert run.new_ids == plain
    assert ours.heard == listener.heard
    assert ours.ended == listener.ended == 1
    assert run.accepted == run.proposed > 0
    # A draft that cannot say the eos changes nothing but the number of rounds.
    run = watch(target, make_draft(target, set(free) - {eos}), prompt, **settings)
    assert run.new_ids == plain


def test_draft_length_does_not_drift_into_the_file(tmp_path: Path) -> None:
    """[transformers#28759]"""
    target = make_tiny("llama")
    draft = make_draft(target, length=5)
    draft.generation_config.num_assistant_tokens_schedule = "heuristic"
    first, second = (watch(target, draft, make_prompt(), max_new_tokens=NEW) for _ in range(2))
    assert max(map(len, first.proposals)) > 5  # it does grow within a run
    assert first.widths == second.widths
    draft.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text("utf-8"))
    assert saved["num_assistant_tokens"] == 5


def test_prompt_longer_than_the_drafts_positions() -> None:
    """[sglang#6783] Refused before anything runs, with both numbers."""
    source = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB_SIZE, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    )
    target = make_tiny("llama")
    with pytest.raises(ValueError, match=r"position table of 16 tokens.*may reach 24"):
        target.generate(make_prompt(20), max_new_tokens=4, assistant_model=make_draft(source))


def test_tokenizer_given_beside_a_draft_of_its_own() -> None:
    """[transformers#46936] Nothing is re-encoded: the draft reads the target's ids, always."""
    tokenizer = make_byte_tokenizer()
    target = make_tiny("llama")
    prompt = make_prompt()
    plain = plain_ids(target, prompt, max_new_tokens=NEW)
    draft = make_draft(target, plain)
    run = watch(target, draft, prompt, max_new_tokens=NEW, tokenizer=tokenizer)
    assert run.new_ids == plain
    assert run.accepted == run.proposed
    with pytest.raises(ValueError, match="assistant_tokenizer"):
        target.generate(
            prompt,
            max_new_tokens=NEW,
            assistant_model=draft,
            tokenizer=tokenizer,
            assistant_tokenizer=tokenizer,
        )


def test_same_tokenizer_padded_differently() -> None:
    """[transformers#45307] A draft of a narrower model for a wider target, greedy and sampling."""
    target = make_tiny("qwen-padded")
    narrow = make_tiny("llama")
    draft = make_draft(narrow, range(0, VOCAB_SIZE, 2), vocab_size=target.config.vocab_size)
    check_pair(target, draft)
    prompt = make_prompt()
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert run.new_ids == plain_ids(target, prompt, max_new_tokens=NEW)
    assert run.proposed_ids <= set(range(0, VOCAB_SIZE, 2))
    padding = torch.tensor([[VOCAB_SIZE + 3, 7, target.config.vocab_size - 1]])
    run = watch(target, draft, padding, max_new_tokens=NEW, do_sample=True)
    assert len(run.new_ids) == NEW
    assert all(
        scores is None or scores.shape[-1] == target.config.vocab_size
        for scores in run.proposed_scores
    )


# Limits that are Transformers' own.


def transformers_own(target: Any) -> Any:
    """The target as its own assistant, the way Transformers does it without us."""
    target.generation_config.num_assistant_tokens = 4
    target.generation_config.num_assistant_tokens_schedule = "constant"
    target.generation_config.assistant_confidence_threshold = 0.0
    return target


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take our refusals away."""
    monkeypatch.setattr(assisted_generation, "check_call", lambda *_, **__: None)


class AfterSevenTokens(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.tensor([input_ids.shape[1] >= 12 + 7])


@pytest.mark.xfail(
    reason="custom stopping criteria are looked at once a round",
    strict=True,
    raises=AssertionError,
)
def test_limit_custom_stopping_criteria() -> None:
    target = make_tiny("llama")
    settings = {
        "max_new_tokens": NEW,
        "stopping_criteria": StoppingCriteriaList([AfterSevenTokens()]),
    }
    plain = plain_ids(target, make_prompt(), **settings)
    assert len(plain) == 7
    assistant = transformers_own(make_tiny("llama"))
    assert plain_ids(target, make_prompt(), assistant_model=assistant, **settings) == plain


@pytest.mark.xfail(
    reason="the unconditional pass does not see drafted tokens", strict=True, raises=AssertionError
)
def test_limit_guidance_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    unchecked(monkeypatch)
    target = make_tiny("llama")
    settings = {"max_new_tokens": NEW, "guidance_scale": 1.5}
    plain = plain_ids(target, make_prompt(), **settings)
    assert (
        plain_ids(target, make_prompt(), assistant_model=make_draft(target), **settings) == plain
    )


@pytest.mark.xfail(
    reason="the prompt is fed again on top of a filled cache", strict=True, raises=AssertionError
)
def test_limit_filled_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    unchecked(monkeypatch)
    target = make_tiny("llama")

    def answer_with_cache(**assistant: Any) -> list[int]:
        first = target.generate(make_prompt(), max_new_tokens=5, return_dict_in_generate=True)
        name = "cache" if "cache" in first else "past_key_values"
        longer = torch.cat([first.sequences, make_prompt(3, seed=2)], dim=1)
        return plain_ids(target, longer, max_new_tokens=NEW, **{name: first[name]}, **assistant)

    assert answer_with_cache(assistant_model=make_draft(target)) == answer_with_cache()


@pytest.mark.xfail(reason="one prompt at a time", strict=True, raises=ValueError)
def test_limit_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    unchecked(monkeypatch)
    target = make_tiny("llama")
    prompts = make_prompt(batch=2)
    plain = target.generate(prompts, max_new_tokens=8)
    assisted = target.generate(prompts, max_new_tokens=8, assistant_model=make_draft(target))
    assert torch.equal(assisted, plain)


@pytest.mark.xfail(
    reason="beam search runs without the draft, and says so in a log",
    strict=True,
    raises=AssertionError,
)
def test_limit_beams() -> None:
    target = make_tiny("llama")
    run = watch(target, make_draft(target), make_prompt(), max_new_tokens=8, num_beams=2)
    assert run.generators != []


@pytest.mark.xfail(reason="one sequence at a time", strict=True, raises=ValueError)
def test_limit_several_sequences() -> None:
    target = make_tiny("llama")
    settings = {"max_new_tokens": 8, "do_sample": True, "num_return_sequences": 2}
    ids = target.generate(make_prompt(), assistant_model=make_draft(target), **settings)
    assert ids.shape[0] == 2
