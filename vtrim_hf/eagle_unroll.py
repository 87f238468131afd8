"""Drafting several steps at many positions at once: EAGLE-3's training-time test.

At step s a column that starts at i holds what drafting gives s tokens after the features end at i:
it reads the state of its own step s-1, sits at position i + s, and sees the real features up to i
and its own earlier steps, which is just what the cache holds while drafting. This module knows
nothing about losses.

What a step weighs is a number for each head, column and position. Where these are many, they are
made for some columns at a time, and made again on the way back instead of being kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from .eagle_body import EagleBody

_WEIGHED_AT_ONCE = 128 << 20  # bytes in float32


def unroll(
    body: EagleBody,
    inputs_embeds: torch.Tensor,
    target_hidden_states: torch.Tensor,
    steps: int,
    *,
    columns: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
) -> Iterator[torch.Tensor]:
    """Yield the states of each step, before the last norm, [batch, columns, d].

    The column of i at step s (from 0) is the state that scores token i + s + 2, where features are
    those of tokens i and embeddings those of tokens i + 1. Where token i + s + 1 lies beyond the
    end, a column holds nothing meaningful.

    Args:
        body: the draft's body.
        inputs_embeds: the target's embeddings of tokens i + 1, [batch, length, d].
        target_hidden_states: the target's three states at i side by side, [batch, length, 3d].
        steps: how many tokens are drafted in each column.
        columns: the positions i to draft at, int64 [batch, columns]; by default all. The others
            are seen, but cost next to nothing.
        attention_mask: 1 for real positions, [batch, length].
    """
    layer, attention = body.midlayer, body.midlayer.self_attn
    batch, length = inputs_embeds.shape[:2]
    everywhere = torch.arange(length, device=inputs_embeds.device).expand(batch, -1)
    columns = everywhere if columns is None else columns
    positions = everywhere
    visible = everywhere[:, None, :] <= columns[:, :, None]
    if attention_mask is not None:
        positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        # Padding sees itself: a softmax over nothing is not a number, and spreads.
        itself = everywhere[:, None, :] == columns[:, :, None]
        visible = visible & attention_mask[:, None, :].bool() | itself
    visible = visible[:, None]

    state = body.fc(target_hidden_states)
    both = layer.read(inputs_embeds, state)
    queries, keys, values = attention.project(both, body.rope(positions, state), None)
    real = attention.repeated(keys), attention.repeated(values)
    start = positions.gather(1, columns)
    state = _picked(state, columns)
    queries = _picked(queries, columns)
    found = scaled_dot_product_attention(queries, *real, attn_mask=visible)
    own: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step in range(steps):
        if step:
            embeds = _picked(inputs_embeds, (columns + step).clamp(max=length - 1))
            rope = body.rope(start + step, state)
            queries, keys, values = attention.project(layer.read(embeds, state), rope, None)
            own.append((attention.repeated(keys), attention.repeated(values)))
            found = _seen(queries, real, own, visible)
        state = layer.finish(state, found)
        yield state


def _picked(numbers: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Take some positions, int64 [batch, columns], of [batch, (heads,) length, width]."""
    index = columns[..., None] if numbers.ndim == 3 else columns[:, None, :, None]
    shape = (*numbers.shape[:-2], columns.shape[1], numbers.shape[-1])
    return numbers.gather(-2, index.expand(shape))


def _seen(
    queries: torch.Tensor,
    real: tuple[torch.Tensor, torch.Tensor],
    own: list[tuple[torch.Tensor, torch.Tensor]],
    visible: torch.Tensor,
) -> torch.Tensor:
    """Do what `_attended` does, for some columns at a time where there is much to weigh."""
    batch, heads, columns, _ = queries.shape
    each = 4 * batch * heads * (real[0].shape[2] + len(own))
    at_once = max(1, _WEIGHED_AT_ONCE // each)
    if at_once >= columns:
        return _attended(queries, real, own, visible)

    def cut(numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(numbers.split(at_once, dim=2))

    guessed = zip(*[zip(cut(keys), cut(values), strict=True) for keys, values in own], strict=True)
    parts = [
        # Nothing is drawn, so there is no state of a generator to preserve.
        checkpoint(
            _attended, some, real, steps, seen, use_reentrant=False, preserve_rng_state=False
        )
        for some, steps, seen in zip(cut(queries), guessed, cut(visible), strict=True)
    ]
    return torch.cat(parts, dim=2)


def _attended(
    queries: torch.Tensor,
    real: tuple[torch.Tensor, torch.Tensor],
    own: Sequence[tuple[torch.Tensor, torch.Tensor]],
    visible: torch.Tensor,
) -> torch.Tensor:
    """Attend to the real features up to each column, and to the column's own later steps."""
    scores = (queries @ real[0].transpose(-1, -2)).masked_fill(~visible, -torch.inf)
    guessed = torch.stack([(queries * keys).sum(-1) for keys, _ in own], dim=-1)
    scale = queries.shape[-1] ** -0.5
    weights = (torch.cat([scores, guessed], dim=-1) * scale).softmax(dim=-1, dtype=torch.float32)
    weights = weights.to(queries.dtype)
    found: torch.Tensor = weights[..., : scores.shape[-1]] @ real[1]
    for step, (_, values) in enumerate(own):
        found = found + weights[..., scores.shape[-1] + step, None] * values
    return found
