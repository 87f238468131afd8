"""Which tensors an operation makes, and which it keeps for the way back: memory, without a clock.

Peaks of memory differ by machine and allocator; shapes do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Made(TorchDispatchMode):
    """Notes the shapes of all tensors that are made inside it, on the way back, too.

    Attributes:
        shapes: (all sizes but the last multiplied, the last size).
    """

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, int]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple | list) else (out,):
            # A weight that is turned around is no new one.
            if isinstance(made, torch.Tensor) and made.numel() and made.is_contiguous():
                width = made.shape[-1] if made.ndim else 1
                self.shapes.add((made.numel() // width, width))
        return out

    def rows(self, width: int) -> set[int]:
        """How many rows of this width were made at a time."""
        return {rows for rows, other in self.shapes if other == width}

    @property
    def largest(self) -> int:
        """Numbers of the largest tensor."""
        return max(rows * width for rows, width in self.shapes)


@contextmanager
def kept_for_the_way_back() -> Iterator[dict[int, int]]:
    """Give the bytes that autograd keeps of what is computed inside, by their places."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept
