"""The EAGLE-3 body: one Llama-style layer that reads the target's hidden states.

Three states of the target, side by side, are fused to one; the layer reads it together with the
embedding of the token that follows, and what comes out, before the last norm, stands in for the
next fused state when several tokens are drafted in a row. The embedding is the target's own,
looked up where the body is used: it is no part of the body. Weights have the names that EAGLE-3
checkpoints use (`fc`, `midlayer`, `norm`, `lm_head`). This module knows nothing about generation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding

from .packed_rows import Packed, packed_rows, unshare

FEATURES = 3
"""States of the target that are fused."""


class EagleOutput(NamedTuple):
    """What one pass gives.

    Attributes:
        logits: in draft space, [batch, kept positions, k].
        state: before the last norm, [batch, length, d]; the next pass reads it as `state`.
    """

    logits: torch.Tensor
    state: torch.Tensor


class ExactRotaryEmbedding(LlamaRotaryEmbedding):  # Transformers knows it by its name's end
    """Llama's rotary angles, whose frequencies stay in float32 whatever the weights become.

    Rounded to bfloat16 they turn far positions elsewhere; a saved draft comes back with exact
    ones, and engines use exact ones.
    """

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        exact = self.inv_freq, self.original_inv_freq
        moved = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.inv_freq.dtype != exact[0].dtype:
            for name, each in zip(("inv_freq", "original_inv_freq"), exact, strict=True):
                setattr(self, name, each.to(self.inv_freq.device))
        return moved


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
        turned, values = together.split([self.heads + self.key_heads, self.key_heads], dim=1)
        # Halves are exchanged by rolling; the sign that goes with it is in the sines.
        swapped = turned.roll(self.head_dim // 2, dims=-1)
        turned = torch.addcmul(turned * rope[0], swapped, rope[1])
        return turned[:, : self.heads], turned[:, self.heads :], values

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
        self.norm_eps = config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(*norm)  # of the embedding
        self.hidden_norm = nn.RMSNorm(*norm)  # of the state
        self.self_attn = EagleAttention(config)
        self.post_attention_layernorm = nn.RMSNorm(*norm)
        self.mlp = LlamaMLP(config)

    def read(self, embeds: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return what attention reads, [batch, length, 2d]."""
        # Both norms in one go: a norm of so few numbers costs its calls, not its arithmetic.
        pair = torch.stack([embeds, state], dim=-2)
        weights = torch.stack([self.input_layernorm.weight, self.hidden_norm.weight])
        return normed(pair, weights, self.norm_eps).flatten(2)

    def finish(
        self, state: torch.Tensor, found: torch.Tensor, packed: Packed | None = None
    ) -> torch.Tensor:
        """Return the next state, given what attention found, [batch, heads, length, head_dim]."""
        state = state + self.self_attn.gather(found)
        inside = normed(state, self.post_attention_layernorm.weight, self.norm_eps)
        if packed is None:
            added: torch.Tensor = self.mlp(inside)
        else:
            gate, up = functional.linear(inside, *packed).chunk(2, dim=-1)
            added = self.mlp.down_proj(self.mlp.act_fn(gate) * up)
        return state + added


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
        self.rotary_emb = ExactRotaryEmbedding(config)
        self.register_state_dict_post_hook(unshare)  # type: ignore[no-untyped-call]
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
        head: nn.Module = self.lm_head
        return head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the trimmed head."""
        self.lm_head = new_embeddings

    def pack(self) -> tuple[Packed | None, Packed | None]:
        """Return queries, keys and values, and the MLP's gate and up, as one matrix each.

        One large product is faster than three small ones. The weights keep their names and
        values, but become parts of one storage, so nothing is held twice. None where they are not
        plain weights (adapters, quantised, offloaded).
        """
        attention, mlp = self.midlayer.self_attn, self.midlayer.mlp
        return (
            packed_rows([attention.q_proj, attention.k_proj, attention.v_proj]),
            packed_rows([mlp.gate_proj, mlp.up_proj]),
        )

    def rope(
        self, position_ids: torch.Tensor, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and signed sines of positions int64 [batch, length].

        Both are [batch, 1, length, head_dim]; the first half of the sines is negated.
        """
        cosines, sines = self.rotary_emb(like, position_ids)
        first, second = sines.chunk(2, dim=-1)
        return cosines[:, None], torch.cat([-first, second], dim=-1)[:, None]

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
            rope: what `rope` gave for the positions, if at hand.
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
        queries, keys, values = attention.project(
            layer.read(inputs_embeds, state), rope, packed[0]
        )
        if cache is not None:
            keys, values = cache.update(keys, values, 0)
        mask = visible(attention_mask, past, inputs_embeds)
        state = layer.finish(state, attention.attend(queries, keys, values, mask), packed[1])
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return EagleOutput(self.score(state[:, kept]), state)

    def score(self, state: torch.Tensor) -> torch.Tensor:
        """Return logits in draft space, [..., k], of states [..., d]."""
        last = normed(state, self.norm.weight, self.midlayer.norm_eps)
        logits: torch.Tensor = self.lm_head(last)
        return logits


def normed(numbers: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return RMS-normalised numbers [..., d], times a weight [..., d], as Llama does it.

    Not by calling `nn.RMSNorm`, which warns where weights are float32 and numbers are not, as in
    training with autocast.
    """
    width = numbers.shape[-1]
    if numbers.is_cpu:
        # The mean of [x, -x] is 0 and its variance the mean square of x: its LayerNorm begins with
        # the RMSNorm of x, and is one kernel where torch's RMSNorm is eight.
        both = torch.cat([numbers, -numbers], dim=-1)
        return functional.layer_norm(both, (2 * width,), eps=eps)[..., :width] * weight
    return functional.rms_norm(numbers, (width,), eps=eps) * weight


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


def _positions(attention_mask: torch.Tensor | None, past: int, like: torch.Tensor) -> torch.Tensor:
    length = like.shape[1]
    if attention_mask is None:
        return torch.arange(past, past + length, device=like.device)[None]
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, past:].to(like.device)
