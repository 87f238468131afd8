"""The last of a training: the draft's confidence is fitted to what the target takes of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from .calibrating import NothingProposedError, calibrate_confidence

_NEW_TOKENS = 64


def calibrate_on_held_out(
    draft: Any, target: Any, sequences: Any, prompts: int
) -> dict[str, Any] | None:
    """Calibrate a draft on the beginnings of held-out sequences, see `calibrate_confidence`.

    Nothing changes until somebody sets a threshold, which then means a probability.

    Args:
        draft: trained, in the dtype that it is saved in.
        target: its target, on any device; the draft comes back to its own.
        sequences: items as of `TrainingSequences`; what comes before an answer is a prompt.
        prompts: how many at most.

    Returns:
        What was found, or why nothing could be; None if there was no prompt, or nothing was
        proposed.
    """
    found: list[torch.Tensor] = []
    for at in range(len(sequences)):
        item = sequences[at]
        start = int(np.argmax(item["assistant_mask"]))  # a sequence has an answer
        if start:
            found.append(torch.from_numpy(item["input_ids"][:start].astype(np.int64))[None])
        if len(found) == prompts:
            break
    if not found:
        return None
    place = draft.device
    try:
        done = calibrate_confidence(
            target,
            draft.to(target.device),
            [{"input_ids": ids} for ids in found],
            max_new_tokens=_NEW_TOKENS,
        )
    except NothingProposedError:  # where every answer is a word or two
        return None
    except (ValueError, RuntimeError) as error:  # out of memory, too: the training is worth more
        return {"skipped": str(error)}
    finally:
        draft.to(place)
    return {"prompts": len(found), **asdict(done)}
