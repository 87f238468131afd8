"""`TrimmedDraftForCausalLM`: a draft whose head holds only the kept ids.

Whatever leaves the model through `forward` has the target's width, with -inf for tokens that the
draft cannot say, so that it is an ordinary causal language model to everyone; inside, losses and
drafting stay in draft width. With k = V there is no table and nothing is spread.

The kept ids are part of the weights. A table that is missing, broken or of another vocabulary is a
loading error, because a wrong table changes nothing that anyone would see but the speed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from .assisted_generation import (
    TrimmedCandidateGenerator,
    install_hook,
    make_candidate_generator,
    widen,
)
from .compatibility import check_can_roll_back, check_pair, unwrap
from .configuration_trimmed_draft import TrimmedDraftConfig
from .standalone_body import StandaloneSession, build_body, cut_body
from .vocabulary import DraftVocabulary, first_bad_position, kept_ids_fingerprint, rows_of

# The field is named `past_key_values` in Transformers 5.23, `cache` from 5.24 on.
_CACHE = "cache" if "cache" in {f.name for f in fields(CausalLMOutputWithPast)} else "past_key_values"
_TABLE = "kept_ids"
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")

# Short drafts suit small drafts; examples/bench_pair.py measures other lengths.
DEFAULT_DRAFT_LENGTH = 4
DEFAULT_THRESHOLD = 0.4


@dataclass
class TrimmedDraftOutput(CausalLMOutputWithPast):
    """Output of `TrimmedDraftForCausalLM`.

    Attributes:
        ignored_labels: int64 scalar, how many labels lie outside the vocabulary and were left out
            of the loss; None without labels.
    """

    ignored_labels: torch.Tensor | None = None


class TrimmedDraftForCausalLM(PreTrainedModel, GenerationMixin):
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

    kept_ids: torch.Tensor | None

    def __init__(self, config: TrimmedDraftConfig) -> None:
        super().__init__(config)
        self.body = build_body(config)
        size = config.draft_vocab_size
        # Filled with an impossible id: a table that nothing was loaded into cannot pass for one.
        table = torch.full((size,), -1) if size != config.vocab_size else None
        self.register_buffer(_TABLE, table, persistent=True)
        self.generation_config = _drafting_defaults(config)
        self.post_init()

    @classmethod
    def from_draft_model(
        cls,
        model_or_name: PreTrainedModel | str | Path,
        vocabulary: DraftVocabulary,
        *,
        target: Any = None,
        layers: int | None = None,
        **from_pretrained_kwargs: Any,
    ) -> TrimmedDraftForCausalLM:
        """Cut the head of an existing small model; nothing is trained.

        Args:
            model_or_name: any decoder-only causal language model of the target's tokenizer, or the
                Hub id or folder of one. A model that is passed is left as it was.
            vocabulary: the kept ids, of the target's width.
            target: the target, if at hand: the pair is checked, and eos, bos and pad are taken from
                it (`pipeline` compares them).
            layers: keep only this many of the first layers.
            from_pretrained_kwargs: for loading by name (`dtype`, `revision`, `device_map`, ...).

        Raises:
            ValueError: if the head is quantised or has no row for a kept id, the model keeps a
                state that cannot roll back, or the draft does not fit `target`.
        """
        if isinstance(model_or_name, str | Path):
            source = AutoModelForCausalLM.from_pretrained(model_or_name, **from_pretrained_kwargs)
        else:
            source = unwrap_draft(model_or_name)
        check_can_roll_back(source, "draft")
        body = cut_body(source, vocabulary.ids, layers)
        head = body.get_output_embeddings()
        special = (unwrap(target) if target is not None else source).config.get_text_config()
        config = TrimmedDraftConfig(
            vocab_size=vocabulary.vocab_size,
            draft_vocab_size=len(vocabulary),
            body_config=body.config,
            head_bias=head.bias is not None,
            tokenizer_hash=vocabulary.tokenizer_hash,
            vocabulary_fingerprint=vocabulary.fingerprint,
            vocabulary_provenance=dict(vocabulary.provenance) or None,
            dtype=body.dtype,
            **{name: getattr(special, name, None) for name in _SPECIAL_IDS},
        )
        with torch.device("meta"):
            draft = cls(config)
        draft.body = body
        if not vocabulary.is_full:
            draft.kept_ids = vocabulary.ids.to(head.weight.device)
        draft.eval()
        if target is not None:
            check_pair(target, draft)
        return draft

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a draft from a folder or the Hub and prove that its kept ids are its own.

        Takes what `PreTrainedModel.from_pretrained` takes.

        Raises:
            ValueError: if a weight or the table of kept ids is missing, of another shape, or does
                not have the fingerprint that the config names.
        """
        want_info = kwargs.pop("output_loading_info", False)
        draft, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        missing = sorted(info["missing_keys"])
        if missing:
            raise ValueError(
                f"the weights in {args[0] if args else 'the folder'} lack {', '.join(missing[:5])}"
                f"{' and more' if len(missing) > 5 else ''}: without them the draft would guess at "
                "random; save or publish it again with save_pretrained"
            )
        draft.check_kept_ids()
        draft._freeze_again()
        return (draft, info) if want_info else draft

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Save weights, kept ids and config; with the code, so that others need no package.

        Takes what `PreTrainedModel.save_pretrained` takes.
        """
        self.check_kept_ids()
        frozen = [name for name, weight in self.named_parameters() if not weight.requires_grad]
        self.config.frozen_parameters = frozen or None
        super().save_pretrained(save_directory, **kwargs)

    @property
    def vocabulary(self) -> DraftVocabulary:
        """The kept ids with what they mean."""
        ids = torch.arange(self.config.vocab_size) if self.kept_ids is None else self.kept_ids.cpu()
        return DraftVocabulary(
            ids,
            self.config.vocab_size,
            self.config.tokenizer_hash,
            provenance=self.config.vocabulary_provenance or {},
        )

    def check_kept_ids(self) -> None:
        """Raise unless the table of kept ids is valid and the one the head was cut for.

        Raises:
            ValueError: naming the table, the first bad position and the way out.
        """
        if self.kept_ids is None:
            return
        bad = first_bad_position(self.kept_ids, self.config.vocab_size)
        if bad is not None:
            raise ValueError(
                f"{_TABLE} must hold ascending, unique ids inside [0, {self.config.vocab_size}): at "
                f"position {bad[0]} {bad[1]}; make the draft with from_draft_model, or fetch the "
                "weights again"
            )
        found = kept_ids_fingerprint(
            self.kept_ids, self.config.vocab_size, self.config.tokenizer_hash
        )
        if self.config.vocabulary_fingerprint not in (None, found):
            raise ValueError(
                f"{_TABLE} has the fingerprint {found[:12]}, the config names "
                f"{str(self.config.vocabulary_fingerprint)[:12]}: head and table belong to different "
                "vocabularies of one size; take both files from the same save"
            )

    def make_candidate_generator(self, **call: Any) -> TrimmedCandidateGenerator:
        """Make the candidate generator for one run of `target.generate`.

        Called by the hook in Transformers, with the arguments of
        `GenerationMixin._get_candidate_generator`.
        """
        mask = (call.get("model_kwargs") or {}).get("attention_mask")
        rows = self.body.get_input_embeddings().num_embeddings
        session = StandaloneSession(self.body, mask, rows)
        return make_candidate_generator(self, session, **call)

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
        **kwargs: Any,
    ) -> TrimmedDraftOutput:
        """Compute logits of the target's width.

        Args:
            input_ids: token ids of the target, int64 [batch, length].
            attention_mask: 1 for real tokens, [batch, length so far].
            position_ids: int64 [batch, length].
            cache: the body's cache; `past_key_values` is its older name.
            inputs_embeds: instead of `input_ids`, [batch, length, hidden].
            labels: token ids of the target, int64 [batch, length]; -100 and ids outside the
                vocabulary are left out of the loss.
            use_cache: whether to return a cache.
            logits_to_keep: compute logits of the last n positions only (0: all), or of the given
                positions.
            past_key_values: see `cache`.
            num_items_in_batch: divide the summed loss by this instead of the number of labels that
                counted, as `Trainer` asks for when it accumulates gradients.
            kwargs: passed to the body.

        Returns:
            Logits [batch, kept positions, V], -inf for tokens outside the vocabulary; with labels
            the loss and the number of labels left out.
        """
        if input_ids is not None:
            rows = self.body.get_input_embeddings().num_embeddings
            if rows < self.config.vocab_size:
                # Ids of the target's padding have no embedding here.
                input_ids = input_ids.clamp(max=rows - 1)
        given = cache if cache is not None else past_key_values
        kwargs.pop("return_dict", None)
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
            loss, ignored = self._loss(output.logits, labels, num_items_in_batch)
        return TrimmedDraftOutput(
            loss=loss,
            logits=widen(output.logits, self.kept_ids, self.config.vocab_size),
            hidden_states=output.hidden_states,
            attentions=output.attentions,
            ignored_labels=ignored,
            **{_CACHE: getattr(output, _CACHE)},
        )

    def _loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items: torch.Tensor | int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        next_labels = labels[:, 1:].to(logits.device)
        wanted = next_labels != -100
        rows = next_labels if self.kept_ids is None else rows_of(next_labels, self.kept_ids)
        counted = wanted & (rows >= 0)
        # [batch, length - 1, k], in float32 as every causal language model of Transformers.
        scores = logits[:, :-1].float()
        total = nn.functional.cross_entropy(
            scores.flatten(0, 1),
            rows.masked_fill(~counted, -100).flatten(),
            ignore_index=-100,
            reduction="sum",
        )
        divisor = counted.sum().clamp(min=1) if num_items is None else num_items
        return total / divisor, (wanted & ~counted).sum()

    def get_input_embeddings(self) -> nn.Module:
        """Return the body's input embeddings."""
        embeddings: nn.Module = self.body.get_input_embeddings()
        return embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the body's input embeddings."""
        self.body.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Linear:
        """Return the trimmed head, a linear layer with k rows."""
        head: nn.Linear = self.body.get_output_embeddings()
        return head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the trimmed head; it must have k rows."""
        self.body.set_output_embeddings(new_embeddings)

    @property
    def lm_head(self) -> nn.Linear:
        """The trimmed head, under its usual name."""
        return self.get_output_embeddings()

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:  # noqa: ARG002
        """Refuse: the rows of the head are the kept ids.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "a trimmed head cannot be resized, its rows are the kept ids: resize the draft model "
            "first and cut it again with from_draft_model"
        )

    def _freeze_again(self) -> None:
        frozen = set(self.config.frozen_parameters or ())
        for name, weight in self.named_parameters():
            if name in frozen:
                weight.requires_grad_(False)


def unwrap_draft(model: Any) -> PreTrainedModel:
    """Refuse a PEFT-wrapped draft, whose adapter would be lost; return any other model.

    Raises:
        ValueError: for a wrapped model.
    """
    if unwrap(model) is not model:
        raise ValueError(
            f"{type(model).__name__} is an adapter over a draft, and cutting would lose it: merge it "
            "first with model.merge_and_unload()"
        )
    plain: PreTrainedModel = model
    return plain


def _drafting_defaults(config: TrimmedDraftConfig) -> GenerationConfig:
    """Settings of drafting, fresh: a copy of the target's may not even be valid here."""
    return GenerationConfig(
        num_assistant_tokens=DEFAULT_DRAFT_LENGTH,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=DEFAULT_THRESHOLD,
        **{name: getattr(config, name) for name in _SPECIAL_IDS},
    )


TrimmedDraftConfig.register_for_auto_class()
TrimmedDraftForCausalLM.register_for_auto_class("AutoModelForCausalLM")
AutoConfig.register(TrimmedDraftConfig.model_type, TrimmedDraftConfig, exist_ok=True)
AutoModelForCausalLM.register(TrimmedDraftConfig, TrimmedDraftForCausalLM, exist_ok=True)
install_hook()
