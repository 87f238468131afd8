"""Drafting several steps at every position at once: EAGLE-3's training-time test.

At step s the column i holds what drafting gives s tokens after the features end at i: it reads the
state of step s-1 in the same column, sits at position i + s, and sees the real features up to i and
its own column's earlier steps, which is just what the cache holds while drafting. This module knows
nothing about losses.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .eagle_body import EagleBody, visible


def unroll(
    body: EagleBody,
    inputs_embeds: torch.Tensor,
    target_hidden_states: torch.Tensor,
    steps: int,
    *,
    attention_mask: torch.Tensor | None = None,
) -> Iterator[torch.Tensor]:
    """Yield the states of each step, before the last norm, [batch, length, d].

    Column i of step s (from 0) is the state that scores token i + s + 2, where features are those
    of tokens i and embeddings those of tokens i + 1. Where tokens i + s + 1 lie beyond the end,
    columns hold nothing meaningful.

    Args:
        body: the draft's body.
        inputs_embeds: the target's embeddings of tokens i + 1, [batch, length, d].
        target_hidden_states: the target's three states at i side by side, [batch, length, 3d].
        steps: how many tokens are drafted at each position.
        attention_mask: 1 for real positions, [batch, length].
    """
    layer, attention = body.midlayer, body.midlayer.self_attn
    state = body.fc(target_hidden_states)
    length = state.shape[1]
    mask = visible(attention_mask, 0, inputs_embeds)
    positions = torch.arange(length, device=state.device)[None]
    if attention_mask is not None:
        positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    first: tuple[torch.Tensor, torch.Tensor] | None = None
    own: list[tuple[torch.Tensor, torch.Tensor]] = []
    embeds = inputs_embeds
    for step in range(steps):
        rope = body.rope(positions + step, embeds)
        queries, keys, values = attention.project(layer.read(embeds, state), rope, None)
        keys, values = attention.repeated(keys), attention.repeated(values)
        if first is None:
            first = keys, values
            found = torch.nn.functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None
            )
        else:
            own.append((keys, values))
            found = _seen(queries, first, own, mask)
        state = layer.finish(state, found)
        yield state
        embeds = torch.cat([embeds[:, 1:], torch.zeros_like(embeds[:, :1])], dim=1)


def _seen(
    queries: torch.Tensor,
    first: tuple[torch.Tensor, torch.Tensor],
    own: list[tuple[torch.Tensor, torch.Tensor]],
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Attend to the real features up to each column, and to the column's own later steps."""
    length, scale = queries.shape[2], queries.shape[3] ** -0.5
    real = queries @ first[0].transpose(-1, -2)
    if mask is None:
        mask = torch.ones(length, length, dtype=torch.bool, device=queries.device).tril()
    real = real.masked_fill(~mask, -torch.inf)
    guessed = torch.stack([(queries * keys).sum(-1) for keys, _ in own], dim=-1)
    weights = (torch.cat([real, guessed], dim=-1) * scale).softmax(dim=-1, dtype=torch.float32)
    weights = weights.to(queries.dtype)
    found = weights[..., :length] @ first[1]
    for step, (_, values) in enumerate(own):
        found = found + weights[..., length + step, None] * values
    return found
