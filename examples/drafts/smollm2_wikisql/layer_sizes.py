"""The sizes of one decoder layer, read from any causal LM's config.

Configs name the same thing differently (`intermediate_size`, `ffn_dim`, `n_inner`), leave out what
follows from the rest, and say nowhere whether the MLP is gated. All of that is settled here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Architectures whose MLP is two matrices with an activation between. All others are gated: a third
# matrix decides, number by number, what passes. No config has a field for it.
PLAIN_MLP_TYPES = frozenset(
    (
        "apertus",
        "arcee",
        "biogpt",
        "bloom",
        "codegen",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox",
        "gpt_neox_japanese",
        "gptj",
        "mpt",
        "nemotron",
        "opt",
        "persimmon",
        "phi",
        "starcoder2",
        "xglm",
    )
)

_WIDTHS = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of a decoder layer and of the model around it.

    Attributes:
        vocab_size: V, rows of the head, padding included.
        hidden_size: d.
        num_hidden_layers: how many such layers there are.
        num_heads: query heads.
        num_key_value_heads: fewer than `num_heads` where they are shared (GQA, MQA).
        head_dim: numbers a head; not always d / heads.
        intermediate_size: width of the MLP.
        gated_mlp: three matrices, or two.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    gated_mlp: bool

    @classmethod
    def from_config(
        cls,
        config: Any,
        intermediate_size: int | None = None,
        gated_mlp: bool | None = None,
        *,
        dense: bool = False,
    ) -> LayerSizes:
        """Read the sizes from a config; of a composite one, from its text decoder.

        Args:
            config: a `PreTrainedConfig`.
            intermediate_size: to be used in place of the config's.
            gated_mlp: to be used in place of what is known of the architecture.
            dense: of a mixture of experts, take the width of one MLP and not that of all the
                experts which see a token.

        Raises:
            ValueError: if the config lacks a size or has a different one for each layer.
        """
        text = _of_one_layer(config.get_text_config(decoder=True))
        hidden = _size(text, "hidden_size")
        heads = _size(text, "num_attention_heads")
        if gated_mlp is None:
            gated_mlp = text.model_type not in PLAIN_MLP_TYPES
        head_dim = getattr(text, "head_dim", None) or hidden // heads
        return cls(
            vocab_size=_size(text, "vocab_size"),
            hidden_size=hidden,
            num_hidden_layers=_size(text, "num_hidden_layers"),
            num_heads=heads,
            num_key_value_heads=_key_value_heads(text, heads),
            head_dim=int(head_dim),
            intermediate_size=intermediate_size or _mlp_width(text, hidden, dense),
            gated_mlp=gated_mlp,
        )

    def attention_weights(self, input_size: int) -> int:
        """Return the number of weights in the four projections.

        Args:
            input_size: numbers that queries, keys and values read: d, or 2d in EAGLE-3's layer.
        """
        queries = self.num_heads * self.head_dim
        keys = self.num_key_value_heads * self.head_dim
        return input_size * (queries + 2 * keys) + queries * self.hidden_size

    def mlp_weights(self) -> int:
        """Return the number of weights in the MLP."""
        return (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size


def _of_one_layer(config: Any) -> Any:
    """Return the config of a layer of full attention, where layers have configs of their own."""
    if not getattr(config, "is_heterogeneous", False):
        return config
    kinds = list(getattr(config, "layer_types", None) or ())
    first = kinds.index("full_attention") if "full_attention" in kinds else 0
    return config.per_layer_config[first]


def _size(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    if not isinstance(value, int) or value < 1:
        raise ValueError(
            f"the config of a {config.model_type} must say its {name}, got {value!r}: "
            "is it the config of a causal LM?"
        )
    return value


def _key_value_heads(config: Any, heads: int) -> int:
    # Falcon keeps a number of key heads that it only uses in its newer form.
    old_falcon = config.model_type == "falcon" and not config.new_decoder_architecture
    if getattr(config, "multi_query", False) and (old_falcon or config.model_type != "falcon"):
        return 1
    if old_falcon:
        return heads
    return next((int(n) for name in _KEY_HEADS if (n := getattr(config, name, None))), heads)


def _mlp_width(config: Any, hidden: int, dense: bool) -> int:
    experts = getattr(config, "num_experts_per_tok", None)
    if dense or not experts:
        return _dense_width(config, hidden)
    width = getattr(config, "moe_intermediate_size", None) or _dense_width(config, hidden)
    shared = getattr(config, "shared_expert_intermediate_size", None) or 0
    return int((experts + (getattr(config, "n_shared_experts", None) or 0)) * width + shared)


def _dense_width(config: Any, hidden: int) -> int:
    width = next((w for name in _WIDTHS if (w := getattr(config, name, None))), None)
    if isinstance(width, list | tuple):
        if len(set(width)) > 1:
            raise ValueError(
                f"the layers of this {config.model_type} have MLPs of different widths, "
                f"{min(width)} to {max(width)}: give intermediate_size"
            )
        width = width[0]
    # GPT-2 and its kin leave out a width of four times the hidden size.
    return int(width) if width else 4 * hidden
