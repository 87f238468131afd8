"""`TrimmedDraftConfig`: what a trimmed draft is, without its weights.

Two sizes are kept apart everywhere: `vocab_size` is always the target's padded width, which is
what Transformers compares when it pairs two models; `draft_vocab_size` is the number of rows of
the draft's own head. This module knows nothing about how the draft is used.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .kept_ids import WIDEST

# Raised when the layout changes: fields that are there mean something else, or weights do. A field
# that is added and changes what the weights mean is named in `required_fields` by who writes it.
FORMAT_VERSION = 1
BODIES = ("standalone", "eagle3")

_KINDS: dict[str, type] = {
    "head_bias": bool,
    "tokenizer_hash": str,
    "vocabulary_fingerprint": str,
    "vocabulary_provenance": dict,
    "frozen_parameters": list,
    "required_fields": list,
    "target_name": str,
    "target_layer_ids": list,
}

# Somebody may have fixed the code of a repository to an earlier commit than its draft.
_WAY_OUT = (
    "this is the code of a repository, not the package: load without code_revision=, or install "
    "the package (`pip install -U vtrim_hf`)"
    if __name__.startswith("transformers_modules.")
    else "upgrade with `pip install -U vtrim_hf`"
)

# Facts of the body that generation and caches read from a model's top-level config.
_FROM_BODY = frozenset(
    {
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "sliding_window",
        "layer_types",
        "attention_chunk_size",
        "num_kv_shared_layers",
        "initializer_range",
    }
)


class TrimmedDraftConfig(PreTrainedConfig):
    """Configuration of a draft whose head holds `draft_vocab_size` of the target's tokens.

    Args:
        vocab_size: V, the target's padded width.
        draft_vocab_size: k, the number of kept ids and of head rows.
        body: `"standalone"`, any decoder-only causal language model of the target's tokenizer, or
            `"eagle3"`, one layer over three of the target's hidden states.
        body_config: the body's own configuration (its `vocab_size` is that of its embeddings).
        head_bias: whether the head has a bias.
        tokenizer_hash: `tokenizer_fingerprint` of the target's tokenizer, or None if unknown.
        vocabulary_fingerprint: fingerprint of the `DraftVocabulary` that the head was cut for.
        vocabulary_provenance: where that vocabulary came from.
        frozen_parameters: names of parameters that stay frozen over a save and a load.
        target_name: the Hub id of the target that an EAGLE-3 draft was made for, if it has one.
        target_hidden_size: d of that target.
        target_num_hidden_layers: its number of layers.
        target_layer_ids: which three of its `hidden_states` are read, ascending.
        format_version: version of this layout.
        required_fields: names of fields of this config, and of no other, without which the
            weights mean something else: who does not know one of them must not load the draft.
            Other unknown fields are kept as they are.

    Raises:
        ValueError: for sizes that do not fit each other, an unknown body or a missing body_config,
            a fact of another type, a layout written by a newer release, or a required field that
            this release does not know.
    """

    model_type = "trimmed_draft"
    # Neither is a score of a token: evaluation loops must not gather them.
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "cache",
        "past_key_values",
        "ignored_labels",
    ]
    TARGET_FACTS: ClassVar[tuple[str, ...]] = (
        "target_name",
        "target_hidden_size",
        "target_num_hidden_layers",
        "target_layer_ids",
    )
    sub_configs_defaults: ClassVar[dict[str, Any]] = {
        "body_config": SubConfigSpec(config_class=AutoConfig, model_type="llama")
    }

    vocab_size: int = 32000
    draft_vocab_size: int | None = None
    body: str = "standalone"
    body_config: dict[str, Any] | PreTrainedConfig | None = None
    head_bias: bool = False
    tokenizer_hash: str | None = None
    vocabulary_fingerprint: str | None = None
    vocabulary_provenance: dict[str, Any] | None = None
    frozen_parameters: list[str] | None = None
    target_name: str | None = None
    target_hidden_size: int | None = None
    target_num_hidden_layers: int | None = None
    target_layer_ids: list[int] | None = None
    format_version: int = FORMAT_VERSION
    required_fields: list[str] | None = None
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        _check_whole("format_version", self.format_version)
        if self.format_version > FORMAT_VERSION:
            raise ValueError(
                f"this draft has the layout version {self.format_version}, this release reads up "
                f"to {FORMAT_VERSION}: {_WAY_OUT}"
            )
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise ValueError(
                    f"{name} must be a {kind.__name__}, got {value!r}: fetch the draft's "
                    "config.json again"
                )
        known = {field.name for field in fields(self)}
        for name in self.required_fields or ():
            if name not in known:
                raise ValueError(
                    f"this draft needs {name!r:.80} of its config to be understood, which this "
                    f"release does not know: {_WAY_OUT}"
                )
        for parameter in self.frozen_parameters or ():
            if not isinstance(parameter, str):
                raise ValueError(
                    f"frozen_parameters must hold names of parameters, got {parameter!r}: fetch "
                    "the draft's config.json again"
                )
        if self.body not in BODIES:
            raise ValueError(
                f"body must be one of {', '.join(BODIES)}, got {self.body!r}: "
                f"if a newer release knows it, {_WAY_OUT}"
            )
        # There is no default body; left to itself Transformers would take a Llama of full size.
        if not isinstance(self.body_config, PreTrainedConfig) and not (
            isinstance(self.body_config, dict) and self.body_config.get("model_type")
        ):
            raise ValueError(
                "body_config must be the configuration of the body, with its model_type, got "
                f"{self.body_config!r}: make the draft with "
                "TrimmedDraftForCausalLM.from_draft_model, or fetch its config.json again"
            )
        _check_whole("vocab_size", self.vocab_size)
        if self.draft_vocab_size is None:
            self.draft_vocab_size = self.vocab_size
        _check_whole("draft_vocab_size", self.draft_vocab_size)
        if not 1 <= self.draft_vocab_size <= self.vocab_size:
            raise ValueError(
                f"draft_vocab_size must lie in [1, vocab_size={self.vocab_size}], got "
                f"{self.draft_vocab_size}: vocab_size is the target's width, not the head's"
            )
        if self.body == "eagle3":
            self._check_target_facts()
        # The head holds a copy of some rows: tying it to the embeddings would replace it.
        self.tie_word_embeddings = False
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        body_config: Any = self.body_config
        for part in (body_config, body_config.get_text_config()):
            part.tie_word_embeddings = False

    def _check_target_facts(self) -> None:
        for name in ("target_hidden_size", "target_num_hidden_layers"):
            _check_whole(name, getattr(self, name))
        ids, depth = self.target_layer_ids or [], self.target_num_hidden_layers or 0
        for index in ids:
            _check_whole("target_layer_ids", index)
        if len(ids) != 3 or ids != sorted(set(ids)) or not 0 <= ids[0] <= ids[-1] <= depth:
            raise ValueError(
                "target_layer_ids must be three ascending indices of the target's hidden states, "
                f"in [0, {depth}], got {ids}: fetch the draft's config.json again"
            )

    def get_text_config(
        self,
        decoder: bool | None = None,  # noqa: ARG002
        encoder: bool | None = None,  # noqa: ARG002
    ) -> TrimmedDraftConfig:
        """Return this config: no nested one may take over `vocab_size`."""
        return self

    def __getattr__(self, name: str) -> Any:
        # Reached only for names that are not set here.
        if name in _FROM_BODY:
            body_config = self.__dict__.get("body_config")
            if isinstance(body_config, PreTrainedConfig):
                return getattr(body_config.get_text_config(), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _check_whole(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(
            f"{name} must be a whole number, got {value!r}: fetch the draft's config.json again"
        )
    if value > WIDEST:
        raise ValueError(
            f"{name} must be at most {WIDEST}, got {value}: fetch the draft's config.json again"
        )
