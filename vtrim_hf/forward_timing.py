"""How long the target takes for one pass over some tokens, behind a warm cache."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .latency_timing import CACHE_NAMES, WARM_UP, never_falling, seconds_of_call, spread_of


@dataclass(frozen=True)
class ForwardTiming:
    """One pass of a target, timed.

    Attributes:
        tokens: numbers of new tokens, ascending.
        seconds: for each, medians, made never to fall.
        spreads: half the interquartile range over the median, for each.
        device_name: where it ran.
        dtype: of the weights.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    spreads: tuple[float, ...]
    device_name: str
    dtype: str


@torch.inference_mode()
def time_forwards(
    model: Any,
    *,
    tokens: Sequence[int],
    batch_size: int = 1,
    context_length: int = 128,
    rounds: int = 9,
) -> ForwardTiming:
    """Time a causal LM for several numbers of new tokens, logits of all of them included.

    Args:
        model: the target, where and as it will run.
        tokens: numbers of new tokens.
        batch_size: sequences in one pass.
        context_length: tokens in the cache.
        rounds: how often each is timed.

    Raises:
        ValueError: for arguments out of range.
    """
    chosen = tuple(sorted(set(tokens)))
    if not chosen or chosen[0] != 1:
        raise ValueError(f"the numbers of tokens to time must begin with 1, got {list(tokens)}")
    if min(batch_size, context_length, rounds) < 1:
        raise ValueError(
            "batch_size, context_length and rounds must be at least 1, got "
            f"{batch_size}, {context_length}, {rounds}"
        )
    device = model.get_input_embeddings().weight.device
    was_training = model.training
    model.eval()
    try:
        make = _cached_pass(model, batch_size, context_length, device)
        order = np.random.default_rng(0)
        times: dict[int, list[float]] = {number: [] for number in chosen}
        for turn in range(WARM_UP + rounds):
            for number in order.permutation(chosen).tolist():
                took = seconds_of_call(make(number), device)
                if turn >= WARM_UP:
                    times[number].append(took)
    finally:
        model.train(was_training)
    return ForwardTiming(
        tokens=chosen,
        seconds=tuple(never_falling([float(np.median(times[number])) for number in chosen])),
        spreads=tuple(spread_of(times[number]) for number in chosen),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        dtype=str(model.dtype).removeprefix("torch."),
    )


def _cached_pass(
    model: Any, batch_size: int, context_length: int, device: torch.device
) -> Callable[[int], Callable[[], None]]:
    """Return a maker of passes over some tokens, each behind the same context."""
    context = torch.zeros(batch_size, context_length, dtype=torch.int64, device=device)
    output = model(input_ids=context, use_cache=True)
    filled = next(output[name] for name in CACHE_NAMES if name in output)
    parameters = inspect.signature(model.forward).parameters
    cache_name = next(name for name in CACHE_NAMES if name in parameters)

    def make(number: int) -> Callable[[], None]:
        # A copy, made outside the timing, as not every cache can be rolled back by a token.
        cache = copy.deepcopy(filled)
        new = torch.zeros(batch_size, number, dtype=torch.int64, device=device)

        def run() -> None:
            model(input_ids=new, use_cache=True, **{cache_name: cache})

        return run

    return make
