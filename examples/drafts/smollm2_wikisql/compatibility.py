"""Every refusal, in one place, before the first token.

`check_pair` asks whether a target and a draft belong together; `check_call` asks whether one call
of `generate` can be served. What is refused here would otherwise fail far from its cause, or,
worse, run and give other text than the target alone. This module changes nothing and draws
nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin
from transformers.utils import logging

from .processor_state import stateful_complaint
from .vocabulary import HasVocabulary, tokenizer_fingerprint

logger: Any = logging.get_logger(__name__)

# Layer kinds whose state cannot be taken back to an earlier token, also where the model's class
# does not say so itself (`_is_stateful`).
_NO_ROLLBACK = frozenset({"linear_attention", "mamba", "recurrent", "rwkv"})
_ATTENDING = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
# Inputs that a text-only draft cannot see.
_OTHER_MODALITIES = ("pixel_values", "image", "video", "audio", "input_features", "input_values")


def check_pair(
    target: Any,
    draft: Any,
    *,
    tokenizer: HasVocabulary | None = None,
    draft_tokenizer: HasVocabulary | None = None,
) -> None:
    """Raise unless `draft` can draft for `target`.

    Works for a trimmed draft and for any other causal language model, reads through PEFT wrappers,
    and needs no weights to be looked at.

    Args:
        target: the target model.
        draft: the draft model.
        tokenizer: the target's tokenizer; compared with the one the draft was made for.
        draft_tokenizer: the draft's tokenizer, compared id by id with `tokenizer`.

    Raises:
        TypeError: if one of them is no loaded model.
        ValueError: naming what does not fit and the way out.
    """
    check_loaded(target, "target")
    check_loaded(draft, "draft")
    target, draft = generating(target), generating(draft)
    for role, model in (("target", target), ("draft", draft)):
        if model.config.is_encoder_decoder:
            raise ValueError(
                f"both models must be decoder-only, but the {role} {_name(model)} is an "
                "encoder-decoder: pass its decoder-only counterpart"
            )
    width = target.config.get_text_config().vocab_size
    draft_width = draft.config.get_text_config().vocab_size
    if width != draft_width:
        trimmed = hasattr(draft.config, "draft_vocab_size")
        way_out = (
            "cut the draft for this target: DraftVocabulary.from_ids(..., vocab_size="
            f"{width}) or TokenCounts.from_dataset(..., vocab_size={width})"
            if trimmed
            else "if the tokenizers are the same and only the padding differs, "
            "TrimmedDraftForCausalLM.from_draft_model bridges it; no other tokenizer is in scope"
        )
        raise ValueError(
            f"target {_name(target)} has a vocabulary of {width}, draft {_name(draft)} is made "
            f"for {draft_width}: {way_out}"
        )
    _check_tokenizers(draft, tokenizer, draft_tokenizer)
    check_can_roll_back(target, "target")
    if getattr(draft.config, "target_layer_ids", None) is not None:
        _check_own_target(target, draft)


def check_call(
    target: Any,
    draft: Any,
    *,
    input_ids: torch.Tensor | None = None,
    generation_config: GenerationConfig | None = None,
    logits_processor: Iterable[Any] = (),
    model_kwargs: dict[str, Any] | None = None,
    tokenizer: HasVocabulary | None = None,
    **generate_kwargs: Any,
) -> None:
    """Raise unless `target.generate(..., assistant_model=draft)` uses the draft and stays exact.

    `generate` itself asks this once the draft is reached. Ask it yourself to learn beforehand of
    the settings with which Transformers never reaches an assistant (beams, several sequences, no
    cache).

    Args:
        target: the target model.
        draft: the draft model.
        input_ids: prompt, int64 [1, length].
        generation_config: defaults to the target's own.
        logits_processor: the processors of the call.
        model_kwargs: further model inputs (`attention_mask`, a cache, ...).
        tokenizer: the target's tokenizer, if at hand.
        generate_kwargs: what `generate` would be given (`num_beams=2`, ...).

    Raises:
        ValueError: naming the setting, its value and the way out.
    """
    check_pair(target, draft, tokenizer=tokenizer)
    target, draft = generating(target), generating(draft)
    settings = generation_config or target.generation_config
    inputs = dict(model_kwargs or {})
    if generate_kwargs:
        settings = copy.deepcopy(settings)
        inputs.update(settings.update(**generate_kwargs))
    processors = [*logits_processor, *(inputs.pop("logits_processor", None) or ())]
    if input_ids is None:
        input_ids = inputs.get("input_ids")
    for complaint in (
        _unreached(settings),
        _unsupported_settings(settings),
        _unsupported_inputs(input_ids, inputs),
        _too_long(draft, settings, input_ids),
        stateful_complaint(processors, input_ids, target.config.get_text_config().vocab_size),
    ):
        if complaint is not None:
            raise ValueError(complaint)


def unwrap(model: Any) -> Any:
    """Return the model behind a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def check_loaded(model: Any, role: str) -> None:
    """Raise TypeError unless `model` is a loaded model, or a wrapper of one."""
    if not hasattr(getattr(generating(model), "config", None), "get_text_config"):
        what = repr(model) if model is None or isinstance(model, str) else type(model).__name__
        raise TypeError(
            f"the {role} must be a loaded Transformers model, got {what}: load it with "
            "AutoModelForCausalLM.from_pretrained"
        )


