"""Costs that are computed from numbers of weights: operations, or the time to read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .latency_timing import measure_bandwidth


@dataclass(frozen=True)
class WeightCosts:
    """What one step costs, by part.

    Attributes:
        unit: "FLOP" or "s".
        body: cost of each part but the head.
        head: cost of the whole head.
        settings: JSON-able facts that the costs rest on.
    """

    unit: str
    body: Mapping[str, float]
    head: float
    settings: Mapping[str, Any]


def operations(weights: Mapping[str, int], hidden_size: int, vocab_size: int) -> WeightCosts:
    """Count two operations a weight, a product and a sum, as the paper does.

    Args:
        weights: number of weights in each part of the body.
        hidden_size: d, numbers that the head reads.
        vocab_size: V, rows of the head.
    """
    body = {part: 2.0 * number for part, number in weights.items()}
    return WeightCosts("FLOP", body, 2.0 * hidden_size * vocab_size, {})


def reading_times(
    weights: Mapping[str, int],
    hidden_size: int,
    vocab_size: int,
    dtype: torch.dtype | str,
    batch_size: int,
    bandwidth: float | None,
    device: torch.device | str | None,
) -> WeightCosts:
    """Give the seconds in which a step's weights are read, which is what bounds small batches.

    The sequences of a batch share the weights; each has its own logits, written and read once.

    Args:
        weights: number of weights in each part of the body.
        hidden_size: d, numbers that the head reads.
        vocab_size: V, rows of the head.
        dtype: of the weights, as torch's or by name.
        batch_size: sequences in one step.
        bandwidth: bytes a second; measured on `device` if None.
        device: where to measure; the CPU if None.

    Raises:
        ValueError: for an unknown dtype, or a batch size or bandwidth that is not positive.
    """
    weight_type = named_dtype(dtype)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    speed = measure_bandwidth(device, weight_type) if bandwidth is None else float(bandwidth)
    if not speed > 0:
        raise ValueError(f"bandwidth is in bytes a second and above 0, got {bandwidth}")
    a_number = weight_type.itemsize / speed
    settings = {
        "dtype": str(weight_type).removeprefix("torch."),
        "batch_size": batch_size,
        "bandwidth": speed,
        "bandwidth_measured": bandwidth is None,
    }
    body = {part: number * a_number for part, number in weights.items()}
    head = vocab_size * (hidden_size + 2 * batch_size) * a_number
    return WeightCosts("s", body, head, settings)


def named_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """Return a torch dtype given as such or by name.

    Raises:
        ValueError: for a name that is none.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtype must be one of torch's, such as 'bfloat16', got {dtype!r}")
    return found
