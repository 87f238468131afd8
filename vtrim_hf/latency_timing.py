"""Timings behind `LatencyModel`: memory bandwidth, and one step of a real draft.

Nothing here decides anything; it runs things, reads the clock and returns numbers.
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from .eagle_body import EagleBody

_DEFAULT_SIZES = 12
WARM_UP = 2
# Named `past_key_values` in Transformers 5.23, `cache` from 5.24 on.
CACHE_NAMES = ("cache", "past_key_values")


@dataclass(frozen=True)
class StepTiming:
    """One draft step, timed.

    Attributes:
        vocab_size: rows of the whole head.
        sizes: head sizes that were timed, ascending.
        head: seconds for each, medians, made never to fall.
        rest: seconds for the step without its head, median.
        spreads: half the interquartile range over the median, for each size, the rest's last.
        device: where it ran.
        device_name: what that is.
        dtype: of the head's weights.
    """

    vocab_size: int
    sizes: tuple[int, ...]
    head: tuple[float, ...]
    rest: float
    spreads: tuple[float, ...]
    device: torch.device
    device_name: str
    dtype: str

    @property
    def spread(self) -> float:
        """The largest of the spreads."""
        return max(self.spreads)


def measure_bandwidth(
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    megabytes: int = 256,
    rounds: int = 7,
) -> float:
    """Measure how fast weights are read for a product with one vector, as a draft's head does.

    Args:
        device: where; by default the CPU.
        dtype: of the weights. Types that cannot be multiplied there are read as bfloat16.
        megabytes: size of the matrix, which must be well above the caches'.
        rounds: how often to measure; the median counts.

    Returns:
        Bytes a second.

    Raises:
        ValueError: for fewer than one megabyte or round.
    """
    if megabytes < 1 or rounds < 1:
        raise ValueError(f"megabytes and rounds must be at least 1, got {megabytes}, {rounds}")
    place = torch.device(device or "cpu")
    readable = dtype if dtype.is_floating_point and dtype.itemsize > 1 else torch.bfloat16
    columns = 1024
    rows = megabytes * 2**20 // (columns * readable.itemsize)
    weights = torch.ones(rows, columns, dtype=readable, device=place)
    vector = torch.ones(1, columns, dtype=readable, device=place)

    def read() -> None:
        torch.nn.functional.linear(vector, weights)

    times = [seconds_of_call(read, place) for _ in range(rounds + WARM_UP)][WARM_UP:]
    return weights.numel() * readable.itemsize / float(np.median(times))


@torch.inference_mode()
def time_draft_step(
    model: Any,
    *,
    sizes: Sequence[int] | None = None,
    batch_size: int = 1,
    context_length: int = 64,
    rounds: int = 9,
) -> StepTiming:
    """Time the head at several sizes, and one cached step without it.

    The arguments are those of `LatencyModel.measured`.

    Raises:
        ValueError: if the model has no floating-point linear head, or for arguments out of range.
    """
    weight, bias = _head(model)
    width = weight.shape[0]
    chosen = _default_sizes(width) if sizes is None else tuple(sorted(set(sizes)))
    if not chosen or chosen[0] < 1 or chosen[-1] > width:
        raise ValueError(f"head sizes must lie in [1, {width}], got {list(chosen)}")
    if min(batch_size, context_length, rounds) < 1:
        raise ValueError(
            "batch_size, context_length and rounds must be at least 1, got "
            f"{batch_size}, {context_length}, {rounds}"
        )
    device = weight.device
    state = torch.zeros(batch_size, 1, weight.shape[1], dtype=weight.dtype, device=device)
    was_training = model.training
    model.eval()
    try:
        step = _cached_step(model, batch_size, context_length)
        order = np.random.default_rng(0)
        head_times: dict[int, list[float]] = {size: [] for size in chosen}
        rest_times: list[float] = []
        for turn in range(WARM_UP + rounds):
            for size in order.permutation(chosen).tolist():
                rest = seconds_of_call(step(), device)
                head = seconds_of_call(_head_step(state, weight[:size], bias, size), device)
                if turn >= WARM_UP:
                    rest_times.append(rest)
                    head_times[size].append(head)
    finally:
        model.train(was_training)
    medians = [float(np.median(head_times[size])) for size in chosen]
    return StepTiming(
        vocab_size=width,
        sizes=chosen,
        head=tuple(never_falling(medians)),
        rest=float(np.median(rest_times)),
        spreads=tuple(spread_of(times) for times in (*head_times.values(), rest_times)),
        device=device,
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        dtype=str(weight.dtype).removeprefix("torch."),
    )


def preferred_multiple(device: torch.device | str) -> int:
    """Return what k is best a multiple of: 64 on a GPU, whose units work in tiles, and 1 else."""
    return 64 if torch.device(device).type == "cuda" else 1


def never_falling(values: Sequence[float]) -> list[float]:
    """Return the closest sequence, by least squares, that never falls."""
    # Pool adjacent violators: neighbours in the wrong order share their mean.
    blocks: list[tuple[float, int]] = []
    for value in values:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (right, right_size), (left, left_size) = blocks.pop(), blocks.pop()
            size = left_size + right_size
            blocks.append(((left * left_size + right * right_size) / size, size))
    return [mean for mean, size in blocks for _ in range(size)]


def _head(model: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the head's weights [V, d] and bias [V]."""
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        found = "no head" if head is None else type(head).__name__
        raise ValueError(
            f"only a floating-point linear head can be timed, and this model has {found}: "
            "use LatencyModel.standalone(config, kind='bytes')"
        )
    return weight, getattr(head, "bias", None)


