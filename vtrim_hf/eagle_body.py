"""The EAGLE-3 body: one Llama-style layer that reads the target's hidden states.

Three states of the target, side by side, are fused to one; the layer reads it together with the
embedding of the token that follows, and what comes out, before the last norm, stands in for the
next fused state when several tokens are drafted in a row. The embedding is the target's own, looked
up where the body is used: it is no part of the body. Weights have the names that EAGLE-3
checkpoints use (`fc`, `midlayer`, `norm`, `lm_head`). This module knows nothing about generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

FEATURES = 3
"""States of the target that are fused."""


class Packed(NamedTuple):
    """Projections that read the same numbers, as one matrix: weight [out, in], bias [out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


class EagleOutput(NamedTuple):
    """What one pass gives.

    Attributes:
        logits: in draft space, [batch, kept positions, k].
        state: before the last norm, [batch, length, d]; the next pass reads it as `state`.
    """

    logits: torch.Tensor
    state: torch.Tensor


class EagleAttention(nn.Module):
    """Attention whose queries, keys and values read an embedding and a state, 2d numbers."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = int(config.head_dim or config.hidden_size // config.num_attention_heads)
        self.heads = int(config.num_attention_heads)
        self.key_heads = int(config.num_key_value_heads or self.heads)
        reads, bias = 2 * config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(reads, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(reads, self.key_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(reads, self.key_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=bias)

    def project(
        self, both: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], packed: Packed | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return turned queries and keys, and values, [batch, heads, length, head_dim] each."""
        if packed is None:
            parts = [self.q_proj(both), self.k_proj(both), self.v_proj(both)]
            together = torch.cat(parts, dim=-1)
        else:
            together = functional.linear(both, *packed)
        together = together.view(*both.shape[:2], -1, self.head_dim).transpose(1, 2)
        queries, keys, values = together.split([self.heads, self.key_heads, self.key_heads], dim=1)
        queries, keys = apply_rotary_pos_emb(queries, keys, *rope)
        return queries, keys, values

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return what queries [b, heads, n, h] find among keys and values [b, key heads, m, h].

        Without a mask they see all keys if n is 1, or else those up to their own position.
        """
        batch, _, length, width = queries.shape
        if length == 1 and mask is None:
            # Heads that share keys become queries of one head: nothing is repeated or masked.
            grouped = queries.reshape(batch, self.key_heads, -1, width)
            found = functional.scaled_dot_product_attention(grouped, keys, values)
        else:
            found = functional.scaled_dot_product_attention(
                queries,
                self.repeated(keys),
                self.repeated(values),
                attn_mask=mask,
                is_causal=mask is None,
            )
        return found.reshape(batch, self.heads, length, width)

    def repeated(self, shared: torch.Tensor) -> torch.Tensor:
        """Give each query head its own copy of the keys or values that it shares."""
        return shared.repeat_interleave(self.heads // self.key_heads, dim=1)

    def gather(self, found: torch.Tensor) -> torch.Tensor:
        """Project [batch, heads, length, head_dim] back to [batch, length, d]."""
        out: torch.Tensor = self.o_proj(found.transpose(1, 2).flatten(2))
        return out


class EagleLayer(nn.Module):
    """The one layer: attention over embeddings and states, then an MLP; the state is the residual.

    A state is not normalised on its way through; the two norms before attention look at copies.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        norm = (config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = nn.RMSNorm(*norm)  # of the embedding
        self.hidden_norm = nn.RMSNorm(*norm)  # of the state
        self.self_attn = EagleAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(*norm)
        self.mlp = LlamaMLP(config)

    def read(self, embeds: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return what attention reads, [batch, length, 2d]."""
        return torch.cat([self.input_layernorm(embeds), self.hidden_norm(state)], dim=-1)

    def finish(
        self, state: torch.Tensor, found: torch.Tensor, packed: Packed | None = None
    ) -> torch.Tensor:
        """Return the next state, given what attention found, [batch, heads, length, head_dim]."""
        state = state + self.self_attn.gather(found)
        inside = self.post_attention_layernorm(state)
        if packed is None:
            return state + self.mlp(inside)
        gate, up = functional.linear(inside, *packed).chunk(2, dim=-1)
        return state + self.mlp.down_proj(self.mlp.act_fn(gate) * up)


class EagleBody(PreTrainedModel):
    """Fusion, layer, norm and trimmed head of an EAGLE-3 draft.

    Args:
        config: a Llama configuration with the target's sizes and one layer.
        rows: k, rows of the head.
        head_bias: whether the head has a bias.
    """

    config_class = LlamaConfig
    base_model_prefix = ""
    _supports_sdpa = True
    _no_split_modules = ["EagleLayer"]  # noqa: RUF012  (read by Transformers as a list)

    def __init__(self, config: LlamaConfig, rows: int, head_bias: bool = False) -> None:
        super().__init__(config)
        self.fc = nn.Linear(FEATURES * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = EagleLayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, rows, bias=head_bias)
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """Refuse: an EAGLE-3 body has no embeddings.

        Raises:
            NotImplementedError: always, as from any model without them.
        """
        raise NotImplementedError(
            "an EAGLE-3 draft has no embeddings of its own, it reads the target's: "
            "target.get_input_embeddings()"
        )

    def get_output_embeddings(self) -> nn.Module:
        """Return the trimmed head."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the trimmed head."""
        self.lm_head = new_embeddings  # type: ignore[assignment]

    def pack(self) -> tuple[Packed | None, Packed | None]:
        """Return queries, keys and values, and the MLP's gate and up, as one matrix each.

        One large product is faster than three small ones. The weights keep their names and
        values, but become parts of one storage, so nothing is held twice. None where they are not
        plain weights (adapters, quantised, offloaded).
        """
        attention, mlp = self.midlayer.self_attn, self.midlayer.mlp
        return (
            _packed([attention.q_proj, attention.k_proj, attention.v_proj]),
            _packed([mlp.gate_proj, mlp.up_proj]),
        )

    def rope(
        self, position_ids: torch.Tensor, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines [batch, length, head_dim] of positions [batch, length]."""
        found: tuple[torch.Tensor, torch.Tensor] = self.rotary_emb(like, position_ids)
        return found

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        target_hidden_states: torch.Tensor | None = None,
        state: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
        logits_to_keep: int | torch.Tensor = 0,
        rope: tuple[torch.Tensor, torch.Tensor] | None = None,
        packed: tuple[Packed | None, Packed | None] = (None, None),
    ) -> EagleOutput:
        """Read features, or states in their place, and the tokens that follow them.

        Args:
            inputs_embeds: the target's embeddings of tokens t+1, [batch, length, d].
            target_hidden_states: the target's three states at t side by side, [batch, length, 3d].
            state: instead of them, what an earlier pass gave, [batch, length, d].
            attention_mask: 1 for real positions, [batch, past + length].
            position_ids: int64 [batch, length]; by default they go on after the cache.
            cache: a Transformers cache, which is added to.
            logits_to_keep: logits of the last n positions only (0: all), or of these positions.
            rope: cosines and sines of the positions, if at hand.
            packed: what `pack` gave.

        Returns:
            Logits of tokens t+2 in draft space, and the states.

        Raises:
            ValueError: if not exactly one of features and state is given.
        """
        if (target_hidden_states is None) == (state is None):
            raise ValueError(
                "an EAGLE-3 body reads either target_hidden_states or the state of an earlier "
                f"pass, got {'neither' if state is None else 'both'}"
            )
        if state is None:
            state = self.fc(target_hidden_states)
        past = cache.get_seq_length() if cache is not None else 0
        if rope is None:
            if position_ids is None:
                position_ids = _positions(attention_mask, past, inputs_embeds)
            rope = self.rope(position_ids, inputs_embeds)
        layer, attention = self.midlayer, self.midlayer.self_attn
        queries, keys, values = attention.project(layer.read(inputs_embeds, state), rope, packed[0])
        if cache is not None:
            keys, values = cache.update(keys, values, 0)
        mask = visible(attention_mask, past, inputs_embeds)
        state = layer.finish(state, attention.attend(queries, keys, values, mask), packed[1])
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return EagleOutput(self.score(state[:, kept]), state)

    def score(self, state: torch.Tensor) -> torch.Tensor:
        """Return logits in draft space, [..., k], of states [..., d]."""
        logits: torch.Tensor = self.lm_head(self.norm(state))
        return logits


def visible(
    attention_mask: torch.Tensor | None, past: int, like: torch.Tensor
) -> torch.Tensor | None:
    """Return which keys each query may see, bool [batch, 1, length, past + length].

    None where the rule of `EagleAttention.attend` without a mask says the same.
    """
    length = like.shape[1]
    padded = attention_mask is not None and not bool(attention_mask.all())
    if not padded and (length == 1 or past == 0):
        return None
    mask = torch.ones(length, past + length, dtype=torch.bool, device=like.device).tril(past)
    if padded and attention_mask is not None:
        seen = attention_mask[:, None, None, :].to(like.device, torch.bool)
        # Padding sees itself: a softmax over nothing is not a number, and spreads.
        own = torch.eye(length, dtype=torch.bool, device=like.device)
        mask = (mask & seen) | functional.pad(own, (past, 0))
    return mask if mask.ndim == 4 else mask[None, None]


def _positions(
    attention_mask: torch.Tensor | None, past: int, like: torch.Tensor
) -> torch.Tensor:
    length = like.shape[1]
    if attention_mask is None:
        return torch.arange(past, past + length, device=like.device)[None]
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, past:].to(like.device)


def _packed(linears: Sequence[nn.Module]) -> Packed | None:
    """Let several linear layers share one storage, row after row, and return the whole of it."""
    weights: list[Any] = [getattr(linear, "weight", None) for linear in linears]
    for linear, weight in zip(linears, weights, strict=True):
        plain = type(linear) is nn.Linear and type(weight) is nn.Parameter
        if not plain or weight.is_meta or linear._forward_pre_hooks or linear._forward_hooks:
            return None
    sizes = [weight.shape[0] for weight in weights]
    first = weights[0]
    place = first.storage_offset()
    for weight, size in zip(weights, sizes, strict=True):
        shared = weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (shared and weight.storage_offset() == place and weight.is_contiguous()):
            whole = torch.cat([each.detach() for each in weights])
            for linear, part in zip(linears, whole.split(sizes), strict=True):
                linear.weight.data = part  # type: ignore[union-attr,operator]
            first = weights[0]
            break
        place += size * first.shape[1]
    rows = first.detach().as_strided((sum(sizes), first.shape[1]), (first.shape[1], 1))
    biases: list[Any] = [linear.bias for linear in linears]
    joined = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])
    return Packed(rows, joined)
