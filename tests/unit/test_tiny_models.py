"""The tests' own models: varied, seeded, and what their names promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tiny_models import (
    KINDS,
    MARKUP_TOKENS,
    PADDED_VOCAB_SIZE,
    SLIDING_WINDOW,
    VOCAB_SIZE,
    make_byte_tokenizer,
    make_prompt,
    make_tiny,
    perturbed,
)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [*KINDS, "gemma3"])
def test_greedy_text_is_varied(kind: str, seed: int) -> None:
    prompt = make_prompt(seed=seed)
    new = make_tiny(kind).generate(prompt, max_new_tokens=40)[0, prompt.shape[1] :]
    assert len(new) == 40
    assert new.unique().numel() >= 15
    assert int(new.max()) < VOCAB_SIZE


def test_weights_are_seeded_and_the_random_state_is_left_alone() -> None:
    state = torch.get_rng_state()
    one, two, other = (make_tiny("llama", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.lm_head.weight, two.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_kinds_are_what_they_are_called(tiny_target: Any) -> None:
    config = tiny_target.config
    assert not tiny_target.training
    assert tiny_target.dtype == torch.float32
    assert config.eos_token_id is None
    assert config.vocab_size == (PADDED_VOCAB_SIZE if config.model_type == "qwen2" else VOCAB_SIZE)
    assert config.tie_word_embeddings == (config.model_type in {"qwen2", "gemma2"})
    if config.model_type == "gemma2":
        assert config.final_logit_softcapping == 30.0
    if config.model_type == "mistral":
        assert config.sliding_window == SLIDING_WINDOW


def test_the_sliding_window_is_felt() -> None:
    """Positions further back than two layers can hand on change nothing."""
    model = make_tiny("mistral-sliding")
    prompt = make_prompt(3 * SLIDING_WINDOW)
    changed = prompt.clone()
    changed[0, 0] += 1
    with torch.no_grad():
        one, two = model(prompt).logits, model(changed).logits
    assert torch.equal(one[0, -1], two[0, -1])
    assert not torch.equal(one[0, SLIDING_WINDOW], two[0, SLIDING_WINDOW])


def test_eos_ends_a_text_where_it_is_asked_for() -> None:
    prompt = make_prompt()
    plain = make_tiny("llama").generate(prompt, max_new_tokens=40)
    stop = int(plain[0, prompt.shape[1] + 5])
    ended = make_tiny("llama", eos_token_id=stop).generate(prompt, max_new_tokens=40)
    assert ended[0].tolist() == plain[0, : ended.shape[1]].tolist()
    assert int(ended[0, -1]) == stop
    assert ended.shape[1] <= prompt.shape[1] + 6


def test_a_perturbed_copy_often_agrees() -> None:
    model = make_tiny("llama")
    moved = perturbed(model)
    text = model.generate(make_prompt(), max_new_tokens=60)
    with torch.no_grad():
        agree = (model(text).logits.argmax(-1) == moved(text).logits.argmax(-1)).float().mean()
    assert 0.3 < agree < 1.0


def test_byte_tokenizer_reads_everything_back() -> None:
    tokenizer = make_byte_tokenizer()
    assert len(tokenizer) == VOCAB_SIZE
    text = "naïve <tool_call>{}</tool_call> 漢字 🎉\n\n  x"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_tokens_to_ids("<tool_call>") == VOCAB_SIZE - len(MARKUP_TOKENS)
    assert tokenizer.convert_tokens_to_ids("<tool_call>") in ids


def test_chat_template_adds_a_newline_that_no_model_says() -> None:
    tokenizer = make_byte_tokenizer()
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "rain"}}}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "Done"},
    ]
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, tools=[{"type": "function", "function": {"name": "search"}}]
    )
    assert text == (
        '<|im_start|>system\nBe brief.\nTools:\n{"type": "function", "function": {"name": '
        '"search"}}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n'
        '<tool_call>\n{"name": "search", "arguments": {"query": "rain"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nDone<|im_end|>\n"
    )
