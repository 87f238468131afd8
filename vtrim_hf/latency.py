"""What one draft step costs when its head has k rows.

Three ways to say it: operations (the paper's), bytes read over a measured bandwidth, and times
measured with a real model. All give a cost F(k) and the reduction R(k) = 1 - F(k) / F(V).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from .latency_timing import preferred_multiple, time_draft_step
from .layer_sizes import LayerSizes
from .weight_costs import operations, reading_times

Kind = Literal["flops", "bytes"]


@dataclass(frozen=True)
class LatencyModel:
    """The cost of one draft step as a function of the draft vocabulary's size k.

    Make one with `eagle3`, `standalone` or `measured`.

    Attributes:
        vocab_size: V, the number of rows of the untrimmed head.
        kind: "flops", "bytes" or "measured".
        unit: of `cost`: "FLOP" or "s".
        body: cost of everything but the head, by part.
        head_sizes: sizes at which the head's cost is known, ascending; between them it is linear.
        head_costs: the head's cost at each of them, never falling.
        spread: of the timings: half the interquartile range over the median, the largest of all
            sizes; 0 for a cost that was computed.
        multiple_of: what k is best a multiple of on the device.
        settings: JSON-able facts about how the model was made.
    """

    vocab_size: int
    kind: str
    unit: str
    body: Mapping[str, float]
    head_sizes: tuple[int, ...]
    head_costs: tuple[float, ...]
    spread: float = 0.0
    multiple_of: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes, costs = self.head_sizes, self.head_costs
        if self.vocab_size < 1 or not sizes or len(sizes) != len(costs):
            raise ValueError(
                "there must be at least one token, and a cost for each head size, got "
                f"vocab_size={self.vocab_size}, {len(sizes)} sizes, {len(costs)} costs"
            )
        every = [*self.body.values(), *costs]
        if not np.all(np.isfinite(every)) or min(every) < 0 or max(every) <= 0:
            raise ValueError(f"costs must be finite, not negative and not all 0, got {every}")
        if np.any(np.diff(sizes) <= 0) or np.any(np.diff(costs) < 0):
            raise ValueError(
                "head sizes must ascend and their costs must not fall, got "
                f"{list(sizes)} and {list(costs)}"
            )

    @classmethod
    def eagle3(
        cls,
        target_config: Any,
        *,
        kind: Kind = "flops",
        vocab_size: int | None = None,
        intermediate_size: int | None = None,
        gated_mlp: bool | None = None,
        dtype: torch.dtype | str | None = None,
        batch_size: int = 1,
        bandwidth: float | None = None,
        device: torch.device | str | None = None,
    ) -> LatencyModel:
        """Model the EAGLE-3 body: one layer of the target's sizes over three of its states.

        Weights: `3d * d` to fuse the states; queries, keys and values that read `2d` numbers and
        an output projection; an MLP of three matrices, or two; `d * k` in the head.

        Args:
            target_config: the target's config; of a composite one, its text part counts.
            kind: "flops", or "bytes" for the time to read the weights.
            vocab_size: V, if it is not the config's.
            intermediate_size: the MLP's width, if it is not the config's.
            gated_mlp: whether the MLP has three matrices or two; by default as the target's.
            dtype: of the draft's weights (bytes); by default the config's, or else float32.
            batch_size: sequences in one step (bytes), which share the weights, not the logits.
            bandwidth: bytes a second (bytes); measured on `device` if not given.
            device: where the draft will run; by default the CPU.

        Raises:
            ValueError: if the config lacks a size, or for an unknown kind.

        Example:
            >>> from transformers import LlamaConfig
            >>> config = LlamaConfig(vocab_size=128256, hidden_size=4096, intermediate_size=14336,
            ...                      num_attention_heads=32, num_key_value_heads=8)
            >>> round(LatencyModel.eagle3(config).reduction(32000), 3)
            0.481
        """
        sizes = LayerSizes.from_config(target_config, intermediate_size, gated_mlp, dense=True)
        weights = {
            "fc": 3 * sizes.hidden_size**2,
            "attention": sizes.attention_weights(2 * sizes.hidden_size),
            "mlp": sizes.mlp_weights(),
        }
        found = dtype or getattr(target_config, "dtype", None) or torch.float32
        reading = (found, batch_size, bandwidth, device)
        return cls._computed("eagle3", sizes, weights, kind, vocab_size, reading)

    @classmethod
    def standalone(
        cls,
        draft_config: Any,
        *,
        kind: Kind = "flops",
        vocab_size: int | None = None,
        num_hidden_layers: int | None = None,
        intermediate_size: int | None = None,
        gated_mlp: bool | None = None,
        dtype: torch.dtype | str | None = None,
        batch_size: int = 1,
        bandwidth: float | None = None,
        device: torch.device | str | None = None,
    ) -> LatencyModel:
        """Model a draft that is a causal LM of its own: all of its layers, and the head.

        Args:
            draft_config: the draft's config.
            kind: as for `eagle3`, like everything below but the layers.
            vocab_size: V, if it is not the config's.
            num_hidden_layers: how many of its layers the draft keeps; by default all.
            intermediate_size: the MLP's width, if it is not the config's.
            gated_mlp: whether the MLP has three matrices or two.
            dtype: of the draft's weights (bytes).
            batch_size: sequences in one step (bytes).
            bandwidth: bytes a second (bytes); measured if not given.
            device: where the draft will run.

        Raises:
            ValueError: if the config lacks a size, or for an unknown kind.
        """
        sizes = LayerSizes.from_config(draft_config, intermediate_size, gated_mlp)
        layers = sizes.num_hidden_layers if num_hidden_layers is None else num_hidden_layers
        if not 1 <= layers <= sizes.num_hidden_layers:
            raise ValueError(
                f"num_hidden_layers must lie in [1, {sizes.num_hidden_layers}], got {layers}"
            )
        weights = {
            "attention": layers * sizes.attention_weights(sizes.hidden_size),
            "mlp": layers * sizes.mlp_weights(),
        }
        found = dtype or getattr(draft_config, "dtype", None) or torch.float32
        reading = (found, batch_size, bandwidth, device)
        return cls._computed("standalone", sizes, weights, kind, vocab_size, reading)

    @classmethod
    def measured(
        cls,
        model: Any,
        *,
        sizes: Sequence[int] | None = None,
        batch_size: int = 1,
        context_length: int = 64,
        rounds: int = 9,
    ) -> LatencyModel:
        """Time a real draft on its device, in its dtype.

        Each head is timed right after a step of the body, as in decoding, so that its weights come
        from memory and not from a cache that another timing filled. The sizes take turns, so that
        a machine that slows down does not slow one size alone. The medians count, smoothed so that
        more rows never cost less.

        Args:
            model: the draft, a causal LM with a linear head, where and as it will run; of a
                `TrimmedDraftForCausalLM` its `body`. For an EAGLE-3 body of full width make a
                draft with `for_target` and a vocabulary of all ids.
            sizes: head sizes to time; by default twelve up to V, evenly spread in their logarithm.
            batch_size: sequences in one step.
            context_length: tokens in the cache when the step is taken.
            rounds: how often each size is timed.

        Raises:
            ValueError: if the model has no floating-point linear head, or for sizes not in [1, V].
        """
        timing = time_draft_step(
            model, sizes=sizes, batch_size=batch_size, context_length=context_length, rounds=rounds
        )
        return cls(
            vocab_size=timing.vocab_size,
            kind="measured",
            unit="s",
            body={"rest": timing.rest},
            head_sizes=timing.sizes,
            head_costs=timing.head,
            spread=timing.spread,
            multiple_of=preferred_multiple(timing.device),
            settings={
                "body": type(model).__name__,
                "device": timing.device_name,
                "threads": torch.get_num_threads(),
                "dtype": timing.dtype,
                "batch_size": batch_size,
                "context_length": context_length,
                "rounds": rounds,
                "spreads": list(timing.spreads),
            },
        )

    @classmethod
    def _computed(
        cls,
        body: str,
        sizes: LayerSizes,
        weights: Mapping[str, int],
        kind: str,
        vocab_size: int | None,
        reading: tuple[torch.dtype | str, int, float | None, torch.device | str | None],
    ) -> LatencyModel:
        width = sizes.vocab_size if vocab_size is None else vocab_size
        device = reading[-1]
        if kind == "flops":
            costs = operations(weights, sizes.hidden_size, width)
        elif kind == "bytes":
            costs = reading_times(weights, sizes.hidden_size, width, *reading)
        else:
            raise ValueError(
                f"kind must be 'flops' or 'bytes', got {kind!r}; for times use measured(model)"
            )
        return cls(
            vocab_size=width,
            kind=kind,
            unit=costs.unit,
            body=costs.body,
            head_sizes=(0, width),
            head_costs=(0.0, costs.head),
            multiple_of=preferred_multiple(device or "cpu"),
            settings={"body": body, "layer": asdict(sizes), **costs.settings},
        )

    def cost(self, k: int) -> float:
        """Return F(k), the cost of one step with a head of k rows, in `unit`.

        Raises:
            ValueError: if k lies outside [1, V].
        """
        return float(self.costs(np.asarray([k]))[0])

    def reduction(self, k: int) -> float:
        """Return R(k) = 1 - F(k) / F(V), the share of a step's cost that is saved with k rows.

        Raises:
            ValueError: if k lies outside [1, V].
        """
        return 1.0 - self.cost(k) / self.cost(self.vocab_size)

    def costs(self, sizes: np.ndarray) -> np.ndarray:
        """Return F for an array of sizes, each of them in [1, V]."""
        wrong = sizes[(sizes < 1) | (sizes > self.vocab_size)]
        if wrong.size:
            raise ValueError(
                f"a draft vocabulary has between 1 and {self.vocab_size} tokens, got k={wrong[0]}"
            )
        return np.asarray(
            sum(self.body.values()) + np.interp(sizes, self.head_sizes, self.head_costs),
            dtype=np.float64,
        )

    def parts(self, k: int) -> dict[str, float]:
        """Return the cost of a step by part, "head" last; the sum is `cost(k)`."""
        return {**self.body, "head": self.cost(k) - sum(self.body.values())}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON types."""
        return asdict(self) | {
            "head_sizes": list(self.head_sizes),
            "head_costs": list(self.head_costs),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LatencyModel:
        """Read what `to_dict` gave.

        Raises:
            ValueError: if it is no such thing.
        """
        try:
            lists = {name: tuple(data[name]) for name in ("head_sizes", "head_costs")}
            return cls(**{**data, **lists})
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no latency model: {error}") from error
