"""`TrimmedDraftForCausalLM`: a draft whose head holds only the kept ids.

Whatever leaves the model through `forward` has the target's width, with -inf for tokens that the
draft cannot say, so that it is an ordinary causal language model to everyone; inside, losses and
drafting stay in draft width. With k = V there is no table and nothing is spread.

Loading, saving and drafting are here; the head and its table are in `trimmed_head.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from .assisted_generation import (
    DraftSession,
    TrimmedCandidateGenerator,
    install_hook,
    make_candidate_generator,
    widen,
)
from .compatibility import check_pair
from .configuration_trimmed_draft import TrimmedDraftConfig
from .draft_making import DraftMaking
from .draft_on_hub import DraftOnHub, pinned, take_publishing
from .eagle_body import EagleBody, EagleOutput
from .eagle_session import EagleSession
from .losses import next_token_loss
from .standalone_body import StandaloneSession, build_body
from .trimmed_head import TrimmedHead, refuse_unfit_weights, remove_other_weights

# The field is named `past_key_values` in Transformers 5.23, `cache` from 5.24 on.
_CACHE = (
    "cache" if "cache" in {f.name for f in fields(CausalLMOutputWithPast)} else "past_key_values"
)
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def drafting_defaults(body: str) -> dict[str, Any]:
    """Return the settings of a new draft's `generation_config`.

    The threshold of a standalone draft is Transformers' own. A step of an EAGLE-3 draft costs a
    twentieth of a verification, and ending early saves less than it loses
    (`examples/bench_draft_length.py`).
    """
    return {
        "num_assistant_tokens": 4,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0 if body == "eagle3" else 0.4,
    }


@dataclass
class TrimmedDraftOutput(CausalLMOutputWithPast):
    """Output of `TrimmedDraftForCausalLM`.

    Attributes:
        ignored_labels: int64 scalar, how many labels lie outside the vocabulary and were left out
            of the loss; None without labels.
    """

    ignored_labels: torch.Tensor | None = None


class TrimmedDraftForCausalLM(  # type: ignore[misc]
    DraftMaking, DraftOnHub, TrimmedHead, PreTrainedModel, GenerationMixin
):
    """A draft model with the vocabulary that a domain really uses.

    Make one with `from_draft_model`, bring one back with `from_pretrained` (or
    `AutoModelForCausalLM` once `vtrim_hf` is imported), and hand it to
    `target.generate(assistant_model=draft)`.

    Args:
        config: sizes and body; the weights are random and the kept ids are unset until loaded.

    Example:
        >>> draft = TrimmedDraftForCausalLM.from_draft_model(small, vocabulary)   # doctest: +SKIP
        >>> text = target.generate(**inputs, assistant_model=draft)              # doctest: +SKIP
    """

    config_class = TrimmedDraftConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _tied_weights_keys: dict[str, str] = {}  # noqa: RUF012  (read by Transformers as a dict)

    def __init__(self, config: TrimmedDraftConfig) -> None:
        super().__init__(config)
        self.body: Any
        if config.body == "eagle3":
            sizes: Any = config.body_config
            self.body = EagleBody(sizes, int(config.draft_vocab_size or 0), config.head_bias)
        else:
            self.body = build_body(config)
        self._register_table()
        # Fresh, not a copy of the target's: that may not even be valid here.
        special = {name: getattr(config, name) for name in _SPECIAL_IDS}
        self.generation_config = GenerationConfig(**drafting_defaults(config.body), **special)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any
    ) -> Any:
        """Load a draft from a folder or the Hub and prove that its kept ids are its own.

        The revision is resolved once: config, weights, settings and facts are of one commit.

        Args:
            pretrained_model_name_or_path: a folder, or the id of a repository.
            model_args: see `kwargs`.
            kwargs: what `PreTrainedModel.from_pretrained` takes.

        Raises:
            ValueError: if a weight or the table of kept ids is missing, of another shape, or does
                not have the fingerprint that the config names.
        """
        want_info = kwargs.pop("output_loading_info", False)
        # What does not fit is reported below by name, whatever the caller would ignore.
        place = pretrained_model_name_or_path
        kwargs = {**pinned(place, kwargs), "ignore_mismatched_sizes": True}
        kwargs.setdefault("use_safetensors", True)  # pickles hold code
        loaded: Any = super().from_pretrained(
            place, *model_args, output_loading_info=True, **kwargs
        )
        draft, info = loaded
        refuse_unfit_weights(info)
        draft.check_kept_ids()
        frozen = frozenset(draft.config.frozen_parameters or ())
        for parameter, weight in draft.named_parameters():
            if parameter in frozen:
                weight.requires_grad_(False)
        for setting, value in drafting_defaults(draft.config.body).items():
            # A folder without generation_config.json would otherwise draft nothing.
            if getattr(draft.generation_config, setting) is None:
                setattr(draft.generation_config, setting, value)
        draft.load_facts(place, kwargs)
        return (draft, info) if want_info else draft

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:  # type: ignore[override]
        """Save weights, kept ids, config and facts; with the code, so others need no package.

        Takes what `PreTrainedModel.save_pretrained` takes; with `push_to_hub=True` also what
        `push_to_hub` takes.
        """
        publishing = take_publishing(kwargs)
        self.check_kept_ids()
        self.check_facts()
        frozen = [name for name, weight in self.named_parameters() if not weight.requires_grad]
        self.config.frozen_parameters = frozen or None
        super().save_pretrained(save_directory, **kwargs)
        if kwargs.get("is_main_process", True):
            remove_other_weights(save_directory, kwargs.get("variant"))
            self.save_facts(save_directory)
            if publishing is not None:
                self.push_to_hub(**publishing)

    def make_candidate_generator(self, **call: Any) -> TrimmedCandidateGenerator:
        """Make the candidate generator for one run of `target.generate`.

        Called by the hook in Transformers, with the arguments of
        `GenerationMixin._get_candidate_generator`.
        """
        self._prove_table_once()
        mask = (call.get("model_kwargs") or {}).get("attention_mask")
        session: DraftSession
        if self.config.body == "standalone":
            session = StandaloneSession(self.body, mask, self._embedding_rows)
        else:
            # Before the session, which asks the target for what another one may not have.
            check_pair(call["target"], self)
            session = EagleSession(
                self.body,
                self.config.target_layer_ids,
                call["target"].get_input_embeddings(),
                mask,
                all_states=bool(call["generation_config"].output_hidden_states),
            )
        return make_candidate_generator(self, session, **call)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        past_key_values: Any = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        target_hidden_states: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> TrimmedDraftOutput:
        """Compute logits of the target's width.

        Args:
            input_ids: token ids of the target, int64 [batch, length].
            attention_mask: 1 for real tokens, [batch, length so far].
            position_ids: int64 [batch, length].
            cache: the body's cache; `past_key_values` is its older name.
            inputs_embeds: instead of `input_ids`, [batch, length, hidden]. An EAGLE-3 draft reads
                the target's embeddings of tokens t+1 here, beside the states at t.
            labels: token ids of the target, int64 [batch, length], of the same tokens as the
                inputs; -100 and ids outside the vocabulary are left out of the loss.
            use_cache: whether to return a cache.
            logits_to_keep: compute logits of the last n positions only (0: all), or of the given
                positions.
            past_key_values: see `cache`.
            num_items_in_batch: divide the summed loss by this instead of the number of labels that
                counted, as `Trainer` asks for when it accumulates gradients.
            target_hidden_states: of an EAGLE-3 draft only: the target's `hidden_states[i]` for i
                in `config.target_layer_ids`, side by side, [batch, length, 3 hidden].
            kwargs: passed to a standalone body; `return_dict=False` gives a plain tuple.

        Returns:
            Logits [batch, kept positions, V], -inf for tokens outside the vocabulary; with labels
            the loss and the number of labels left out.

        Raises:
            ValueError: if the kept ids are unset or wrong, there is not one label a position, or
                an EAGLE-3 draft lacks the target's states or embeddings.
        """
        self._prove_table_once()
        given = cache if cache is not None else past_key_values
        if self.config.body == "eagle3":
            if inputs_embeds is None or target_hidden_states is None:
                raise ValueError(
                    "an EAGLE-3 draft reads its target's hidden states and embeddings: use it as "
                    "target.generate(..., assistant_model=draft), or call it with "
                    "target_hidden_states (config.target_layer_ids, side by side) at t and "
                    "inputs_embeds=target.get_input_embeddings()(ids) of the tokens at t+1"
                )
            read: EagleOutput = self.body(
                inputs_embeds,
                target_hidden_states,
                attention_mask=attention_mask,
                position_ids=position_ids,
                cache=given,
                logits_to_keep=logits_to_keep,
            )
            output: Any = CausalLMOutputWithPast(
                logits=read.logits, hidden_states=(read.state,), **{_CACHE: given}
            )
        else:
            if input_ids is not None:
                # Ids of the target's padding may have no embedding here.
                input_ids = input_ids.clamp(max=self._embedding_rows - 1)
            output = self.body(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                inputs_embeds=inputs_embeds,
                use_cache=use_cache,
                logits_to_keep=logits_to_keep,
                return_dict=True,
                **({_CACHE: given} if given is not None else {}),
                **kwargs,
            )
        loss = ignored = None
        if labels is not None:
            loss, ignored = next_token_loss(
                output.logits, labels, self.kept_ids, num_items_in_batch
            )
        return TrimmedDraftOutput(
            loss=loss,
            logits=widen(output.logits, self.kept_ids, self.config.vocab_size),
            hidden_states=output.hidden_states,
            attentions=output.attentions,
            ignored_labels=ignored,
            **{_CACHE: getattr(output, _CACHE)},
        )

    @property
    def _embedding_rows(self) -> int:
        return int(self.body.get_input_embeddings().weight.shape[0])


TrimmedDraftConfig.register_for_auto_class()  # type: ignore[no-untyped-call]
TrimmedDraftForCausalLM.register_for_auto_class("AutoModelForCausalLM")  # type: ignore[no-untyped-call]
AutoConfig.register(TrimmedDraftConfig.model_type, TrimmedDraftConfig, exist_ok=True)
AutoModelForCausalLM.register(TrimmedDraftConfig, TrimmedDraftForCausalLM, exist_ok=True)
install_hook()
