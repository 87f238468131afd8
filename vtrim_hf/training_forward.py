"""The draft's forward while it is trained: the same call computes the unrolled loss, too.

Data parallelism follows what goes through a model's `forward`, so that is where the loss is
computed. The target is at hand there, but no part of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .feature_cache import OnlineFeatures
from .training_batches import given_features
from .training_features import Features, TargetReader, Teacher
from .training_loss import in_dtype


class ForwardInputs:
    """Makes a batch into what `computing_the_loss` lets the draft's `forward` take.

    Args:
        reader: reads the target.
        device: of the draft.
        bf16: whether it computes in bfloat16.
    """

    def __init__(self, reader: TargetReader, device: torch.device, bf16: bool) -> None:
        self._reader, self._online = reader, OnlineFeatures(reader)
        self._device = device
        self._dtype = torch.bfloat16 if bf16 else torch.float32

    def inputs(self, batch: dict[str, torch.Tensor], steps: int) -> dict[str, Any]:
        """Return the arguments for a batch as `collate` makes it.

        Args:
            batch: with features or without.
            steps: tokens drafted in a row.
        """
        features = given_features(batch) or self._online.read(batch)
        states, last, top = (part.to(self._device) for part in features)
        return {
            "inputs_embeds": self._reader.embed(batch["input_ids"][:, 1:], self._device).to(
                self._dtype
            ),
            "features": Features(states.to(self._dtype), last, top),
            "columns": batch["columns"],
            "runs": batch["runs"],
            "steps": steps,
        }


@contextmanager
def computing_the_loss(draft: Any, teacher: Teacher, decay: float) -> Iterator[None]:
    """Let a draft's `forward` compute the loss when it is given columns.

    Args:
        draft: the draft, without wraps; afterwards its `forward` is its own again.
        teacher: gives the target's logits.
        decay: weight of a step's loss against that of the step before it.
    """
    if "forward" in vars(draft):  # an evaluation amid the training
        yield
        return
    plain, device = draft.forward, draft.device.type

    def forward(*args: Any, **kwargs: Any) -> Any:
        if "columns" not in kwargs:
            return plain(*args, **kwargs)
        dtype = kwargs["inputs_embeds"].dtype
        with torch.autocast(device, enabled=False):
            return in_dtype(draft.body, dtype, teacher=teacher, decay=decay, **kwargs)

    # In its dict, for a module would take what is set on it for a part of it.
    vars(draft)["forward"] = forward
    try:
        yield
    finally:
        for name in ("forward", "_original_forward"):  # the latter is accelerate's
            vars(draft).pop(name, None)
