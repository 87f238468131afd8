"""A hash that tells models apart by what decides what they say: their numbers and their config.

Answers, cached features and checkpoints of trainings carry it. It does not depend on names,
folders or devices, nor on the dtype, which is noted beside it; and it takes far less time than a
sha256 over all weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SAMPLED = 1024  # numbers of a tensor that are hashed as they are; small tensors whole
_AT_ONCE = 1 << 17  # numbers that are summed up at a time: as int64 they fit a processor's cache

# All else may decide the states, so what is not known is hashed.
_DECIDES_NOTHING = frozenset(
    {
        *("_name_or_path", "name_or_path", "transformers_version", "architectures", "auto_map"),
        *("dtype", "torch_dtype", "use_cache", "return_dict", "output_hidden_states"),
        *("output_attentions", "id2label", "label2id", "problem_type"),
        *("bos_token_id", "eos_token_id", "pad_token_id"),  # the generation config's
    }
)


def model_hash(model: PreTrainedModel) -> str:
    """Return a sha256 (hex) of a model's config, and of every weight and persistent buffer.

    Of each tensor some numbers go in as they are, and the sums of all its rows: a row that was
    trained anew is noticed wherever it stands. The sums are of the numbers' bits, as whole
    numbers, so they are the same whatever the device and the number of threads.

    Args:
        model: the model, in any dtype, on any device, or offloaded.

    Raises:
        ValueError: if its weights are nowhere, as of a model made on the device "meta".
    """
    config = model.config.get_text_config().to_dict()
    # Fields that a later Transformers adds are mostly None.
    deciding = {
        name: value
        for name, value in config.items()
        if value is not None and name not in _DECIDES_NOTHING
    }
    digest = hashlib.sha256(json.dumps(deciding, sort_keys=True, default=str).encode())
    tensors = model.state_dict()  # buffers that come from the config are not in it
    for name in sorted(tensors):
        tensor = tensors[name]
        if isinstance(tensor, torch.Tensor):
            tensor = _brought_back(model, name) if tensor.is_meta else tensor
            digest.update(f"{name} {tuple(tensor.shape)} ".encode())
            for part in _looked_at(tensor.detach()):
                digest.update(part)
    return digest.hexdigest()


def _looked_at(tensor: torch.Tensor) -> Iterator[bytes]:
    if not tensor.numel():
        return
    flat = tensor.reshape(-1)
    step = max(1, flat.numel() // _SAMPLED) | 1  # odd: an even one would stay in a few columns
    yield flat[::step].to("cpu", torch.float32).numpy().tobytes()
    width = tensor.shape[-1] if tensor.ndim else 1
    rows = flat.view(-1, width).split(max(1, _AT_ONCE // width))
    yield torch.cat([_sums(some) for some in rows]).cpu().numpy().astype("<i8").tobytes()


def _sums(rows: torch.Tensor) -> torch.Tensor:
    """Sum up the bits of float32 numbers, or whole numbers, by row; int64 [rows]."""
    # Converted and then summed: ten times as fast as a sum that converts.
    if rows.dtype == torch.bfloat16:  # the upper half of a float32
        return rows.view(torch.int16).to(torch.int64).sum(-1) * (1 << 16)
    if rows.is_floating_point():
        rows = rows.to(torch.float32).view(torch.int32)
    return rows.to(torch.int64).sum(-1)


def _brought_back(model: PreTrainedModel, name: str) -> torch.Tensor:
    """Return a tensor that accelerate keeps elsewhere until its layer runs."""
    from accelerate.utils import (  # type: ignore[import-untyped]
        align_module_device,
        has_offloaded_params,
    )

    place, _, own = name.rpartition(".")
    module = model.get_submodule(place)
    if has_offloaded_params(module):
        with align_module_device(module, torch.device("cpu")):
            tensor: torch.Tensor = getattr(module, own)
            if not tensor.is_meta:
                return tensor.detach()
    raise ValueError(
        f"{name} of {type(model).__name__} is on the device 'meta', so that nothing tells this "
        "model from others: load it with from_pretrained"
    )
