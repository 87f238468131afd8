"""Tiny, seeded, varied models and a byte-level tokenizer for the tests, made without any file.

`make_tiny` gives a target of one of the `KINDS`; `make_byte_tokenizer` gives the tokenizer whose
ids they speak. The weights are drawn wide on purpose: at the usual initializer range a random
model repeats one token for ever, and tests that compare greedy texts would compare nothing.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

VOCAB_SIZE = 300
"""Ids that the byte tokenizer speaks, and the width of every kind that does not pad."""

PADDED_VOCAB_SIZE = 384
"""Width of `qwen-padded`: its ids from 300 on have head rows, but no token."""

SLIDING_WINDOW = 16
"""Positions that `mistral-sliding` and every other layer of the Gemma kinds look back."""

KINDS = ("llama", "qwen-padded", "gemma-softcap", "mistral-sliding")
"""The kinds that the `tiny_target` fixture runs through; `gemma3` may be asked for by name."""

PAD_ID, IM_START_ID, IM_END_ID = 0, 1, 2
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n' }}{%- endif %}
{{- 'Tools:' }}
{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- elif message.role != 'system' %}
{{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set call = call.function if call.function is defined else call %}
{{- '<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
{{- (call.arguments if call.arguments is string else call.arguments | tojson) + '}' }}
{{- '\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
"""ChatML with tools; like SmolLM2's it adds a newline after <|im_end|> that no model ever says."""

_CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the dog sleeps",
    "SELECT name FROM singers WHERE country = 'France' ORDER BY age",
    'def add(a, b):\n    """Return the sum."""\n    return a + b\n',
    "What is the name of the city? The city is in the north of the country.",
    'system user assistant tool {"name": "search", "arguments": {"query": "rain"}}',
)


def make_byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of exactly `VOCAB_SIZE` ids with a ChatML template.

    Ids 0, 1, 2 are <|endoftext|>, <|im_start|>, <|im_end|> (the eos token), as in SmolLM2; then
    come the 256 byte pieces and a few merges; last the markup tokens: added, but not special.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(MARKUP_TOKENS),
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False, special=False) for token in MARKUP_TOKENS]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _config(kind: str, overrides: dict[str, Any]) -> Any:
    common: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": 1024,
        "initializer_range": 0.5,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if kind == "llama":
        return LlamaConfig(**{**common, "tie_word_embeddings": False, **overrides})
    if kind == "qwen-padded":
        padded = {"vocab_size": PADDED_VOCAB_SIZE, "tie_word_embeddings": True}
        return Qwen2Config(**{**common, **padded, **overrides})
    if kind == "mistral-sliding":
        sliding = {"sliding_window": SLIDING_WINDOW, "tie_word_embeddings": False}
        return MistralConfig(**{**common, **sliding, **overrides})
    gemma = {
        "sliding_window": SLIDING_WINDOW,
        "query_pre_attn_scalar": 12,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    }
    if kind == "gemma-softcap":
        return Gemma2Config(**{**common, **gemma, "attn_logit_softcapping": 50.0, **overrides})
    if kind == "gemma3":
        types = {"layer_types": ["sliding_attention", "full_attention"]}
        return Gemma3TextConfig(**{**common, **gemma, **types, **overrides})
    raise ValueError(f"kind must be one of {(*KINDS, 'gemma3')}, got {kind!r}")


def let_layers_outweigh_the_scaled_embedding(model: PreTrainedModel) -> None:
    """Give a Gemma wide norms, as `make_tiny` does."""
    # Gemma's embedding is scaled and tied: with unit norms the head would echo the last token,
    # and Gemma3's normed queries and keys would look at all positions alike.
    for name, parameter in model.named_parameters():
        if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
            torch.nn.init.constant_(parameter, 20.0)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.constant_(parameter, 1.5)


def make_tiny(
    kind: str, *, seed: int = 0, eos_token_id: int | list[int] | None = None, **overrides: Any
) -> Any:
    """Return a new tiny causal LM: float32, eval mode, the same weights for the same arguments.

    Args:
        kind: one of `KINDS`, or `gemma3`.
        seed: of the weights; torch's global random state is left as it was.
        eos_token_id: ids that end a text; without it generation runs to the length asked for.
        **overrides: fields of the config, such as `vocab_size` or `num_hidden_layers`.
    """
    config = _config(kind, {"eos_token_id": eos_token_id, **overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if kind.startswith("gemma"):
        let_layers_outweigh_the_scaled_embedding(model)
    with torch.no_grad():  # rows beyond the tokenizer are next to nothing in real checkpoints
        model.get_output_embeddings().weight[VOCAB_SIZE:] *= 0.01
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=eos_token_id, pad_token_id=PAD_ID
    )
    return model.eval()


def make_prompt(length: int = 12, *, seed: int = 0, batch: int = 1) -> torch.Tensor:
    """Return random ordinary ids, int64 [batch, length]: no special or added token among them."""
    generator = torch.Generator().manual_seed(seed)
    high = VOCAB_SIZE - len(MARKUP_TOKENS)
    return torch.randint(len(SPECIAL_TOKENS), high, (batch, length), generator=generator)


def perturbed(model: Any, scale: float = 0.05, *, seed: int = 0) -> Any:
    """Return a copy whose weights are moved by `scale` of their own size.

    As a draft it often agrees with the model, but not always.
    """
    moved = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in moved.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(noise * parameter.std(unbiased=False) * scale)
    return moved
