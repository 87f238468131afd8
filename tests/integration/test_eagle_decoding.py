"""Tiny targets with EAGLE-3 drafts inside `generate`: the text is the target's own, and every
guess is the one that plain arithmetic gives.

Greedy text is right whatever a draft proposes, so each round's proposals are compared with
`EagleReference`, which computes everything anew without a cache. Drafts that shall be taken are
taught the one text that they are tried on.
"""

from __future__ import annotations

import copy
import functools
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    Gemma3nTextConfig,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from drafting import (
    PROCESSORS,
    AddTable,
    Run,
    check_proposals,
    make_draft,
    make_eagle,
    plain_ids,
    teach,
    watch,
)
from eagle_reference import EagleReference
from tiny_models import (
    KINDS,
    PAD_ID,
    PADDED_VOCAB_SIZE,
    SLIDING_WINDOW,
    VOCAB_SIZE,
    let_layers_outweigh_the_scaled_embedding,
    make_byte_tokenizer,
    make_prompt,
    make_tiny,
)
from vtrim_hf.compatibility import check_call, check_pair
from vtrim_hf.eagle_session import EagleSession

NEW = 24
LENGTH = 12
# Small weights are taught in fewer passes.
TEACHABLE: dict[str, Any] = {"initializer_range": 0.1}
EVEN = range(0, VOCAB_SIZE, 2)
# From 5.24 on a static cache can be taken back; before, Transformers refuses it itself.
STATIC_CACHES = "cache" in GenerateDecoderOnlyOutput.__dataclass_fields__
ALL_KINDS = [*KINDS, "gemma3"]
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def deep(kind: str) -> Any:
    """A target of eight layers."""
    types: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"] * 4}
    return make_tiny(kind, num_hidden_layers=8, **(types if kind == "gemma3" else {}))


