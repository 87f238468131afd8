"""The EAGLE-3 files of serving engines: names, tables, config, and what no engine reads.

Two engines are meant, vLLM and SGLang. Neither complains of what it does not read, it only accepts
fewer tokens; so whatever a draft has that one of them would pass over is refused here.
"""

from __future__ import annotations

from typing import Any

import torch

OWN_KEY = "vtrim_hf"
"""Of the config: what engines do not ask for. It also tells an export from other folders."""

EAGLE_WEIGHTS = (
    "fc.weight",
    "lm_head.weight",
    "midlayer.hidden_norm.weight",
    "midlayer.input_layernorm.weight",
    "midlayer.mlp.down_proj.weight",
    "midlayer.mlp.gate_proj.weight",
    "midlayer.mlp.up_proj.weight",
    "midlayer.post_attention_layernorm.weight",
    "midlayer.self_attn.k_proj.weight",
    "midlayer.self_attn.o_proj.weight",
    "midlayer.self_attn.q_proj.weight",
    "midlayer.self_attn.v_proj.weight",
    "norm.weight",
)


def check_eagle(draft: Any) -> None:
    """Refuse a draft of which an engine would pass something over in silence.

    Raises:
        ValueError: naming what it is, its value and the way out.
    """
    config = draft.config
    if config.body != "eagle3":
        raise ValueError(
            f"the eagle format holds EAGLE-3 bodies, this draft has a {config.body} one: it is a "
            "language model with a cut head, which no serving engine reads; make a draft with "
            "TrimmedDraftForCausalLM.for_target, or use this one in Transformers"
        )
    depth = config.target_num_hidden_layers
    if depth in config.target_layer_ids:
        # Transformers' last state has gone through the final norm, the engines' has not.
        raise ValueError(
            f"engines give a draft the states between the target's {depth} layers, but this one "
            f"reads hidden_states{config.target_layer_ids}, of which {depth} is what the final "
            f"norm gives: make and train one with for_target(..., layers=...) below {depth}"
        )
    layer = config.body_config
    for name, value, others in (
        ("head_bias", config.head_bias, "heads"),
        ("attention_bias", layer.attention_bias, "queries, keys and values"),
        ("mlp_bias", layer.mlp_bias, "MLPs"),
    ):
        if value:
            remedy = (
                "a draft for this target works in Transformers only"
                if name == "head_bias"
                else f"make and train one with for_target(..., {name}=False)"
            )
            raise ValueError(
                f"EAGLE-3 drafts of serving engines have {others} without biases (SGLang drops "
                f"them), this one has {name}={value}: {remedy}"
            )
    if layer.hidden_act not in ("silu", "swish"):
        raise ValueError(
            f"serving engines run an EAGLE-3 layer with silu, this one has {layer.hidden_act}: "
            "make and train one with for_target"
        )
    if draft.kept_ids is not None and draft.kept_ids.is_meta:
        raise ValueError(
            "an export needs the kept ids, which are not loaded: load the draft without device_map"
        )
    draft.check_kept_ids()


def eagle_tensors(draft: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return what goes into the weights file, by name, on the CPU.

    Raises:
        ValueError: if weights are missing, quantised, adapted, not loaded, or not finite.
    """
    weights = {name: weight.detach() for name, weight in draft.body.named_parameters()}
    odd = sorted(weights.keys() ^ set(EAGLE_WEIGHTS))
    odd += [name for name, weight in weights.items() if not weight.is_floating_point()]
    if odd:
        raise ValueError(
            f"an export holds the plain weights of an EAGLE-3 layer, but {odd[0]} is none of them "
            "or missing: merge adapters (merge_and_unload) and load without quantization_config"
        )
    tensors = {}
    for name, weight in weights.items():
        if weight.is_meta:
            raise ValueError(
                f"an export needs all weights at hand, but {name} is not loaded: load the draft "
                "without device_map"
            )
        # Copied: the weights may share one storage, which safetensors does not write.
        tensors[name] = weight.to("cpu", dtype, copy=True).contiguous()
        if not bool(tensors[name].isfinite().all()):
            raise ValueError(
                f"weights must be finite numbers, but some of {name} are not in {said(dtype)}: "
                "export in float32 or bfloat16; if that is refused, too, the training diverged"
            )
    return tensors | eagle_tables(draft.kept_ids, draft.config.vocab_size)


def eagle_tables(kept_ids: torch.Tensor | None, vocab_size: int) -> dict[str, torch.Tensor]:
    """Return the tables between a head's rows and the target's ids; none if all ids are kept.

    Args:
        kept_ids: int64 [k], ascending, or None.
        vocab_size: V, the target's padded width.

    Returns:
        `d2t`, int64 [k], what has to be added to a row to get its id, and `t2d`, bool [V].
    """
    if kept_ids is None:
        return {}
    ids = kept_ids.cpu()
    has_row = torch.zeros(vocab_size, dtype=torch.bool)
    has_row[ids] = True
    return {"d2t": ids - torch.arange(ids.numel()), "t2d": has_row}


def eagle_config_json(draft: Any, dtype: torch.dtype, target_name: str | None) -> dict[str, Any]:
    """Return what goes into `config.json`."""
    config, layer = draft.config, draft.config.body_config
    rope = dict(layer.rope_parameters)
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    ids = list(config.target_layer_ids)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": layer.hidden_size,
        "target_hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.num_attention_heads,
        "num_key_value_heads": layer.num_key_value_heads,
        "head_dim": draft.body.midlayer.self_attn.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": layer.rms_norm_eps,
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": layer.max_position_embeddings,
        # Transformers 5 and vLLM read the first; SGLang and older releases the other two.
        "rope_parameters": rope,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if rope.get("rope_type", "default") == "default" else scaling,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "tie_word_embeddings": False,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
        # The same key means two things. vLLM (0.32: `_get_eagle3_aux_layers_from_config`, which
        # looks here first) takes i as what i layers give, which is Transformers' hidden_states[i].
        # SGLang (`set_eagle3_layers_to_capture`) looks below only and adds 1: there i is what the
        # layer i gives, counted from 0, so that -1 stands for the embeddings.
        "eagle_aux_hidden_state_layer_ids": ids,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [index - 1 for index in ids],
            "use_aux_hidden_state": True,
        },
        # The residual is the state itself, not what its norm gives (vLLM's other variant).
        "norm_before_residual": False,
        "dtype": said(dtype),
        "torch_dtype": said(dtype),
        OWN_KEY: {
            "export": "eagle",
            "target": target_name or config.target_name,
            "target_num_hidden_layers": config.target_num_hidden_layers,
            "target_hidden_states": ids,
            "tokenizer_hash": config.tokenizer_hash,
            "vocabulary_fingerprint": config.vocabulary_fingerprint,
        },
    }


def said(dtype: Any) -> str:
    """Return how a config says a dtype."""
    return str(dtype).removeprefix("torch.")
