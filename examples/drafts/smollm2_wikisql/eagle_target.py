"""What an EAGLE-3 body takes from its target: sizes, rotary settings, head rows, which states.

The target's config is read here and nowhere else. The layer is Llama's whatever the target is made
of, because that is what serving engines read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaConfig

from .compatibility import check_can_roll_back
from .eagle_body import FEATURES, EagleBody
from .kept_ids import whole_number
from .layer_sizes import LayerSizes
from .standalone_body import public_name, rows_of_head

# The kinds of rotary settings that depend on positions alone, and what they say besides theta.
_ROTARY: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": (
        "factor",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "original_max_position_embeddings",
        "truncate",
    ),
}
# What may differ from the target's: nothing that states, embeddings or positions depend on.
_FREE: dict[str, type] = {
    "intermediate_size": int,
    "num_attention_heads": int,
    "num_key_value_heads": int,
    "head_dim": int,
    "max_position_embeddings": int,
    "attention_bias": bool,
    "mlp_bias": bool,
    "initializer_range": float,
}
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")


def eagle_config(target: Any, **settings: Any) -> LlamaConfig:
    """Return the configuration of the one layer: the target's sizes, in a Llama's terms.

    Args:
        target: the target model.
        settings: fields that shall be other than the target's.

    Raises:
        ValueError: if the target is no decoder-only model, keeps a state that cannot roll back,
            or its config lacks a size; or if a setting is no field or would make the layer unfit
            for the target's states.
    """
    if target.config.is_encoder_decoder:
        raise ValueError(
            "an EAGLE-3 draft needs a decoder-only target, but "
            f"{type(target).__name__} is an encoder-decoder: take a causal language model"
        )
    check_can_roll_back(target, "target")
    text = target.config.get_text_config(decoder=True)
    sizes = LayerSizes.from_config(target.config, dense=True)
    fields: dict[str, Any] = {
        "vocab_size": sizes.vocab_size,
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_key_value_heads,
        "head_dim": sizes.head_dim,
        "max_position_embeddings": getattr(text, "max_position_embeddings", None) or 2048,
        "rms_norm_eps": next((v for n in _EPSILONS if (v := getattr(text, n, None))), 1e-6),
        "rope_parameters": rotary_settings(text),
        "attention_bias": bool(getattr(text, "attention_bias", False)),
        "mlp_bias": bool(getattr(text, "mlp_bias", False)),
        "initializer_range": getattr(text, "initializer_range", 0.02),
        "bos_token_id": None,
        "eos_token_id": None,
    }
    for name in settings:
        value: Any = settings[name]
        if name not in _FREE:
            raise ValueError(
                f"{name} is no setting of an EAGLE-3 layer that can differ from the target's: "
                f"use one of {', '.join(_FREE)}"
            )
        kind = _FREE[name]
        if type(value) is not kind or not (kind is bool or settings[name] > 0):
            wanted = {bool: "True or False", int: "a whole number from 1 on", float: "above 0"}
            raise ValueError(f"{name} must be {wanted[kind]}, got {value!r}")
    fields |= settings
    heads, shared = fields["num_attention_heads"], fields["num_key_value_heads"]
    if heads % shared:
        raise ValueError(
            f"num_attention_heads must be a multiple of num_key_value_heads, got {heads} and "
            f"{shared}: give both"
        )
    return LlamaConfig(**fields)


def rotary_settings(text_config: Any) -> dict[str, Any]:
    """Return a target's rotary settings as a Llama layer reads them.

    Of a target with several kinds of layers those of full attention count. Kinds that change with
    the length of a text, or turn a part of each head only, become plain ones of the same theta.
    """
    found = getattr(text_config, "rope_parameters", None) or {}
    found = found.get("full_attention", found)
    theta = found.get("rope_theta") or getattr(text_config, "rope_theta", None) or 10000.0
    kind = found.get("rope_type", "default")
    if kind not in _ROTARY or found.get("partial_rotary_factor", 1.0) != 1.0:
        kind = "default"
    more = {name: found[name] for name in _ROTARY[kind] if found.get(name) is not None}
    return {"rope_theta": float(theta), "rope_type": kind, **more}


def target_facts(target: Any, layers: Sequence[int] | None) -> dict[str, Any]:
    """Return what a draft remembers of its target, as fields of its config.

    Raises:
        ValueError: if `layers` are not three ascending indices of the target's states.
    """
    text = target.config.get_text_config(decoder=True)
    depth = int(text.num_hidden_layers)
    return {
        "target_name": public_name(target.config.name_or_path) or None,
        "target_hidden_size": int(text.hidden_size),
        "target_num_hidden_layers": depth,
        "target_layer_ids": _layer_ids(layers, depth),
    }


def _layer_ids(layers: Sequence[int] | None, depth: int) -> list[int]:
    if depth < FEATURES - 1:
        raise ValueError(
            f"an EAGLE-3 draft reads {FEATURES} hidden states, a target of {depth} layers has "
            f"{depth + 1}: use a draft with a standalone body (from_draft_model)"
        )
    if layers is None:
        if depth > 6:
            return [2, depth // 2, depth - 3]
        return [1, depth // 2, depth - 1] if depth > 3 else [0, 1, 2]
    if not isinstance(layers, Sequence) or isinstance(layers, str):
        raise ValueError(f"layers must be {FEATURES} whole numbers, got {layers!r}")
    ids = [whole_number(layer, "a layer") for layer in layers]
    if len(ids) != FEATURES or ids != sorted(set(ids)) or not 0 <= ids[0] <= ids[-1] <= depth:
        raise ValueError(
            f"layers must be {FEATURES} ascending indices of the target's hidden states, 0 (what "
            f"its first layer reads) to {depth} (what its last one gives), got {list(layers)}"
        )
    return ids


def new_eagle_body(target: Any, config: LlamaConfig, kept_ids: torch.Tensor) -> EagleBody:
    """Make a body with random weights and the target's head rows, in its dtype, where its head is.

    Args:
        target: the target model.
        config: of the layer.
        kept_ids: int64 [k], ascending.

    Raises:
        ValueError: if the target has embeddings of another width than its states, or its head
            cannot be cut.
    """
    wide = getattr(target.get_input_embeddings(), "embedding_dim", config.hidden_size)
    if wide != config.hidden_size:
        raise ValueError(
            f"an EAGLE-3 layer reads embeddings and states of one width, but the target's are "
            f"{wide} and {config.hidden_size} wide: use a draft with a standalone body "
            "(from_draft_model)"
        )
    rows = rows_of_head(target, kept_ids)
    weight = rows["weight"]
    config.dtype = weight.dtype
    with torch.device("cpu"):
        body: Any = EagleBody(config, kept_ids.numel(), head_bias="bias" in rows)
    body.to(weight.device, weight.dtype)
    with torch.no_grad():
        for name, numbers in rows.items():
            getattr(body.lm_head, name).copy_(numbers)
    found: EagleBody = body.eval()
    return found
