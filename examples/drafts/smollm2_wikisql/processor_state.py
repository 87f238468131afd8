"""Whether a logits processor remembers its calls.

With a draft, Transformers calls processors also for tokens that are taken back afterwards. One
that counts its calls or walks a grammar along would then go astray, and the text with it. The
question is answered by trying a copy out: nothing here changes the processor, the models that it
holds, or a random state.
"""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

# What copying raises for open files, locks, running generators, objects of native code.
_UNCOPYABLE = (TypeError, AttributeError, RuntimeError, ValueError, OSError, pickle.PickleError)


def stateful_complaint(
    processors: Iterable[Any], input_ids: torch.Tensor | None, vocab_size: int
) -> str | None:
    """Complain about the first logits processor that remembers its calls.

    Args:
        processors: callables of ids and scores.
        input_ids: a text to try copies on, int64 [1, length]; without one nothing is tried.
        vocab_size: width of the scores.
    """
    for processor in processors if input_ids is not None else ():
        complaint = _state_of(processor, input_ids, vocab_size)
        if complaint is not None:
            name = getattr(processor, "__name__", type(processor).__name__)
            return (
                f"the logits processor {name} {complaint}: a draft makes Transformers call it for "
                "tokens that are taken back, so the text would differ; use a processor that "
                "depends on its arguments only, or leave assistant_model out"
            )
    return None


def _state_of(processor: Any, input_ids: Any, vocab_size: int) -> str | None:
    if type(processor).__name__ == "SynthIDTextWatermarkLogitsProcessor":
        return "keeps the contexts of its earlier calls"
    if type(processor).__module__.startswith("transformers."):
        return None
    # Models are shared with the copy, not copied: they may be large, and a forward leaves them be.
    shared = {id(model): model for model in _models_in(_memory_of(processor), set())}
    try:
        probe = _copy_of(processor, dict(shared))
        before = copy.deepcopy(_memory_of(probe), dict(shared))
    except _UNCOPYABLE:
        return "holds something that cannot be copied, which is taken for a state"
    scores = torch.zeros(input_ids.shape[0], vocab_size, device=input_ids.device)
    devices = [input_ids.device] if input_ids.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        probe(input_ids, scores)
    changed = not _same(before, _memory_of(probe), set())
    return "changes its own state when it is called" if changed else None


def _memory_of(value: Any) -> Any:
    """Return what an object can remember with, as containers of other objects."""
    if isinstance(value, functools.partial):
        return [_memory_of(value.func), value.args, value.keywords]
    if inspect.ismethod(value):
        return _memory_of(value.__self__)
    if inspect.isfunction(value):
        return [_cell_contents(cell) for cell in value.__closure__ or ()]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**held, **getattr(value, "__dict__", {})}


def _copy_of(processor: Any, memo: dict[int, Any]) -> Any:
    if not inspect.isfunction(processor):
        return copy.deepcopy(processor, memo)
    # `deepcopy` leaves functions as they are, with what they enclose.
    cells = tuple(
        types.CellType(copy.deepcopy(_cell_contents(cell), memo))
        for cell in processor.__closure__ or ()
    )
    twin = types.FunctionType(
        processor.__code__,
        processor.__globals__,
        processor.__name__,
        processor.__defaults__,
        cells or None,
    )
    twin.__kwdefaults__ = processor.__kwdefaults__
    return twin


def _cell_contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # Not assigned yet.
        return None


def _models_in(value: Any, seen: set[int]) -> Iterator[torch.nn.Module]:
    if id(value) in seen or isinstance(value, torch.Tensor | str | bytes | int | float | type):
        return
    seen.add(id(value))
    if isinstance(value, torch.nn.Module):
        yield value
    elif isinstance(value, dict):
        for held in value.values():
            yield from _models_in(held, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for held in value:
            yield from _models_in(held, seen)
    elif not isinstance(value, types.ModuleType):
        yield from _models_in(getattr(value, "__dict__", None), seen)


def _same(one: Any, other: Any, seen: set[tuple[int, int]]) -> bool:
    if one is other or (id(one), id(other)) in seen:
        return True
    if type(one) is not type(other):
        return False
    seen.add((id(one), id(other)))
    if hasattr(one, "shape") and hasattr(one, "dtype"):
        return one.shape == other.shape and bool(
            ((one == other) | ((one != one) & (other != other))).all()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(
            _same(left, right, seen) for left, right in zip(one, other, strict=True)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key], seen) for key in one)
    if getattr(type(one), "__eq__") is not object.__eq__:  # noqa: B009
        return bool(one == other)
    # A copy of a plain object never equals it; compare what a copy is made of instead.
    return _same(_parts(one), _parts(other), seen)


def _parts(value: Any) -> list[Any]:
    _, arguments, *rest = value.__reduce_ex__(4)
    # State, then iterators over list items and over dict items, where there are any.
    return [arguments, *rest[:1], *(list(part or ()) for part in rest[1:3])]
