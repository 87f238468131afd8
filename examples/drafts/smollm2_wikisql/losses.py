"""Losses in draft space: what a trimmed head can be taught is what it can say.

Labels are token ids of the target. Those outside the kept ids have no row in the head: against
logits of the target's width they would meet -inf and the loss would be infinite, so they are left
out and counted. These are pure functions of tensors; nothing here knows a model.
"""

from __future__ import annotations

import torch
from torch import nn

from .kept_ids import rows_of

IGNORED = -100


def next_token_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    kept_ids: torch.Tensor | None,
    num_items_in_batch: torch.Tensor | int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of each position's logits with the label after it.

    Args:
        logits: draft logits [batch, length, k].
        labels: token ids of the target, int64 [batch, length]; -100 marks what does not count.
        kept_ids: int64 [k], or None if all ids are kept.
        num_items_in_batch: divide the summed loss by this instead of the number of labels that
            counted, so that accumulated gradients do not depend on how the batch was split.

    Returns:
        The loss, float32 scalar, 0 if no label counts; and how many labels lie outside the kept
        ids, int64 scalar.

    Raises:
        ValueError: if there is not one label a position.
    """
    if labels.shape != logits.shape[:2]:
        raise ValueError(
            f"there must be one label for each position, got labels {list(labels.shape)} and "
            f"logits for {list(logits.shape[:2])}: pass unshifted labels and leave "
            "logits_to_keep unset"
        )
    following = labels[:, 1:].to(logits.device)
    wanted = following != IGNORED
    rows = following if kept_ids is None else rows_of(following, kept_ids)
    counted = wanted & (rows >= 0)
    total = nn.functional.cross_entropy(
        # In float32, as every causal language model of Transformers.
        logits[:, :-1].float().flatten(0, 1),
        rows.masked_fill(~counted, IGNORED).flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )
    divisor = counted.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    if isinstance(divisor, torch.Tensor):
        divisor = divisor.to(total.device)
    return total / divisor, (wanted & ~counted).sum()
