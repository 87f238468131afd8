"""The standalone body: any decoder-only causal language model with its head cut to the kept ids.

The body keeps its own class, so that whatever the model does around its head (scaled embeddings,
capped or scaled logits) is done by its own code; only the head's rows are fewer. This module knows
nothing about the target; the session reads real token ids and guesses from the draft alone.
"""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any, NoReturn

import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedConfig, PreTrainedModel

from .kept_ids import whole_number

# Named `past_key_values` in Transformers 5.23, `cache` from 5.24 on.
_CACHE_NAMES = ("cache", "past_key_values")


def build_body(config: Any) -> PreTrainedModel:
    """Make a body of the class that `config.body_config` names, with a head of k rows."""
    body_config: PreTrainedConfig = config.body_config
    body: PreTrainedModel = AutoModelForCausalLM.from_config(
        body_config,
        dtype=torch.get_default_dtype(),
        attn_implementation=body_config._attn_implementation,
    )
    old_head = body.get_output_embeddings()
    new_head = nn.Linear(old_head.in_features, config.draft_vocab_size, bias=config.head_bias)
    body.set_output_embeddings(new_head)
    return body


def load_source(model_or_name: Any, **kwargs: Any) -> PreTrainedModel:
    """Load the model to cut, if it is given by name, and refuse what cannot be cut.

    Raises:
        TypeError: if there are settings for loading although nothing is loaded, or what is given
            is no Transformers model.
        ValueError: see `check_source`.
    """
    source = model_or_name
    if isinstance(model_or_name, str | Path):
        source = AutoModelForCausalLM.from_pretrained(model_or_name, **kwargs)
    elif kwargs:
        raise TypeError(
            f"{', '.join(kwargs)} is for loading a model by name, but a loaded model was given: "
            "leave it out, or pass the name"
        )
    check_source(source)
    model: PreTrainedModel = source
    return model


def check_source(model: Any) -> None:
    """Raise unless `model` is a plain decoder-only model, whose head can be cut without a loss.

    Raises:
        TypeError: if it is no Transformers model.
        ValueError: if it is an encoder or an encoder-decoder, keeps no cache, holds adapters, or
            was trimmed before.
    """
    name = type(model).__name__
    adapted = hasattr(model, "get_base_model") or (
        isinstance(model, nn.Module)
        and any(type(part).__module__.partition(".")[0] == "peft" for part in model.modules())
    )
    if adapted:
        raise ValueError(
            f"{name} holds adapters, and cutting would lose them: merge them first with "
            "model.merge_and_unload()"
        )
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"the draft must be a Transformers model or the name of one, got {name}: load it with "
            "AutoModelForCausalLM.from_pretrained"
        )
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"the draft must be decoder-only, but {name} is an encoder-decoder: take a causal "
            "language model of the target's tokenizer"
        )
    if hasattr(model.config, "draft_vocab_size"):
        raise ValueError(
            f"{name} is trimmed already, its head has rows for {model.config.draft_vocab_size} "
            "kept ids only: cut the model that it was made from"
        )
    _check_reads_left_to_right(model)


def _check_reads_left_to_right(model: PreTrainedModel) -> None:
    """Raise for encoders; that a recurrent state cannot roll back is told elsewhere."""
    name = type(model).__name__
    reads = inspect.signature(model.forward).parameters
    way_out = "take a causal language model (AutoModelForCausalLM) of the target's tokenizer"
    if not any(c in reads for c in _CACHE_NAMES) and not getattr(model, "_is_stateful", False):
        raise ValueError(
            f"the draft must be a causal language model with a cache, but the forward of {name} "
            f"takes neither {' nor '.join(_CACHE_NAMES)}: {way_out}"
        )
    # GPT-NeoX says is_decoder=False too; its attention is causal all the same.
    causal = any(getattr(part, "is_causal", None) is True for part in model.modules())
    if getattr(model.config, "is_decoder", None) is False and not causal:
        raise ValueError(
            f"the draft must read from left to right, but {name} is an encoder by its config "
            f"(is_decoder=False): {way_out}"
        )


def cut_body(
    model: PreTrainedModel, kept_ids: torch.Tensor, layers: int | None
) -> PreTrainedModel:
    """Copy a causal language model with only the kept rows of its head (and its first layers).

    The given model is left as it was and shares no storage with the copy.

    Args:
        model: a decoder-only causal language model with a plain linear head.
        kept_ids: int64 [k], ascending.
        layers: how many of the first layers to keep, or None for all.

    Raises:
        ValueError: if the head is quantised, missing, or has no row for a kept id, or `layers` is
            no whole number or out of range.
    """
    if layers is not None:
        layers = whole_number(layers, "layers")
    if getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None):
        _refuse_head(model)
    rows = rows_of_head(model, kept_ids)
    head: Any = model.get_output_embeddings()
    new_head = nn.Linear(head.in_features, len(kept_ids), bias="bias" in rows, device="meta")
    for name, numbers in rows.items():
        setattr(new_head, name, nn.Parameter(numbers))
    # The memo puts the new head where the copy meets the old one; a tied head's weight is also the
    # embedding's, which is copied whole.
    body: PreTrainedModel = copy.deepcopy(model, {id(head): new_head})
    body.config.tie_word_embeddings = False
    body.config.name_or_path = public_name(body.config.name_or_path)
    if layers is not None:
        _keep_first_layers(body, layers)
    body.eval()
    return body


def public_name(name: str | None) -> str:
    """Keep a Hub id; a folder of this machine, even a deleted one, is nobody else's business."""
    try:
        validate_repo_id(name or "")
    except HFValidationError:
        return ""
    return "" if name is None or Path(name).exists() else name