def generating(model: Any) -> Any:
    """Return the model that generates, behind PEFT, data-parallel, compiled or thin wrappers."""
    while not isinstance(model, GenerationMixin):
        inner = unwrap(model)
        if inner is model and isinstance(model, torch.nn.Module):
            inside = [child for child in model.children() if hasattr(child, "config")]
            inner = inside[0] if len(inside) == 1 else model
        if inner is model:
            break
        model = inner
    return model


def check_can_roll_back(model: Any, role: str) -> None:
    """Raise if the model keeps a state that cannot go back to an earlier token."""
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds & _NO_ROLLBACK or getattr(model, "_is_stateful", False):
        layers = ", ".join(sorted(kinds - _ATTENDING))
        found = f"a state in its layers ({layers})" if layers else "a recurrent state"
        raise ValueError(
            f"drafts that are rejected must be taken back, but the {role} {_name(model)} keeps "
            f"{found}, which cannot return to an earlier token: use a model whose layers all "
            "attend to a cache (full or sliding attention)"
        )


def _name(model: Any) -> str:
    path = getattr(model.config, "name_or_path", "") or getattr(model.config, "_name_or_path", "")
    return f"{type(model).__name__}({path})" if path else type(model).__name__


def _check_tokenizers(
    draft: Any, tokenizer: HasVocabulary | None, draft_tokenizer: HasVocabulary | None
) -> None:
    if tokenizer is not None and draft_tokenizer is not None:
        ours = {index: token for token, index in tokenizer.get_vocab().items()}
        theirs = {index: token for token, index in draft_tokenizer.get_vocab().items()}
        for index in sorted(ours.keys() | theirs.keys()):
            if ours.get(index) != theirs.get(index):
                raise ValueError(
                    "target and draft must share one tokenizer, but id "
                    f"{index} is {ours.get(index)!r} for the target and {theirs.get(index)!r} for "
                    "the draft: take a draft of the target's own family"
                )
    made_for = getattr(draft.config, "tokenizer_hash", None)
    if tokenizer is not None and made_for is not None:
        found = tokenizer_fingerprint(tokenizer)
        if found != made_for:
            raise ValueError(
                f"this draft was made for the tokenizer {made_for[:12]}, the target's is "
                f"{found[:12]}: the same id means another token; cut a draft with this tokenizer"
            )


def _check_own_target(target: Any, draft: Any) -> None:
    """A draft that reads hidden states was made for one target's."""
    text, made_for = target.config.get_text_config(decoder=True), draft.config
    owner = made_for.target_name or "another target"
    for name, ours, theirs in (
        ("hidden states of width", made_for.target_hidden_size, text.hidden_size),
        ("layers", made_for.target_num_hidden_layers, text.num_hidden_layers),
    ):
        if ours != theirs:
            raise ValueError(
                f"this draft reads the hidden states of {owner}, with {name} {ours}, but target "
                f"{_name(target)} has {name} {theirs}: use the target it was made for, or make a "
                "draft with TrimmedDraftForCausalLM.for_target"
            )
    name = getattr(target.config, "name_or_path", "")
    # A folder's name says nothing, a Hub id does.
    known = made_for.target_name and "/" in name and not Path(name).exists()
    if known and name != made_for.target_name:
        logger.warning_once(
            f"This draft was made for {made_for.target_name} and is used with {name}: the text "
            "stays the target's, but few of the draft's tokens may be accepted."
        )


