"""Several linear layers that read the same numbers, as one matrix product.

For one token at a time one large product is faster than three small ones. The layers keep their
names and values, but their weights become parts of one storage, so nothing is held twice. Whoever
asks a model for its state gets copies that stand alone (`unshare`): some ways of saving drop
weights that share a storage, and say that it is all right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn


class Packed(NamedTuple):
    """Projections that read the same numbers, as one matrix: weight [out, in], bias [out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None


def packed_rows(linears: Sequence[nn.Module]) -> Packed | None:
    """Let several linear layers share one storage, row after row, and return the whole of it.

    Returns:
        None where the layers are not plain weights (adapted, quantised, hooked, offloaded, made
        inside `torch.inference_mode`) or are not alike.
    """
    weights: list[Any] = [getattr(linear, "weight", None) for linear in linears]
    for linear, weight in zip(linears, weights, strict=True):
        plain = type(linear) is nn.Linear and type(weight) is nn.Parameter
        if not plain or weight.is_meta or weight.is_inference():
            return None
        if linear._forward_pre_hooks or linear._forward_hooks:
            return None
    biased = {linear.bias is not None for linear in linears}
    if len(biased | {weight.dtype for weight in weights}) > 2 or len(biased) > 1:
        return None
    sizes = [weight.shape[0] for weight in weights]
    first = weights[0]
    place = first.storage_offset()
    for weight, size in zip(weights, sizes, strict=True):
        shared = weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not (shared and weight.storage_offset() == place and weight.is_contiguous()):
            # Weights made inside somebody's inference_mode could never be trained again.
            with torch.inference_mode(False), torch.no_grad():
                whole = torch.cat([each.detach() for each in weights])
            for linear, part in zip(linears, whole.split(sizes), strict=True):
                weight_of: Any = linear.weight
                weight_of.data = part
            first = weights[0]
            break
        place += size * first.shape[1]
    rows = first.detach().as_strided((sum(sizes), first.shape[1]), (first.shape[1], 1))
    biases: list[Any] = [linear.bias for linear in linears]
    joined = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])
    return Packed(rows, joined)


def unshare(
    module: nn.Module,  # noqa: ARG001  (what torch hands to such a hook)
    state: dict[str, Any],
    prefix: str,  # noqa: ARG001
    metadata: Any,  # noqa: ARG001
) -> None:
    """Give each tensor of a state dict a storage of its own; a hook for `state_dict`."""
    for name, tensor in state.items():
        # With keep_vars the parameters themselves are asked for.
        if isinstance(tensor, nn.Parameter) or tensor.is_meta:
            continue
        if tensor.untyped_storage().nbytes() > tensor.nbytes:
            state[name] = tensor.clone()