def _default_sizes(width: int) -> tuple[int, ...]:
    spread = np.geomspace(min(64, width), width, _DEFAULT_SIZES)
    return tuple(sorted({round(size) for size in spread.tolist()}))


def _cached_step(
    model: Any, batch_size: int, context_length: int
) -> Callable[[], Callable[[], None]]:
    """Return a maker of steps: one token each, behind the same context, without the head."""
    if isinstance(model, EagleBody):
        return _eagle_step(model, batch_size, context_length)
    body = model.base_model
    if body is model:
        raise ValueError(
            f"{type(model).__name__} has no body apart from its head (base_model), so no step can "
            "be timed without the head: use LatencyModel.standalone(config, kind='bytes')"
        )
    device = model.get_input_embeddings().weight.device
    context = torch.zeros(batch_size, context_length, dtype=torch.int64, device=device)
    output = body(input_ids=context, use_cache=True)
    filled = next(output[name] for name in CACHE_NAMES if name in output)
    parameters = inspect.signature(body.forward).parameters
    cache_name = next(name for name in CACHE_NAMES if name in parameters)

    def make() -> Callable[[], None]:
        # A copy, made outside the timing, as not every cache can be rolled back by a token.
        cache = copy.deepcopy(filled)

        def step() -> None:
            body(input_ids=context[:, :1], use_cache=True, **{cache_name: cache})

        return step

    return make


def _eagle_step(
    body: EagleBody, batch_size: int, context_length: int
) -> Callable[[], Callable[[], None]]:
    """Return a maker of EAGLE-3 steps: three states fused and read, as a round begins."""
    width, packed = body.config.hidden_size, body.pack()
    shape = (batch_size, context_length, width)
    embeds = torch.zeros(shape, dtype=body.dtype, device=body.device)
    features = embeds.repeat(1, 1, 3)
    no_logits = torch.empty(0, dtype=torch.int64, device=body.device)
    filled = DynamicCache(config=body.config)
    body(embeds, features, cache=filled, logits_to_keep=no_logits)

    def make() -> Callable[[], None]:
        cache = copy.deepcopy(filled)

        def step() -> None:
            body(
                embeds[:, :1],
                features[:, :1],
                cache=cache,
                logits_to_keep=no_logits,
                packed=packed,
            )

        return step

    return make


def _head_step(
    state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, size: int
) -> Callable[[], None]:
    """Return what a draft does with its head in a step: logits, and the best of them."""

    def step() -> None:
        torch.nn.functional.linear(state, weight, None if bias is None else bias[:size]).argmax(-1)

    return step


def seconds_of_call(call: Callable[[], None], device: torch.device) -> float:
    """Return how long a call takes, its work on the device included."""
    _wait_for(device)
    start = time.perf_counter()
    call()
    _wait_for(device)
    return time.perf_counter() - start


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def spread_of(times: Sequence[float]) -> float:
    """Return half the interquartile range over the median."""
    low, middle, high = np.quantile(times, (0.25, 0.5, 0.75)).tolist()
    return float((high - low) / (2 * middle))
