"""The ways of decoding that a measurement compares: the target alone, and with each draft."""

from __future__ import annotations

import copy
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .decoding_meter import Clocks, unwrapped

_MEMORY_MARGIN = 1.1


class DecodingWay:
    """One way of decoding; as a context manager it gives the draft its generation config back.

    Attributes:
        name: name in the report.
        target: the model whose `generate` is called.
        draft: the assistant model without wraps, None where there is none.
        arguments: arguments of `generate` that make this way.
        facts: what is run, as JSON values.
        kept: the ids that the draft can say, None when it can say all.
    """

    def __init__(
        self,
        name: str,
        target: Any,
        arguments: Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.target = target
        self.arguments = dict(arguments)
        assistant = self.arguments.get("assistant_model")
        self.draft = None if assistant is None else unwrapped(assistant)
        self.kept: frozenset[int] | None = None
        self._settings = {
            key: value for key, value in (settings or {}).items() if value is not None
        }
        if self.draft is None:
            kind = "generate_kwargs" if self.arguments else "plain"
            self.facts = {"kind": kind, **_model_facts(unwrapped(target))}
            self.facts["arguments"] = {key: repr(value) for key, value in self.arguments.items()}
            return
        kept = getattr(self.draft, "kept_ids", None)
        if kept is not None:
            self.kept = frozenset(kept.tolist())
        self._generation_config = self.draft.generation_config
        self.facts = {
            "kind": "assistant",
            **_model_facts(self.draft),
            **_drafting_facts(self._generation_config, self._settings),
        }

    def __enter__(self) -> DecodingWay:
        return self

    def __exit__(self, *_: object) -> None:
        if self.draft is not None:
            self.draft.generation_config = self._generation_config

    def reset_generation_config(self) -> None:
        """Begin a call with the draft's settings as they were given, whatever a schedule did."""
        if self.draft is not None:
            config = copy.deepcopy(self._generation_config)
            for key, value in self._settings.items():
                setattr(config, key, value)
            self.draft.generation_config = config

    @property
    def clocks(self) -> Clocks:
        """What can be clocked inside a call without taking it longer."""
        if unwrapped(self.target).device.type == "cuda":
            return "none"
        body = getattr(getattr(self.draft, "config", None), "body", None)
        return "rounds" if body == "eagle3" else "parts"

    def outside(self, proposed: Counter[int]) -> int:
        """Return how many drafted tokens are not among the kept ids."""
        if self.kept is None:
            return 0
        return sum(count for token, count in proposed.items() if token not in self.kept)


def ways(target: Any, drafts: Mapping[str, Any], **settings: Any) -> list[DecodingWay]:
    """Return one way a draft.

    Args:
        target: the target.
        drafts: models, or mappings of `generate` arguments, by name.
        **settings: fields of the drafts' generation configs during the measurement, None to leave
            a field as it is.

    Raises:
        TypeError: if a draft is neither.
    """
    found = []
    for name, draft in drafts.items():
        if not isinstance(draft, Mapping | torch.nn.Module):
            raise TypeError(
                f"{name} must be an assistant model or a mapping of generate arguments, got "
                f"{type(draft).__name__}: load it first"
            )
        arguments = draft if isinstance(draft, Mapping) else {"assistant_model": draft}
        found.append(DecodingWay(name, target, arguments, settings))
    return found


def plain_ways(target: Any, dtypes: Sequence[torch.dtype]) -> tuple[list[DecodingWay], list[str]]:
    """Return plain decoding in the target's own dtype first, then in each other that is possible.

    The target itself is never cast: to bfloat16 and back would change it.

    Returns:
        The ways, and why the dtypes that are missing are missing.
    """
    model = unwrapped(target)
    found = [DecodingWay(f"plain {dtype_name(model.dtype)}", target, {})]
    notes = []
    for dtype in dict.fromkeys(dtypes):
        if dtype == model.dtype:
            continue
        reason = _no_copy_because(model, dtype)
        if reason:
            notes.append(f"plain {dtype_name(dtype)} was not measured: {reason}")
            continue
        found.append(DecodingWay(f"plain {dtype_name(dtype)}", _cast_copy(target, dtype), {}))
    return found, notes


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return a floating-point dtype given itself or its name.

    Raises:
        ValueError: if it is no floating-point dtype of torch.
    """
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(
            f"a dtype must be a floating-point dtype of torch, got {dtype!r}: use one such as "
            "'float32' or 'bfloat16'"
        )
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without `torch.`."""
    return str(dtype).removeprefix("torch.")


def machine_facts(model: Any) -> dict[str, Any]:
    """Return what a speed depends on besides the models, as JSON values."""
    versions: dict[str, str | None] = {}
    for package in ("torch", "transformers", "vtrim-hf"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    gpu = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else None
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "device": str(model.device),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _model_facts(model: Any) -> dict[str, Any]:
    width = model.config.get_text_config().vocab_size
    return {
        "class": type(model).__name__,
        "name": str(getattr(model.config, "_name_or_path", "") or "") or None,
        "dtype": dtype_name(model.dtype),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "vocab_size": width,
        "draft_vocab_size": getattr(model.config, "draft_vocab_size", None) or width,
    }


def _drafting_facts(generation_config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    defaults = generation_config._get_default_generation_params()
    facts = {}
    for key in (
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
        "assistant_confidence_calibration",
    ):
        value = settings.get(key, getattr(generation_config, key, None))
        facts[key] = defaults.get(key) if value is None else value
    return facts


def _no_copy_because(model: Any, dtype: torch.dtype) -> str | None:
    if getattr(model, "quantization_method", None) is not None:
        return "the target is quantised"
    if len(set(getattr(model, "hf_device_map", {"": 0}).values())) > 1:
        return "the target is spread over several devices"
    size = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    free = _free_memory(model.device)
    if free is not None and size * _MEMORY_MARGIN > free:
        return f"its copy takes {size / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free"
    return None


def _free_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return None
    free = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return free[0] * 1024 if free else None


def _cast_copy(model: Any, dtype: torch.dtype) -> Any:
    """Return a copy with other parameters; buffers such as rotary frequencies stay as they are."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        if parameter.is_floating_point():
            # handed to deepcopy as already copied, so that no copy in the old dtype is ever made
            memo[id(parameter)] = torch.nn.Parameter(
                parameter.detach().to(dtype, copy=True), requires_grad=parameter.requires_grad
            )
    duplicate = copy.deepcopy(model, memo)
    unwrapped(duplicate).config.dtype = dtype
    return duplicate