@functools.cache
def _taught(kind: str, passes: int) -> tuple[Any, torch.Tensor, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        target = make_tiny(kind)
        text = target.generate(make_prompt(LENGTH), max_new_tokens=NEW)
        kept = {*text[0, LENGTH:].tolist(), *range(0, VOCAB_SIZE, 7)}
        draft = make_eagle(target, kept, **TEACHABLE)
        teach(draft, target, text, passes)
    return target, text, draft


def taught(kind: str = "llama", passes: int = 40) -> tuple[Any, torch.Tensor, list[int], Any]:
    """A target, a prompt, what the target says, and a draft that was taught just that.

    After 40 passes nearly all guesses are right, after 15 some are. All are copies.
    """
    target, text, draft = copy.deepcopy(_taught(kind, passes))
    return target, text[:, :LENGTH], text[0, LENGTH:].tolist(), draft


def often_taken(run: Run) -> bool:
    return run.accepted > 0.5 * run.proposed > 0


# Every guess, with every target.


@pytest.mark.parametrize("length", [1, 12, SLIDING_WINDOW + 14], ids="prompt-{}".format)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_guess_is_the_one_that_plain_arithmetic_gives(kind: str, length: int) -> None:
    target = make_tiny(kind)
    draft = make_eagle(target, EVEN)
    prompt = make_prompt(length)
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert run.new_ids == plain_ids(target, prompt, max_new_tokens=NEW)
    check_proposals(run, draft, target)
    assert run.proposed_ids <= set(EVEN)
    assert length == 1 or len(run.proposed_ids) > 9, "a draft that repeats itself shows nothing"


@pytest.mark.parametrize("layers", [None, (1, 4, 6), (0, 3, 8)], ids=str)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_layers_that_were_asked_for_are_read(kind: str, layers: Any) -> None:
    target = deep(kind)
    draft = make_eagle(target, EVEN, layers=layers)
    assert draft.config.target_layer_ids == list(layers or (2, 4, 5))
    prompt = make_prompt(SLIDING_WINDOW + 4)
    run = watch(target, draft, prompt, max_new_tokens=16)
    assert run.new_ids == plain_ids(target, prompt, max_new_tokens=16)
    check_proposals(run, draft, target)
    draft.config.target_layer_ids = [1, 2, 7]
    with pytest.raises(AssertionError, match="after"):
        check_proposals(run, draft, target)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_taught_draft_is_taken(kind: str) -> None:
    """And is not, once its rows stand for other tokens: the text would not tell."""
    target, prompt, plain, draft = taught(kind)
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert run.new_ids == plain
    assert often_taken(run)
    assert run.forwards < 0.6 * NEW
    check_proposals(run, draft, target)
    kept = set(draft.kept_ids.tolist())
    assert run.proposed_ids <= kept

    broken = copy.deepcopy(draft)
    broken.kept_ids = draft.kept_ids.roll(1)
    shuffled = watch(target, broken, prompt, max_new_tokens=NEW)
    assert shuffled.new_ids == plain
    assert shuffled.accepted / shuffled.proposed < 0.5 * run.accepted / run.proposed
    broken.kept_ids = torch.arange(len(kept))
    unmapped = watch(target, broken, prompt, max_new_tokens=NEW)
    assert unmapped.new_ids == plain
    assert not unmapped.proposed_ids <= kept
    for wrong in (shuffled, unmapped):
        with pytest.raises(AssertionError, match="after"):
            check_proposals(wrong, draft, target)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_some_guesses_taken_and_some_not(kind: str) -> None:
    target, prompt, plain, draft = taught(kind, passes=15)
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert run.new_ids == plain
    assert 0 < run.accepted < run.proposed
    check_proposals(run, draft, target)


@pytest.mark.parametrize("sampling", [False, True], ids=["greedy", "sampling"])
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_draft_of_three_ids(kind: str, sampling: bool) -> None:
    """An unmapped proposal would be one of 0, 1, 2 [vllm-ascend#16166]."""
    target = make_tiny(kind)
    draft = make_eagle(target, {5, 8, 11})
    prompt = make_prompt(20)
    run = watch(target, draft, prompt, max_new_tokens=NEW, do_sample=sampling)
    if not sampling:
        assert run.new_ids == plain_ids(target, prompt, max_new_tokens=NEW)
        check_proposals(run, draft, target)
    assert run.proposed > NEW
    assert run.proposed_ids <= {5, 8, 11}


@pytest.mark.parametrize("kind", ["llama", "qwen-padded"])
def test_all_ids_kept(kind: str) -> None:
    """k = V, where nothing is mapped or spread; with Qwen's padding among them."""
    target = make_tiny(kind)
    draft = make_eagle(target, **TEACHABLE)
    assert draft.kept_ids is None
    assert draft.lm_head.weight.shape[0] == target.config.vocab_size >= VOCAB_SIZE
    prompt = make_prompt()
    text = target.generate(prompt, max_new_tokens=NEW)
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert torch.equal(run.sequences, text)
    check_proposals(run, draft, target)
    teach(draft, target, text, passes=30)
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert torch.equal(run.sequences, text)
    assert often_taken(run)
    sampled = watch(target, draft, prompt, max_new_tokens=NEW, do_sample=True, temperature=0.1)
    assert sampled.accepted > 0
    assert sampled.proposed_scores[1].shape[-1] == target.config.vocab_size
    assert kind == "llama" or target.config.vocab_size == PADDED_VOCAB_SIZE


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_vectors_are_those_of_the_targets_own_module(kind: str) -> None:
    """Gemma scales inside it, so that the bare table would be something else. No proposal would
    tell: the norm that comes next takes any scale away."""
    target = make_tiny(kind)
    draft = make_eagle(target, EVEN)
    read: list[torch.Tensor] = []
    draft.body.register_forward_pre_hook(lambda module, args: read.append(args[0]))
    run = watch(target, draft, make_prompt(), max_new_tokens=6)
    module = target.get_input_embeddings()
    with torch.no_grad():
        assert torch.equal(read[0], module(run.sequences[:, 1 : run.known[1]]))
        for vectors, guess in zip(read[1:4], run.proposals[1][:-1], strict=True):
            assert torch.equal(vectors, module(torch.tensor([[guess]])))
        scale = read[0].std() / module.weight[run.sequences[:, 1 : run.known[1]]].std()
    assert scale.item() == pytest.approx(48**0.5 if kind.startswith("gemma") else 1.0, rel=0.01)


# What stays in the cache from round to round.


@torch.no_grad()
def fresh_session(
    draft: Any, target: Any, ids: torch.Tensor, embeddings: Any = None
) -> tuple[Any, torch.Tensor]:
    """A session that reads the whole text at once, from one forward of the target; its logits."""
    embeddings = embeddings or target.get_input_embeddings()
    session = EagleSession(draft.body, draft.config.target_layer_ids, embeddings, None)
    outputs = target(ids[:, :-1], output_hidden_states=True)
    logits = session.catch_up(ids, model_outputs=outputs)
    assert logits is not None
    return session, logits


def entries(session: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of what a session counts as read from real states."""
    cache = session._cache
    return cache.keys[:, :, : session._real], cache.values[:, :, : session._real]


@pytest.mark.parametrize("padding", [0, 5], ids="padding-{}".format)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_after_each_verification_the_cache_holds_real_states_only(kind: str, padding: int) -> None:
    target, prompt, plain, draft = taught(kind, passes=15)
    mask = torch.tensor([[0] * padding + [1] * LENGTH])
    padded = torch.cat([torch.full((1, padding), 9), prompt], dim=1)
    reference = EagleReference(draft, target)
    rounds = []

    def compare(generator: Any, ids: torch.Tensor) -> None:
        session = generator._session
        room = generator._max_length - ids.shape[1] - 1
        if session._real == 0 or room == 0:  # nothing to read yet, or nothing to propose
            return
        text = ids[:, padding:]
        assert session._real == text.shape[1] - 1
        fresh, logits = fresh_session(draft, target, text)
        with torch.no_grad():
            states, embeds = reference.entries(text)
            expected = reference.logits(reference.layer(embeds, states)[:, -1:])[:, 0]
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        assert fresh._real == fresh._cache.length == session._real
        for ours, anew in zip(entries(session), entries(fresh), strict=True):
            torch.testing.assert_close(ours, anew, rtol=1e-5, atol=1e-5)
        guesses = session._cache.length - session._real
        rounds.append(guesses)
        if guesses:  # what was guessed differs from what comes to stand there
            longer, _ = fresh_session(draft, target, torch.tensor([[*text[0].tolist(), 3]]))
            ours = session._cache.keys[:, :, session._real]
            assert not torch.allclose(ours, longer._cache.keys[:, :, -1], atol=1e-2)

    run = watch(
        target,
        draft,
        padded,
        after_round=compare,
        attention_mask=mask,
        max_new_tokens=NEW,
    )
    assert run.new_ids == plain
    assert 0 < run.accepted < run.proposed
    assert len(rounds) >= len(run.proposals) - 2
    assert max(rounds) == 3, "the last guess of a round is not read"


# Lengths, padding, ends.


@pytest.mark.parametrize("new", [1, 2, 3, 5, 6, 7])
def test_lengths_are_exact(new: int) -> None:
    target, prompt, plain, draft = taught()
    run = watch(target, draft, prompt, max_new_tokens=new)
    assert run.new_ids == plain[:new]
    assert all(len(p) <= new - 1 - i for i, p in enumerate(run.proposals))
    if new > 1:
        check_proposals(run, draft, target)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_left_padding(kind: str) -> None:
    target = make_tiny(kind)
    prompt = make_prompt(24)
    mask = torch.ones_like(prompt)
    mask[:, :9] = 0
    prompt[:, :9] = 0
    settings: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": NEW}
    plain = plain_ids(target, prompt, **settings)
    draft = make_eagle(target, plain)
    run = watch(target, draft, prompt, **settings)
    assert run.new_ids == plain
    check_proposals(run, draft, target, mask=mask)
    with pytest.raises(AssertionError, match="after"):
        check_proposals(run, draft, target)  # as if the padding had been read


def test_masked_tokens_in_the_middle_are_left_out() -> None:
    target = make_tiny("llama")
    prompt = make_prompt(24)
    mask = torch.ones_like(prompt)
    mask[:, [0, 1, 7, 8, 15]] = 0
    settings: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": NEW}
    draft = make_eagle(target, EVEN)
    run = watch(target, draft, prompt, **settings)
    assert run.new_ids == plain_ids(target, prompt, **settings)
    check_proposals(run, draft, target, mask=mask)


@pytest.mark.parametrize("length", [1, 3])
def test_a_prompt_of_padding_alone(length: int) -> None:
    """`generate` takes the pad id for padding, also where it is all there is."""
    target = make_tiny("llama")
    prompt = torch.full((1, length), PAD_ID)
    draft = make_eagle(target, EVEN)
    run = watch(target, draft, prompt, max_new_tokens=12)
    assert not run.calls[0]["model_kwargs"]["attention_mask"][0, :length].any()
    assert run.new_ids == plain_ids(target, prompt, max_new_tokens=12)
    assert run.proposals[1] == [], "there is no state of a token to read yet"
    check_proposals(run, draft, target, mask=torch.zeros(1, length))


class Listener(BaseStreamer):
    def __init__(self) -> None:
        self.heard: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.heard += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize("tail", [[], [299]], ids=["one eos", "list of eos"])
@pytest.mark.parametrize("place", [7, 8, 9, 10])
def test_eos_inside_a_draft(place: int, tail: list[int]) -> None:
    target, prompt, plain, draft = taught()
    eos = plain[place]
    place = plain.index(eos)
    listener = Listener()
    settings: dict[str, Any] = {
        "max_new_tokens": NEW,
        "eos_token_id": [eos, *tail] if tail else eos,
    }
    run = watch(target, draft, prompt, streamer=listener, **settings)
    assert run.new_ids == plain[: place + 1]
    assert listener.heard == run.sequences[0].tolist()
    assert listener.ended
    assert often_taken(run)
    check_proposals(run, draft, target)
    assert all(eos not in proposal[:-1] for proposal in run.proposals)


@pytest.mark.parametrize("tail", [[], [299]], ids=["one eos", "list of eos"])
def test_min_new_tokens_holds_an_eos_back(tail: list[int]) -> None:
    target = make_tiny("llama")
    prompt = make_prompt()
    eos = plain_ids(target, prompt, max_new_tokens=NEW)[2]
    settings: dict[str, Any] = {
        "max_new_tokens": NEW,
        "min_new_tokens": 9,
        "eos_token_id": [eos, *tail] if tail else eos,
    }
    plain = plain_ids(target, prompt, **settings)
    assert len(plain) >= 9
    text = torch.cat([prompt, torch.tensor([plain])], dim=1)
    draft = make_eagle(target, {*plain, eos}, **TEACHABLE)
    teach(draft, target, text, passes=40)
    run = watch(target, draft, prompt, **settings)
    assert run.new_ids == plain
    assert often_taken(run)
    check_proposals(run, draft, target, processed=True)


@pytest.mark.parametrize("sampling", [False, True], ids=["greedy", "sampling"])
@pytest.mark.parametrize("margin", [0, 2])
def test_stop_strings(margin: int, sampling: bool) -> None:
    """[transformers#48039] The text ends where the plain one does."""
    tokenizer = make_byte_tokenizer()
    target, prompt, plain, draft = taught()
    pieces = [str(tokenizer.decode([token])) for token in plain]
    place = next(i for i in range(7 + margin, NEW) if pieces[i].isascii() and pieces[i].strip())
    settings: dict[str, Any] = {
        "max_new_tokens": NEW,
        "stop_strings": [pieces[place], "no such words"],
        "tokenizer": tokenizer,
        "do_sample": sampling,
        **({"top_k": 1} if sampling else {}),  # sampling with one choice, so that texts compare
    }
    stopped = plain_ids(target, prompt, **settings)
    assert 1 < len(stopped) <= place + 1 < NEW
    run = watch(target, draft, prompt, **settings)
    assert run.new_ids == stopped
    assert often_taken(run)
    assert stopped[-1] not in run.proposed_ids or stopped[-1] in stopped[:-1]


def test_static_cache() -> None:
    target, prompt, plain, draft = taught()
    settings: dict[str, Any] = {
        "max_new_tokens": NEW,
        "cache_implementation": "static",
        "disable_compile": True,
    }
    if not STATIC_CACHES:
        with pytest.raises(ValueError, match="not supported with Static cache"):
            target.generate(prompt, assistant_model=draft, **settings)
        return
    run = watch(target, draft, prompt, **settings)
    assert run.new_ids == plain
    assert often_taken(run)
    check_proposals(run, draft, target)


@pytest.mark.parametrize("positions", [16, 40])
def test_a_text_longer_than_the_targets_positions(positions: int) -> None:
    """[sglang#6783, #10787] Rotary positions go on; the draft has no table that ends."""
    target = make_tiny("llama", max_position_embeddings=positions)
    prompt = make_prompt(30)
    draft = make_eagle(target, EVEN)
    assert draft.config.body_config.max_position_embeddings == positions
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert run.new_ids == plain_ids(target, prompt, max_new_tokens=NEW)
    check_proposals(run, draft, target)


@torch.no_grad()
def test_cosines_are_made_again_for_a_long_text() -> None:
    target = make_tiny("llama")
    draft = make_eagle(target, EVEN)
    ids = make_prompt(700)
    session, _ = fresh_session(draft, target, ids[:, :9])
    states = target(ids[:, :-1], output_hidden_states=True).hidden_states
    for start, end in ((9, 200), (200, 600), (600, 700)):
        new = SimpleNamespace(hidden_states=[state[:, start - 1 : end - 1] for state in states])
        logits = session.catch_up(ids[:, :end], model_outputs=new)
        torch.testing.assert_close(logits, fresh_session(draft, target, ids[:, :end])[1])


# Processors.


@pytest.mark.parametrize("case", PROCESSORS)
def test_processors_shape_the_draft_as_they_shape_the_target(case: str) -> None:
    target = make_tiny("llama")
    prompt = make_prompt()
    settings = {"max_new_tokens": NEW, **PROCESSORS[case]}
    draft = make_eagle(target, {*EVEN, *range(1, VOCAB_SIZE, 3), 77})
    run = watch(target, draft, prompt, **settings)
    assert run.new_ids == plain_ids(target, prompt, **settings)
    check_proposals(run, draft, target, processed=True)
    if case not in ("finite and normalised", "suppressed at the start", "forced eos"):
        with pytest.raises(AssertionError, match="after"):
            check_proposals(run, draft, target)  # unprocessed proposals would be others


@pytest.mark.parametrize("case", ["repetition penalty", "suppressed", "several"])
def test_processors_of_a_taught_draft(case: str) -> None:
    target = make_tiny("qwen-padded")
    prompt = make_prompt()
    settings = {"max_new_tokens": NEW, **PROCESSORS[case]}
    if case == "several":
        wide = torch.cat([AddTable().table, torch.zeros(PADDED_VOCAB_SIZE - VOCAB_SIZE)])
        settings["logits_processor"] = [lambda ids, scores: scores + wide]
    plain = plain_ids(target, prompt, **settings)
    draft = make_eagle(target, {*plain, 7}, **TEACHABLE)
    teach(draft, target, torch.cat([prompt, torch.tensor([plain])], dim=1), passes=40)
    run = watch(target, draft, prompt, **settings)
    assert run.new_ids == plain
    assert often_taken(run)


# Sampling; the law itself is in test_sampling_law.py.


def test_same_seed_same_sample() -> None:
    target, prompt, _, draft = taught()
    kept = set(draft.kept_ids.tolist())
    texts = []
    accepted = 0
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        run = watch(target, draft, prompt, max_new_tokens=NEW, do_sample=True, temperature=0.7)
        texts.append((run.new_ids, run.proposals))
        assert run.proposed_ids <= kept
        accepted += run.accepted
        assert run.proposed_scores[0] is None
        for scores, proposal in zip(run.proposed_scores, run.proposals, strict=True):
            assert bool(proposal) is (scores is not None)
            if scores is not None:
                assert scores.shape == (1, len(proposal), VOCAB_SIZE)
                possible = scores[0].isfinite().any(dim=0).nonzero()[:, 0].tolist()
                assert set(proposal) <= set(possible) <= kept
    assert accepted > 0
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


# What comes back.


@pytest.mark.parametrize("states", [True, False], ids=["hidden states asked for", "not"])
def test_outputs_have_the_shapes_of_a_plain_run(states: bool) -> None:
    target = make_tiny("llama", num_hidden_layers=4)
    target.set_attn_implementation("eager")
    draft = make_eagle(target, EVEN, layers=(0, 1, 3))
    prompt = make_prompt()
    settings: dict[str, Any] = {
        "max_new_tokens": 11,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "output_hidden_states": states,
        "output_attentions": True,
        "repetition_penalty": 1.2,
    }
    plain = target.generate(prompt, **settings)
    run = watch(target, draft, prompt, **settings)
    ours = run.output
    assert torch.equal(ours.sequences, plain.sequences)
    assert type(ours) is type(plain)
    check_proposals(run, draft, target, processed=True)
    for name in ("scores", "logits"):
        assert len(ours[name]) == len(plain[name]) == 11
        for mine, theirs in zip(ours[name], plain[name], strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-3)
    assert ("hidden_states" in ours) is states
    for name in ("hidden_states", "attentions")[0 if states else 1 :]:
        assert len(ours[name]) == len(plain[name]) == 11
        for mine, theirs in zip(ours[name], plain[name], strict=True):
            assert [layer.shape for layer in mine] == [layer.shape for layer in theirs]
            for left, right in zip(mine, theirs, strict=True):
                torch.testing.assert_close(left, right, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["llama", "gemma3", "mistral-sliding"])
def test_attention_implementations(kind: str, attention: str) -> None:
    target = make_tiny(kind)
    target.set_attn_implementation(attention)
    prompt = make_prompt(SLIDING_WINDOW + 4)
    draft = make_eagle(target, EVEN)
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert run.new_ids == plain_ids(target, prompt, max_new_tokens=NEW)
    check_proposals(run, draft, target)


# Number types, wrapped targets, and where the weights are.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_draft_of_a_full_precision_target(dtype: torch.dtype) -> None:
    target, prompt, plain, draft = taught()
    draft.to(dtype)
    cold: dict[str, Any] = {"do_sample": True, "temperature": 0.1}
    for sampling in ({}, cold):
        run = watch(target, draft, prompt, max_new_tokens=NEW, **sampling)
        assert sampling or run.new_ids == plain
        assert run.accepted > NEW // 3
    session = run.generators[0]._session
    assert session._cache.keys.dtype == session._rope[0].dtype == dtype


def test_half_precision_target() -> None:
    """In bfloat16 block and single-step kernels may differ: a flip needs a near tie
    [transformers#39421]."""
    target = make_tiny("llama").to(torch.bfloat16)
    prompt = make_prompt()
    plain = target.generate(
        prompt, max_new_tokens=NEW, return_dict_in_generate=True, output_logits=True
    )
    said = plain.sequences[0, LENGTH:].tolist()
    draft: Any = make_eagle(target, {*said, 1, 2}, **TEACHABLE)
    assert draft.dtype == torch.bfloat16
    draft.float()
    teach(draft, target, plain.sequences, passes=40)
    for dtype in (torch.float32, torch.bfloat16):
        run = watch(target, draft.to(dtype), prompt, max_new_tokens=NEW)
        assert run.accepted > NEW // 3
        for step, (ours, theirs) in enumerate(zip(run.new_ids, said, strict=True)):
            if ours != theirs:
                best, second = plain.logits[step][0].float().topk(2).values.tolist()
                assert best - second < 1e-2 * abs(best)
                break


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_peft_wrapped_target() -> None:
    """The states that are read are those of the adapted model."""
    peft = pytest.importorskip("peft")
    base = make_tiny("llama")
    prompt = make_prompt()
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    target = peft.get_peft_model(copy.deepcopy(base), config).eval()
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            if "lora_" in name:
                parameter.mul_(8.0)
    plain = plain_ids(target, prompt, max_new_tokens=NEW)
    assert plain != plain_ids(base, prompt, max_new_tokens=NEW)
    for made_from in (base, target):
        draft = make_eagle(made_from, EVEN)
        check_pair(target, draft)
        check_call(target, draft, input_ids=prompt, max_new_tokens=NEW)
        run = watch(target, draft, prompt, base=target.get_base_model(), max_new_tokens=NEW)
        assert run.new_ids == plain
        check_proposals(run, draft, copy.deepcopy(target).merge_and_unload())
        with pytest.raises(AssertionError, match="after"):
            check_proposals(run, draft, base)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_peft_wrapped_draft() -> None:
    peft = pytest.importorskip("peft")
    target = make_tiny("llama")
    prompt = make_prompt()
    draft = make_eagle(target, EVEN)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    wrapped = peft.get_peft_model(draft, config).eval()
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.mul_(8.0)
    run = watch(target, wrapped.get_base_model(), prompt, max_new_tokens=NEW)
    assert run.new_ids == plain_ids(target, prompt, max_new_tokens=NEW)
    text = target.generate(prompt, assistant_model=wrapped, max_new_tokens=NEW)
    assert torch.equal(text, run.sequences)
    merged = copy.deepcopy(wrapped).merge_and_unload()
    check_proposals(run, merged, target)


class Thin(nn.Module):
    """What serving code likes to put around a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.inner: Any = model

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.generate(*args, **kwargs)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.parametrize(
    "wrap", [Thin, nn.DataParallel, torch.compile], ids=["thin", "data parallel", "compiled"]
)
def test_wrapped_target(wrap: Any) -> None:  # transformers#23686
    base, prompt, plain, draft = taught()
    target = wrap(base)
    check_pair(target, draft)
    with pytest.raises(ValueError, match="num_beams=1"):
        check_call(target, draft, input_ids=prompt, num_beams=2)
    if wrap is Thin:
        run = watch(target, draft, prompt, base=base, max_new_tokens=NEW)
        assert run.new_ids == plain
        assert often_taken(run)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_target_with_layers_elsewhere(place: str, tmp_path: Any) -> None:
    """accelerate brings weights in for the moment of their use."""
    accelerate = pytest.importorskip("accelerate")
    whole = make_tiny("llama", num_hidden_layers=4)
    prompt = make_prompt()
    draft = make_eagle(whole, EVEN, layers=(0, 2, 4))
    places = {f"model.layers.{layer}": "cpu" if layer < 2 else place for layer in range(4)}
    others = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head")
    target = accelerate.dispatch_model(
        copy.deepcopy(whole),
        {**places, **dict.fromkeys(others, "cpu")},
        main_device="cpu",
        offload_dir=tmp_path,
        force_hooks=True,
    )
    assert target.model.layers[3].self_attn.q_proj.weight.is_meta is (place == "disk")
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert run.new_ids == plain_ids(whole, prompt, max_new_tokens=NEW)
    check_proposals(run, draft, whole)
    again = make_eagle(target, EVEN)
    assert again.device.type == "cpu"
    check_proposals(watch(target, again, prompt, max_new_tokens=9), again, whole)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_embeddings_that_are_elsewhere(kind: str) -> None:
    """Their weight is on the meta device but for the moment in which their module runs."""
    accelerate = pytest.importorskip("accelerate")
    target = make_tiny(kind)
    draft = make_eagle(target, EVEN)
    ids = make_prompt()
    away = copy.deepcopy(target.get_input_embeddings())
    accelerate.cpu_offload(away, execution_device=torch.device("cpu"))
    assert away.weight.is_meta
    _, logits = fresh_session(draft, target, ids, away)
    torch.testing.assert_close(logits, fresh_session(draft, target, ids)[1])


def test_after_inference_mode_a_draft_can_be_trained() -> None:
    target = make_tiny("llama")
    prompt = make_prompt()
    text = target.generate(prompt, max_new_tokens=8)
    draft = make_eagle(target, EVEN)
    with torch.inference_mode():
        target.generate(prompt, assistant_model=draft, max_new_tokens=8)
    assert not any(weight.is_inference() for weight in draft.parameters())
    teach(draft, target, text, passes=1)


# Nothing is carried from call to call.


@pytest.mark.parametrize("schedule", ["constant", "heuristic", "heuristic_transient"])
def test_calls_in_a_row_are_alike(schedule: str) -> None:
    target, prompt, plain, draft = taught()
    draft.generation_config.num_assistant_tokens_schedule = schedule
    before = draft.generation_config.to_dict(), draft.config.to_dict()
    ours = target.generation_config.to_dict(), target.config.to_dict()
    runs = [watch(target, draft, prompt, max_new_tokens=NEW) for _ in range(2)]
    assert runs[0].new_ids == plain
    assert runs[0].widths == runs[1].widths
    assert runs[0].proposals == runs[1].proposals
    growth = [0, 4, 6] if schedule != "constant" else [0, 4, 4]
    assert [len(proposal) for proposal in runs[0].proposals[:3]] == growth
    assert (draft.generation_config.to_dict(), draft.config.to_dict()) == before
    assert (target.generation_config.to_dict(), target.config.to_dict()) == ours
    # Another text in between leaves no trace either.
    watch(target, draft, make_prompt(5, seed=3), max_new_tokens=7)
    assert watch(target, draft, prompt, max_new_tokens=NEW).proposals == runs[0].proposals


def test_calls_in_threads() -> None:
    target = make_tiny("mistral-sliding")
    draft = make_eagle(target, EVEN)
    prompts = [make_prompt(6 + 5 * seed, seed=seed) for seed in range(4)]
    expected = [plain_ids(target, prompt, max_new_tokens=NEW) for prompt in prompts]
    weights = {name: value.clone() for name, value in draft.state_dict().items()}
    found: dict[int, list[int]] = {}

    def run(index: int) -> None:
        prompt = prompts[index]
        ids = target.generate(prompt, assistant_model=draft, max_new_tokens=NEW)
        found[index] = ids[0, prompt.shape[1] :].tolist()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(4)] == expected
    assert all(torch.equal(weights[name], value) for name, value in draft.state_dict().items())
    check_proposals(watch(target, draft, prompts[0], max_new_tokens=NEW), draft, target)


@pytest.mark.parametrize(("threshold", "most"), [(0.0, 4), (1.1, 1)], ids=str)
def test_confidence_threshold(threshold: float, most: int) -> None:
    target, prompt, plain, draft = taught()
    draft.generation_config.assistant_confidence_threshold = threshold
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert run.new_ids == plain
    assert {len(proposal) for proposal in run.proposals[1:-1]} == {most}
    assert often_taken(run)


def test_chat_goes_on_with_the_whole_conversation() -> None:
    target, prompt, plain, draft = taught()
    first = target.generate(
        prompt, max_new_tokens=8, assistant_model=draft, return_dict_in_generate=True
    )
    assert first.sequences[0, LENGTH:].tolist() == plain[:8]
    second = torch.cat([first.sequences, make_prompt(5, seed=9)], dim=1)
    name = "cache" if STATIC_CACHES else "past_key_values"
    cache = {name: copy.deepcopy(first).get(name)}
    with pytest.raises(
        ValueError, match=r"empty cache, got one with \d+ tokens.*whole conversation"
    ):
        target.generate(second, max_new_tokens=NEW, assistant_model=draft, **cache)
    run = watch(target, draft, second, max_new_tokens=NEW)
    assert run.new_ids == plain_ids(target, second, max_new_tokens=NEW)
    check_proposals(run, draft, target)


# Targets of other kinds.


@pytest.mark.parametrize("kind", ["lfm2", "inkling_text"])
def test_states_that_can_go_back(kind: str) -> None:
    """Short convolutions keep a state too, but Transformers takes it back: nothing is refused."""
    sizes = dict(SIZES)
    if kind == "lfm2":
        sizes["layer_types"] = ["conv", "full_attention"]
    else:
        sizes |= {"n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    make_config: Any = CONFIG_MAPPING[kind]
    torch.manual_seed(0)
    target = AutoModelForCausalLM.from_config(make_config(**sizes), dtype=torch.float32).eval()
    assert set(target.config.layer_types) & {"conv", "hybrid", "hybrid_sliding"}
    prompt = make_prompt(20)
    text = target.generate(prompt, max_new_tokens=NEW)
    draft = make_eagle(target, {*text[0, 20:].tolist(), *range(50)}, **TEACHABLE)
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert torch.equal(run.sequences, text)
    check_proposals(run, draft, target)
    teach(draft, target, text, passes=40)
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert torch.equal(run.sequences, text)
    assert often_taken(run)


def two_part_target(kind: str) -> Any:
    """A tiny vision-language model, to be used with text only."""
    from transformers import AutoModelForImageTextToText

    vision: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    text: dict[str, Any] = {**SIZES, "num_hidden_layers": 4}
    more: dict[str, Any] = {}
    if kind == "gemma3":
        types = ["sliding_attention", "full_attention"] * 2
        text |= {"sliding_window": 8, "layer_types": types}
    elif kind == "llava":
        text["model_type"] = "llama"
        vision |= {"model_type": "clip_vision_model", "image_size": 8, "patch_size": 4}
        more = {"image_token_index": 299}
    else:
        text["rope_parameters"] = {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [2, 1, 1],
        }
        vision = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2}
        more = {"image_token_id": 298, "video_token_id": 297, "vision_start_token_id": 296}
    make_config: Any = CONFIG_MAPPING[kind]
    config = make_config(text_config=text, vision_config=vision, **more)
    torch.manual_seed(0)
    target: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    if kind == "gemma3":
        let_layers_outweigh_the_scaled_embedding(target)
    target.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
    return target


@pytest.mark.parametrize("kind", ["gemma3", "llava", "qwen2_vl"])
def test_vision_language_target_used_with_text(kind: str) -> None:
    target = two_part_target(kind)
    prompt = make_prompt(20)
    text = target.generate(prompt, max_new_tokens=NEW)
    assert len(set(text[0, 20:].tolist())) > 4
    kept = {*text[0, 20:].tolist(), *range(0, VOCAB_SIZE, 7)}
    draft = make_eagle(target, kept, layers=(0, 2, 4), **TEACHABLE)
    assert draft.config.vocab_size == VOCAB_SIZE
    assert draft.config.target_num_hidden_layers == 4
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert torch.equal(run.sequences, text)
    check_proposals(run, draft, target)
    teach(draft, target, text, passes=40)
    run = watch(target, draft, prompt, max_new_tokens=NEW)
    assert torch.equal(run.sequences, text)
    assert often_taken(run)


def test_an_image_beside_the_text_is_refused() -> None:
    """Transformers encodes it before a draft is asked: its pixels are not what arrives."""
    target = two_part_target("llava")
    prompt = make_prompt(20)
    prompt[:, 3:7] = target.config.image_token_id
    settings = {"pixel_values": torch.randn(1, 3, 8, 8), "max_new_tokens": 4}
    assert len(plain_ids(target, prompt, **settings)) == 4
    with pytest.raises(ValueError, match=r"reads text only, got .*leave assistant_model out"):
        target.generate(prompt, assistant_model=make_eagle(target, EVEN), **settings)


class Silent(nn.Module):
    """Hides the states of the model inside."""

    def __init__(self, model: Any, layers: int) -> None:
        super().__init__()
        self.forward_as_it_was = model.forward
        self.layers = layers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.forward_as_it_was(*args, **kwargs)
        output.hidden_states = output.hidden_states[: self.layers]
        return output


@pytest.mark.parametrize("layers", [0, 1], ids=["none", "too few"])
def test_a_target_that_keeps_its_states_to_itself_is_refused(layers: int) -> None:
    target = make_tiny("llama")
    draft = make_eagle(target, EVEN)
    target.forward = Silent(target, layers).forward
    named = rf"reads the target's hidden_states\[0, 1, 2\].* of its {layers} states"
    with pytest.raises(ValueError, match=named):
        target.generate(make_prompt(), assistant_model=draft, max_new_tokens=4)


def test_a_target_of_several_streams_is_refused() -> None:
    """Gemma3n's states are no [batch, length, width]."""
    config: Any = Gemma3nTextConfig(
        **{**SIZES, "intermediate_size": [64, 64]},
        layer_types=["sliding_attention", "full_attention"],
        num_kv_shared_layers=0,
        vocab_size_per_layer_input=VOCAB_SIZE,
        hidden_size_per_layer_input=4,
        laurel_rank=4,
        altup_num_inputs=2,
        sliding_window=8,
        activation_sparsity_pattern=[0.0, 0.0],
    )
    target = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    draft = make_eagle(target, EVEN)
    with pytest.raises(ValueError, match="from_draft_model"):
        target.generate(make_prompt(), assistant_model=draft, max_new_tokens=4, pad_token_id=0)


@pytest.mark.xfail(
    reason="Transformers moves drafts of a target with offloaded embeddings to the meta device",
    raises=NotImplementedError,
)
@pytest.mark.parametrize("body", ["standalone", "eagle3"])
def test_target_that_is_offloaded_altogether(body: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    whole = make_tiny("llama")
    draft = make_draft(whole) if body == "standalone" else make_eagle(whole)
    target = copy.deepcopy(whole)
    accelerate.cpu_offload(target, execution_device=torch.device("cpu"))
    prompt = make_prompt()
    plain = plain_ids(whole, prompt, max_new_tokens=4)
    assert plain_ids(target, prompt, max_new_tokens=4) == plain
    assert plain_ids(target, prompt, max_new_tokens=4, assistant_model=draft) == plain