def _unreached(settings: GenerationConfig) -> str | None:
    if (settings.num_beams or 1) > 1:
        return (
            f"a draft needs num_beams=1, got {settings.num_beams}: Transformers would run beam "
            "search without the draft"
        )
    if (settings.num_return_sequences or 1) > 1:
        return (
            f"a draft needs num_return_sequences=1, got {settings.num_return_sequences}: call "
            "generate once for each sequence"
        )
    if settings.use_cache is False:
        return "a draft needs use_cache=True: Transformers cannot verify a draft without a cache"
    if settings.cache_implementation == "paged":
        return "continuous batching does not use a draft: leave cache_implementation unset"
    return None


def _unsupported_settings(settings: GenerationConfig) -> str | None:
    if settings.guidance_scale not in (None, 1, 1.0):
        return (
            f"guidance_scale={settings.guidance_scale} gives other text with any draft than "
            "without (its second forward pass does not see the drafted tokens): leave it unset, "
            "or generate without assistant_model"
        )
    if settings.cache_implementation == "quantized":
        return (
            "cache_implementation='quantized' cannot take rejected drafts back: leave it unset, "
            "or leave assistant_model out"
        )
    for name in (
        "assistant_ensemble_weight",
        "prompt_lookup_num_tokens",
        "assistant_early_exit",
        "speculation_type",
        "use_mtp",
    ):
        value = getattr(settings, name, None)
        if value:
            return (
                f"{name}={value!r} chooses another way of drafting (or changes what is accepted): "
                "unset it, or leave assistant_model out"
            )
    return None


def _unsupported_inputs(input_ids: torch.Tensor | None, inputs: dict[str, Any]) -> str | None:
    if inputs.get("inputs_embeds") is not None:
        return "a draft reads token ids, got inputs_embeds: pass input_ids instead"
    if input_ids is not None and not input_ids.numel():
        return "a draft needs a prompt of at least one token, got none: begin with the bos token"
    if input_ids is not None and input_ids.shape[0] > 1:
        return (
            f"a draft serves one prompt at a time, got a batch of {input_ids.shape[0]}: call "
            "generate in a loop, or without assistant_model"
        )
    # What `generate` has encoded already before it asks for candidates is under the first name.
    for name, value in (*(inputs.get("mm_encoder_outputs") or {}).items(), *inputs.items()):
        if value is not None and name.startswith(_OTHER_MODALITIES):
            return (
                f"this draft reads text only, got {name}: leave assistant_model out for this call"
            )
    mask = inputs.get("attention_mask")
    if isinstance(mask, torch.Tensor) and mask.ndim != 2:
        return (
            f"attention_mask must have the shape [1, length] with a draft, got {list(mask.shape)}"
        )
    cache = inputs.get("cache", inputs.get("past_key_values"))
    filled = int(cache.get_seq_length()) if cache is not None else 0
    if filled > 0:
        return (
            f"a draft starts with an empty cache, got one with {filled} tokens (with any "
            "assistant Transformers would feed the prompt twice): to continue a chat pass the "
            "whole conversation as input_ids and no cache"
        )
    return None


def _too_long(
    draft: Any, settings: GenerationConfig, input_ids: torch.Tensor | None
) -> str | None:
    # Learned position tables end; rotary ones go as far as the target does.
    body = getattr(draft.config, "body_config", draft.config)
    limit = getattr(body, "max_position_embeddings", None)
    if limit is None or getattr(body, "rope_parameters", None) is not None:
        return None
    new = settings.max_new_tokens
    asked = settings.max_length if new is None else new
    if new is not None and input_ids is not None:
        asked = new + input_ids.shape[1]
    if asked is not None and asked > limit:
        return (
            f"the draft {_name(draft)} has a position table of {limit} tokens, prompt and new "
            f"tokens together may reach {asked}: lower max_new_tokens or take a draft with rotary "
            "positions"
        )
    return None
