"""The loss of training a draft as it is used: several steps in a row at every column.

At step s a column at i guesses token i+s+2 from its own earlier states, as drafting does, and is
compared with the target's distribution over the kept ids at position i+s+1. Columns count at a
step as long as the text there is the assistant's. Where the target's likeliest token is none of
the kept ids there is nothing to learn: no loss, but the guess counts as missed.

Logits of both are as wide as the kept ids. Where a batch has many columns the draft's are made for
some of them at a time, and made again on the way back instead of being kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from .eagle_body import EagleBody, normed
from .eagle_unroll import unroll
from .kept_ids import rows_of
from .training_features import Features, Teacher

METRIC = "acceptance_length"

_SCORED_AT_ONCE = 512 << 20  # bytes in float32; what is made again costs a third more time

COUNTED, TAKEN, MASKED, LOSS = range(4)
"""What `UnrolledLoss.sums` holds at each step, see there."""


class UnrolledLoss(NamedTuple):
    """What one batch gives.

    Attributes:
        total: summed over columns and steps, a step weighing `decay` times the one before it,
            float32 scalar.
        sums: float32 [batch, steps, 4]: at each step the columns that count; those of them whose
            guesses up to here all are the target's likeliest tokens; those whose target's token is
            none of the kept ids; and the summed loss, unweighted.
    """

    total: torch.Tensor
    sums: torch.Tensor


def unrolled_loss(
    body: EagleBody,
    teacher: Teacher,
    inputs_embeds: torch.Tensor,
    features: Features,
    columns: torch.Tensor,
    runs: torch.Tensor,
    *,
    steps: int,
    decay: float,
) -> UnrolledLoss:
    """Unroll a draft at every column and compare it with the target.

    Args:
        body: the draft's body.
        teacher: gives the target's logits.
        inputs_embeds: the target's embeddings of tokens i + 1, [batch, length, d].
        features: of tokens i.
        columns: the positions i, int64 [batch, columns].
        runs: at how many steps each counts, int64 [batch, columns]; 0 for none.
        steps: how many tokens are drafted in each column.
        decay: weight of a step's loss against that of the step before it.
    """
    batch = columns.shape[0]
    valid = runs > 0
    # Column i + s stands where column i is after s steps: one row of the teacher serves both.
    scored = columns[valid]
    owner = torch.arange(batch, device=columns.device)[:, None].expand_as(columns)[valid]
    place = torch.zeros(batch, inputs_embeds.shape[1] + 1, dtype=torch.long, device=columns.device)
    place[owner, scored] = torch.arange(scored.numel(), device=columns.device)
    wanted = rows_of(features.top[owner, scored + 1].long(), teacher.kept_ids)
    chances = teacher.logits(features.last[owner, scored + 1]).float().softmax(-1)

    total = inputs_embeds.new_zeros((), dtype=torch.float32)
    sums = torch.zeros(batch, steps, 4, device=columns.device)
    taken = valid
    states = unroll(body, inputs_embeds, features.states, steps, columns=columns)
    for step, state in enumerate(states):
        counted = runs > step
        row = place.gather(1, (columns + step).clamp(max=place.shape[1] - 1))[counted]
        right, inside = wanted[row], wanted[row] >= 0
        of = torch.arange(batch, device=columns.device)[:, None].expand_as(columns)[counted]
        losses, hits = _compared(body, state[counted][inside], chances, row[inside], right[inside])
        total = total + decay**step * losses.sum()
        with torch.no_grad():
            hit = torch.zeros_like(inside)
            hit[inside] = hits
            so_far = torch.zeros_like(taken)
            so_far[counted] = hit
            taken = taken & so_far
            sums[:, step, COUNTED] = counted.sum(1).float()
            sums[:, step, TAKEN] = taken.sum(1).float()
            sums[:, step, MASKED].index_add_(0, of, (~inside).float())
            sums[:, step, LOSS].index_add_(0, of[inside], losses.detach())
    return UnrolledLoss(total, sums)


def _compared(
    body: EagleBody,
    states: torch.Tensor,
    chances: torch.Tensor,
    rows: torch.Tensor,
    right: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compare guesses with the target.

    Args:
        body: the draft's body.
        states: that the guesses are made from, [n, d].
        chances: the target's, [m, k].
        rows: which of them is whose, int64 [n].
        right: rows of the head that the target's likeliest tokens have, int64 [n].

    Returns:
        The loss of each guess, float32 [n], and whether it is right, bool [n].
    """
    head = body.lm_head
    at_once = max(1, _SCORED_AT_ONCE // (4 * chances.shape[1]))
    # What is more than a plain head scores in its own way.
    if rows.numel() <= at_once or type(head) is not torch.nn.Linear:
        return _losses(body.score(states), chances, rows, right)
    last = normed(states, body.norm.weight, body.midlayer.norm_eps)
    parts = [
        # The weights are given, for on the way back the module may hold others, see `in_dtype`.
        checkpoint(
            _losses_of_head,
            *(some, head.weight, head.bias, chances),
            *(of, wanted),
            use_reentrant=False,
            preserve_rng_state=False,  # nothing is drawn
        )
        for some, of, wanted in zip(
            *(numbers.split(at_once) for numbers in (last, rows, right)), strict=True
        )
    ]
    losses, hits = (torch.cat(found) for found in zip(*parts, strict=True))
    return losses, hits


def _losses_of_head(
    last: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *known: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return _losses(linear(last, weight, bias), *known)


def _losses(
    logits: torch.Tensor, chances: torch.Tensor, rows: torch.Tensor, right: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    # Twice as fast as logsumexp and a product, a sixth of a training's time: fewer passes.
    spread = logits.float().log_softmax(-1)
    losses = -torch.einsum("nk,nk->n", chances[rows], spread)
    return losses, logits.detach().argmax(-1) == right


def in_dtype(body: EagleBody, dtype: torch.dtype, **inputs: Any) -> UnrolledLoss:
    """Compute `unrolled_loss` with weights rounded to a dtype; gradients reach the body's own.

    Autocast would leave the norms' weights as they are, which costs the norms their fused form.

    Args:
        body: the draft's body.
        dtype: of all layers.
        **inputs: further arguments of `unrolled_loss`.
    """
    rounded = {
        f"body.{name}": weight.to(dtype) if weight.is_floating_point() else weight
        for name, weight in body.named_parameters()
    }
    found: UnrolledLoss = torch.func.functional_call(_Unrolled(body), rounded, (), inputs)
    return found


class _Unrolled(torch.nn.Module):
    def __init__(self, body: EagleBody) -> None:
        super().__init__()
        self.body = body

    def forward(self, **inputs: Any) -> UnrolledLoss:
        return unrolled_loss(self.body, **inputs)


def added(sums: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    """Add sums, [steps, 4]; early in a training they are of fewer steps."""
    total = sums.new_zeros(max(len(sums), len(more)), 4, device=more.device)
    total[: len(sums)] += sums.reshape(-1, 4).to(more.device)
    total[: len(more)] += more
    return total


def acceptance(sums: torch.Tensor) -> tuple[list[float], float]:
    """Return the acceptance by position, and the expected acceptance length.

    Args:
        sums: float [steps, 4], as in `UnrolledLoss`, summed over sequences.

    Returns:
        For each position s the share of columns whose guesses 0 to s all are the target's own, and
        1 + the sum of these: what a draft of so many tokens gives on average at each verification.
    """
    shares = (sums[:, TAKEN] / sums[:, COUNTED].clamp(min=1)).tolist()
    return shares, 1.0 + sum(shares)


def figures(sums: torch.Tensor, decay: float) -> dict[str, float]:
    """Return figures of sums, float64 [steps, 4].

    The loss is the mean over columns, and over steps with the weights that `decay` gives them.
    """
    shares, length = acceptance(sums)
    learnt = (sums[:, COUNTED] - sums[:, MASKED]).clamp(min=1)
    weights = decay ** torch.arange(len(sums), dtype=sums.dtype)
    return {
        "loss": float((sums[:, LOSS] / learnt * weights).sum() / weights.sum()),
        METRIC: length,
        **{f"acceptance_{step + 1}": share for step, share in enumerate(shares)},
        "masked_share": float(sums[0, MASKED] / sums[0, COUNTED].clamp(min=1)),
    }


def with_list(figures: dict[str, float]) -> dict[str, Any]:
    """Return figures with the acceptance by position as one list."""
    name = "acceptance_"
    by_position = {key: v for key, v in figures.items() if key[len(name) :].isdigit()}
    rest = {key: value for key, value in figures.items() if key not in by_position}
    return {**rest, "acceptance": list(by_position.values())}