def rows_of_head(model: Any, ids: torch.Tensor, like: Any = None) -> dict[str, torch.Tensor]:
    """Copy the rows of a model's head that stand for some ids.

    Args:
        model: a causal language model with a plain linear head.
        ids: int64 [n], ascending.
        like: a head that the rows shall fit: one of the same width, and with a bias or without.

    Returns:
        `weight` [n, d], and `bias` [n] where the head has one.

    Raises:
        ValueError: if the head is quantised, missing, offloaded, has no row for an id, or its rows
            do not fit.
    """
    name = type(model).__name__
    head = model.get_output_embeddings()
    if isinstance(head, nn.Module) and type(head) is not nn.Linear:
        _refuse_head(model)
    if head is None:
        raise ValueError(
            f"{name} has no language-model head to cut: load it with AutoModelForCausalLM"
        )
    if head.weight.is_meta:
        raise ValueError(
            f"the head of {name} is offloaded, its rows cannot be read: load the model with its "
            "head on a device (device_map)"
        )
    last = int(ids[-1])
    if last >= head.weight.shape[0]:
        raise ValueError(
            f"the head of {name} has {head.weight.shape[0]} rows, but the vocabulary keeps id "
            f"{last}: target and draft must share one tokenizer; ids of the target's padding "
            "cannot be kept"
        )
    if like is not None and (
        head.in_features != like.in_features or (head.bias is None) != (like.bias is None)
    ):
        raise ValueError(
            f"rows of {name}'s head do not fit the draft's: {_head_shape(head)} and "
            f"{_head_shape(like)}; pass the model that the draft's head was copied from"
        )
    rows = ids.to(head.weight.device)
    found = {"weight": head.weight.detach()[rows].clone()}
    if head.bias is not None:
        found["bias"] = head.bias.detach()[rows].clone()
    return found


def _refuse_head(model: Any) -> NoReturn:
    raise ValueError(
        f"rows are cut from a plain linear head, but {type(model).__name__} is quantised or its "
        f"head is a {type(model.get_output_embeddings()).__name__}: load the model unquantised "
        "(dtype=torch.bfloat16), cut it, and quantise the cut draft if need be"
    )


def _head_shape(head: nn.Linear) -> str:
    return f"{head.in_features} wide {'without' if head.bias is None else 'with'} a bias"


def _keep_first_layers(body: PreTrainedModel, layers: int) -> None:
    decoder = body.get_decoder()
    stack = getattr(decoder, "layers", None)
    if not isinstance(stack, nn.ModuleList):
        raise ValueError(
            f"layers={layers} needs a model whose decoder has `layers`, {type(decoder).__name__} "
            "has not: leave layers unset"
        )
    if not 1 <= layers <= len(stack):
        raise ValueError(f"layers must lie in [1, {len(stack)}], got {layers}")
    decoder.layers = stack[:layers]
    config = body.config.get_text_config()
    if getattr(config, "num_kv_shared_layers", None):
        raise ValueError(
            f"layers={layers} cannot be cut from {type(body).__name__}, whose last "
            f"{config.num_kv_shared_layers} layers read the caches of earlier ones: leave layers "
            "unset"
        )
    config.num_hidden_layers = layers
    for per_layer in ("layer_types", "mlp_layer_types"):
        if getattr(config, per_layer, None) is not None:
            setattr(config, per_layer, list(getattr(config, per_layer))[:layers])


class StandaloneSession:
    """One run of `generate`: the draft's own cache, following the target's real tokens."""

    requires_model_outputs = False

    def __init__(
        self, body: PreTrainedModel, attention_mask: torch.Tensor | None, embedding_rows: int
    ) -> None:
        self._body = body
        self._cache = DynamicCache(config=body.config.get_text_config(decoder=True))
        # Sliding layers must be able to take rejected tokens back.
        self._cache.activate_past_recording()
        parameters = inspect.signature(body.forward).parameters
        self._cache_name = next(name for name in _CACHE_NAMES if name in parameters)
        self._rows = embedding_rows
        padded = attention_mask is not None and not bool(attention_mask.all())
        self._mask = (
            attention_mask.to(body.device) if padded and attention_mask is not None else None
        )
        self._seen = torch.empty(1, 0, dtype=torch.long, device=body.device)

    def catch_up(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        """Follow the target: drop guesses it rejected, read what is new.

        Args:
            input_ids: all real tokens so far, int64 [1, length].

        Returns:
            Logits of the next token in draft space, [1, k].
        """
        # At least the last real token must be read again for its logits.
        reusable = min(self._seen.shape[1], input_ids.shape[1] - 1)
        same = self._seen[0, :reusable] == input_ids[0, :reusable]
        reusable = int(same.long().cumprod(0).sum())
        if self._seen.shape[1]:
            self._cache.crop(reusable - self._seen.shape[1])
        self._seen = input_ids[:, :reusable]
        return self._read(input_ids[:, reusable:])

    def step(self, token: torch.Tensor) -> torch.Tensor:
        """Read one guessed token, int64 [1, 1]; return the next token's logits, [1, k]."""
        return self._read(token)

    def _read(self, ids: torch.Tensor) -> torch.Tensor:
        start = self._seen.shape[1]
        self._seen = torch.cat([self._seen, ids], dim=1)
        output = self._body(
            input_ids=ids.clamp(max=self._rows - 1),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: self._cache},
            **self._padding(start, ids.shape[1]),
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _padding(self, start: int, length: int) -> dict[str, torch.Tensor]:
        if self._mask is None:
            return {}
        total = start + length
        if self._mask.shape[1] < total:
            more = self._mask.new_ones(1, total - self._mask.shape[1])
            self._mask = torch.cat([self._mask, more], dim=1)
        mask = self._mask[:, :total]
        positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
        return {"attention_mask": mask, "position_ids": positions[:, start:]}
