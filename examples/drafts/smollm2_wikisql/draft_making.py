"""Making a draft: cut from a small model, built for a target, or from another draft.

Every way ends in the same place: a config, a body with a head of k rows, and the table of what the
rows stand for. Nothing here is trained.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationMixin, PreTrainedModel

from .compatibility import check_can_roll_back, check_loaded, check_pair, generating, unwrap
from .confidence import CALIBRATION
from .configuration_trimmed_draft import TrimmedDraftConfig
from .eagle_target import eagle_config, new_eagle_body, target_facts
from .standalone_body import cut_body, load_source, rows_of_head
from .vocabulary import DraftVocabulary

_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


class DraftMaking:
    """The ways in which a `TrimmedDraftForCausalLM` comes into being."""

    config: Any
    body: Any
    kept_ids: torch.Tensor | None
    generation_config: Any
    vocabulary: Any

    @classmethod
    def from_draft_model(
        cls,
        model_or_name: PreTrainedModel | str | Path,
        vocabulary: DraftVocabulary,
        *,
        target: Any = None,
        layers: int | None = None,
        **from_pretrained_kwargs: Any,
    ) -> Any:
        """Cut the head of an existing small model; nothing is trained.

        Args:
            model_or_name: any decoder-only causal language model of the target's tokenizer, or the
                Hub id or folder of one. A model that is passed is left as it was.
            vocabulary: the kept ids, of the target's width.
            target: the target, if at hand: the pair is checked, and eos, bos and pad are taken
                from it (`pipeline` compares them).
            layers: keep only this many of the first layers.
            from_pretrained_kwargs: for loading by name (`dtype`, `revision`, `device_map`, ...).

        Raises:
            TypeError: if the model or `target` is no Transformers model, `vocabulary` no
                vocabulary, or there are settings for loading although nothing is loaded.
            ValueError: if the model is no decoder-only causal language model, holds adapters or is
                trimmed already, its head is quantised or has no row for a kept id, it keeps a
                state that cannot roll back, or it does not fit `target`.
        """
        _check_vocabulary(vocabulary)
        if target is not None:
            check_loaded(target, "target")
        source = load_source(model_or_name, **from_pretrained_kwargs)
        check_can_roll_back(source, "draft")
        body = cut_body(source, vocabulary.ids, layers)
        special = (unwrap(target) if target is not None else source).config.get_text_config()
        draft = cls._around(body, vocabulary, special, body="standalone")
        if target is not None:
            check_pair(target, draft)
        return draft

    @classmethod
    def for_target(
        cls,
        target: Any,
        vocabulary: DraftVocabulary,
        layers: Sequence[int] | None = None,
        **body_settings: Any,
    ) -> Any:
        """Make a draft with an EAGLE-3 body for a target, to be trained.

        Three hidden states of the target are fused (`3d -> d`) and read by one Llama-style layer
        of the target's sizes and rotary settings; the head's rows are copies of the target's. All
        other weights are random. The target's embeddings are used at run time and not stored.

        Args:
            target: the target model, loaded. Of a vision-language model the text part counts.
            vocabulary: the kept ids, of the target's width.
            layers: three indices into the target's `hidden_states` (0 is what the first layer
                reads), ascending; by default EAGLE-3's low, middle and high: 2, L // 2, L - 3.
            body_settings: fields of the layer's `LlamaConfig` to be other than the target's, such
                as `intermediate_size`.

        Raises:
            TypeError: if `target` is no loaded model, or `vocabulary` no vocabulary.
            ValueError: if the target is no decoder-only model or keeps a state that cannot roll
                back, its head is quantised or lacks a row, its embeddings have another width than
                its states, `layers` are not three of its states, or the vocabulary has another
                width.
        """
        _check_vocabulary(vocabulary)
        check_loaded(target, "target")
        model = generating(target)
        if not isinstance(model, GenerationMixin):
            raise ValueError(
                f"the target must be able to generate, which a {type(target).__name__} cannot: "
                "load it with AutoModelForCausalLM"
            )
        target = model
        config = eagle_config(target, **body_settings)
        facts = target_facts(target, layers)
        body = new_eagle_body(target, config, vocabulary.ids)
        special = target.config.get_text_config(decoder=True)
        draft = cls._around(body, vocabulary, special, body="eagle3", **facts)
        check_pair(target, draft)
        return draft

    def retrim(self, vocabulary: DraftVocabulary) -> Any:
        """Return this draft with a part of its vocabulary; nothing is trained.

        A calibration of the draft's confidence does not hold for other rows and is left out.

        Args:
            vocabulary: the ids to keep; the draft has a row for each of them.

        Raises:
            TypeError: if `vocabulary` is no vocabulary.
            ValueError: if it is of another width or tokenizer, or the draft lacks one of its ids.
        """
        return self._with_rows(vocabulary, None)

    def extend(self, vocabulary: DraftVocabulary, target: Any) -> Any:
        """Return this draft with another vocabulary, new rows taken from `target`'s head.

        Rows for ids that the draft has are its own, carried by token id. With all V ids this is
        the draft that a trimmed one is honestly compared with: the same weights, a head of full
        width. A calibration of the draft's confidence does not hold for other rows and is left
        out.

        Args:
            vocabulary: the ids to keep.
            target: the model whose head the draft's was copied from: the target for an EAGLE-3
                body, the small model that was cut for a standalone one.

        Raises:
            TypeError: if `vocabulary` is no vocabulary, or `target` no loaded model.
            ValueError: if the vocabulary is of another width or tokenizer, or rows of that head
                do not fit.
        """
        check_loaded(target, "target")
        return self._with_rows(vocabulary, generating(target))

    def _with_rows(self, vocabulary: DraftVocabulary, source: Any) -> Any:
        _check_vocabulary(vocabulary)
        own: DraftVocabulary = self.vocabulary
        for name in ("vocab_size", "tokenizer_hash"):
            ours, theirs = getattr(own, name), getattr(vocabulary, name)
            if None not in (ours, theirs) and ours != theirs:
                raise ValueError(
                    f"the new vocabulary must be of the draft's own {name} {ours}, got {theirs}: "
                    "an id would stand for another token; count and search with the target's "
                    "tokenizer and width"
                )
        # Rows are carried by token id, so the tokenizer stays, whether it is named again or not.
        vocabulary = DraftVocabulary(
            vocabulary.ids,
            vocabulary.vocab_size,
            own.tokenizer_hash or vocabulary.tokenizer_hash,
            provenance=vocabulary.provenance,
        )
        rows = own.to_draft(vocabulary.ids)
        missing = vocabulary.ids[rows < 0]
        if source is None and missing.numel():
            raise ValueError(
                f"a draft can be trimmed to ids that it has, but it lacks {missing.numel()} of "
                f"{len(vocabulary)}, the first is {int(missing[0])}: take their rows from the "
                "target's head with draft.extend(vocabulary, target)"
            )
        head = self.body.get_output_embeddings()
        # The memo puts the new head where the copy meets the old one.
        body = copy.deepcopy(self.body, {id(head): _carried(head, rows, source, vocabulary)})
        settings = {
            name: getattr(self.config, name) for name in ("body", *TrimmedDraftConfig.TARGET_FACTS)
        }
        draft = type(self)._around(body, vocabulary, self.config, **settings)
        draft.generation_config = copy.deepcopy(self.generation_config)
        if not torch.equal(vocabulary.ids, own.ids) and hasattr(
            self.generation_config, CALIBRATION
        ):
            # It was fitted to what a head of other rows promises.
            setattr(draft.generation_config, CALIBRATION, None)
        return draft

    @classmethod
    def _around(
        cls, model: Any, vocabulary: DraftVocabulary, special: Any, **settings: Any
    ) -> Any:
        """Make a draft of a body whose head has the vocabulary's rows."""
        head = model.get_output_embeddings()
        taken_over: dict[str, Any] = {name: getattr(special, name, None) for name in _SPECIAL_IDS}
        taken_over["attn_implementation"] = model.config._attn_implementation
        config = TrimmedDraftConfig(
            vocab_size=vocabulary.vocab_size,
            draft_vocab_size=len(vocabulary),
            body_config=model.config,
            head_bias=head.bias is not None,
            tokenizer_hash=vocabulary.tokenizer_hash,
            vocabulary_fingerprint=vocabulary.fingerprint,
            vocabulary_provenance=dict(vocabulary.provenance) or None,
            dtype=model.dtype,
            **taken_over,
            **settings,
        )
        with torch.device("meta"):
            draft: Any = cls(config)  # type: ignore[call-arg]
        draft.body = model
        if not vocabulary.is_full:
            draft.kept_ids = vocabulary.ids.to(head.weight.device, copy=True)
        draft.eval()
        return draft


def _check_vocabulary(vocabulary: Any) -> None:
    if not hasattr(vocabulary, "to_draft"):
        raise TypeError(
            f"vocabulary must be a DraftVocabulary, got {type(vocabulary).__name__}: make one "
            "with DraftVocabulary.from_ids(ids, vocab_size=...)"
        )


def _carried(
    head: Any, rows: torch.Tensor, source: Any, vocabulary: DraftVocabulary
) -> torch.nn.Linear:
    """Return a head whose rows are those of `head`, and of the source's where it has none (-1)."""
    rows = rows.to(head.weight.device)
    new = torch.nn.Linear(head.in_features, rows.numel(), head.bias is not None, device="meta")
    for name in ("weight", "bias"):
        mine = getattr(head, name)
        if mine is None:
            continue
        numbers = mine.detach()[rows.clamp(min=0)].clone()
        new_ids = vocabulary.ids[(rows < 0).cpu()]
        if new_ids.numel():
            theirs = rows_of_head(source, new_ids, like=head)
            numbers[rows < 0] = theirs[name].to(numbers)
        setattr(new, name, torch.nn.Parameter(numbers, requires_grad=mine.requires_grad))
    return new
