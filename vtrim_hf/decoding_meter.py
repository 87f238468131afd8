"""What one `generate` call spends, and where: tokens drafted and accepted, seconds by part.

`metered` watches a single call from outside. It asks the target for its candidate generator as
Transformers would, counts what that generator proposes and what the target takes, and clocks the
models by forward hooks. It knows nothing about which draft it watches: a trimmed one, a plain
causal LM, prompt lookup. Everything it puts in place is gone when the `with` block ends, however
it ends.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from transformers import GenerationMixin

PARTS = ("draft_forward", "draft_head", "draft_other", "prefill", "verification", "rest")
"""Where the time of a call goes; the parts exclude each other and sum to the whole.

`draft_forward` is the draft without its head, `draft_other` is drafting outside both; `prefill` is
the target's first forward, `verification` its later ones; `rest` is everything else in `generate`.
"""

Clocks = Literal["parts", "rounds", "none"]
"""What is clocked inside a call: every part, drafting as a whole and the target, or nothing."""

_DRAFT_PARTS = PARTS[:3]
_HOOK = "_get_candidate_generator"


@dataclass
class CallTally:
    """What was seen during one call.

    Attributes:
        seconds: wall-clock time of the call.
        parts: seconds by part (`PARTS`); all zero when nothing was clocked. Where only rounds
            were, `draft_other` has all of the drafting.
        target_forwards: forward passes of the target, the prefill included.
        verified_drafts: rounds in which the target checked at least one draft token.
        drafted: drafted[i] is how many drafts had a token at position i.
        accepted: accepted[i] is how many drafts had their token at position i accepted.
        step_seconds: time spent drafting in all rounds but the first that drafts, in which the
            draft reads the prompt: for an EAGLE-3 draft the second round.
        step_tokens: tokens drafted in that time.
        proposed: how often each token id was drafted.
    """

    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    target_forwards: int = 0
    verified_drafts: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    step_seconds: float = 0.0
    step_tokens: int = 0
    proposed: Counter[int] = field(default_factory=Counter)

    def add_round(self, draft: list[int], said: list[int]) -> None:
        """Count one round: the drafted ids, and the ids that the target then said in their place.

        The accepted tokens are the common beginning of the two. What `generate` calls matches is
        not used: it is cut at the end of the text, where an accepted EOS does not count.
        """
        if not draft:
            return
        agreed = 0
        for ours, theirs in zip(draft, said, strict=False):
            if ours != theirs:
                break
            agreed += 1
        self.verified_drafts += 1
        self.proposed.update(draft)
        missing = len(draft) - len(self.drafted)
        self.drafted.extend([0] * missing)
        self.accepted.extend([0] * missing)
        for position in range(len(draft)):
            self.drafted[position] += 1
        for position in range(agreed):
            self.accepted[position] += 1

    def take_parts(self, clocked: CallTally) -> None:
        """Take from a call with all clocks what this one, with fewer, could not tell.

        Where rounds were clocked here, the other call only tells how drafting divides.
        """
        if not any(self.parts.values()):
            self.parts = dict(clocked.parts)
            self.step_seconds, self.step_tokens = clocked.step_seconds, clocked.step_tokens
            return
        whole = sum(clocked.parts[part] for part in _DRAFT_PARTS)
        drafting = self.parts["draft_other"]
        if whole > 0:
            shares = {part: clocked.parts[part] / whole for part in _DRAFT_PARTS}
            self.parts |= {part: drafting * share for part, share in shares.items()}


def unwrapped(model: Any) -> Any:
    """Return the model that really generates, inside PEFT, `torch.compile` or data-parallel wraps.

    Raises:
        TypeError: if there is no model with `generate` inside.
    """
    seen = model
    while not isinstance(seen, GenerationMixin):
        if isinstance(getattr(seen, "_orig_mod", None), torch.nn.Module):
            seen = seen._orig_mod
        elif callable(getattr(seen, "get_base_model", None)):
            seen = seen.get_base_model()
        elif isinstance(getattr(seen, "module", None), torch.nn.Module):
            seen = seen.module
        else:
            raise TypeError(
                "measuring needs a Transformers model with `generate`, got "
                f"{type(model).__name__}: pass the model itself, not its name or folder"
            )
    return seen


class _PartClock:
    """Gives every moment to the innermost part that runs, so that the parts sum to the whole."""

    def __init__(self, tally: CallTally, devices: Iterable[torch.device], running: bool) -> None:
        self._tally = tally
        self._cuda = [device for device in devices if device.type == "cuda"]
        self.running = running
        self._stack = ["rest"]
        self._started = self._last = 0.0

    def _now(self) -> float:
        # CUDA works in the background: without waiting, a forward would cost its launch only
        for device in self._cuda:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    def start(self) -> None:
        self._started = self._last = self._now()

    def stop(self) -> None:
        now = self._now()
        self._tally.seconds = now - self._started
        if self.running:
            self._charge(now)

    def push(self, part: str) -> None:
        if self.running:
            self._charge(self._now())
            self._stack.append(part)

    def pop(self) -> None:
        if self.running:
            self._charge(self._now())
            self._stack.pop()

    def _charge(self, now: float) -> None:
        self._tally.parts[self._stack[-1]] += now - self._last
        self._last = now

    def drafting_seconds(self) -> float:
        return sum(self._tally.parts[part] for part in _DRAFT_PARTS)


class _Watch:
    """The hooks of one call, and how to take them off again."""

    def __init__(self, tally: CallTally, clock: _PartClock) -> None:
        self._tally = tally
        self._clock = clock
        self._drafting = False
        self._undo: list[Callable[[], None]] = []

    def close(self) -> None:
        while self._undo:
            self._undo.pop()()

    def watch_target(self, target: Any) -> None:
        present = target.__dict__.get(_HOOK)
        original = getattr(target, _HOOK)

        def get_candidate_generator(*args: Any, **kwargs: Any) -> Any:
            generator = original(*args, **kwargs)
            self._watch_generator(generator)
            return generator

        def restore() -> None:
            if present is None:
                delattr(target, _HOOK)
            else:
                setattr(target, _HOOK, present)

        setattr(target, _HOOK, get_candidate_generator)
        self._undo.append(restore)
        self._hook(target, self._target_part, drafting=False)

    def watch_draft(self, draft: Any) -> None:
        head = draft.get_output_embeddings()
        # a drafting loop may call the whole draft, or its body and head one by one
        bodies = {draft, *draft.children(), draft.base_model} - {head}
        for body in bodies:
            self._hook(body, lambda: "draft_forward", drafting=True)
        if head is not None:
            self._hook(head, lambda: "draft_head", drafting=True)

    def _target_part(self) -> str:
        self._tally.target_forwards += 1
        return "prefill" if self._tally.target_forwards == 1 else "verification"

    def _hook(self, module: Any, part: Callable[[], str], *, drafting: bool) -> None:
        # one module may be both target and draft: what it does now decides, not which it is
        def enter(_module: Any, _args: Any) -> None:
            if self._drafting is drafting:
                self._clock.push(part())

        def leave(_module: Any, _args: Any, _output: Any) -> None:
            if self._drafting is drafting:
                self._clock.pop()

        for handle in (
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave),
        ):
            self._undo.append(handle.remove)

    def _watch_generator(self, generator: Any) -> None:
        # the instance's methods are replaced, not its class: Transformers asks for `type(self)`
        fetch, update = generator.get_candidates, generator.update_candidate_strategy
        draft: list[int] = []
        length = drafts = 0

        def get_candidates(input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            nonlocal draft, length, drafts
            before = self._clock.drafting_seconds()
            with self._as_drafting():
                candidates = fetch(input_ids, *args, **kwargs)
            length = input_ids.shape[1]
            draft = candidates[0][0, length:].tolist()
            if drafts and self._clock.running:
                self._tally.step_seconds += self._clock.drafting_seconds() - before
                self._tally.step_tokens += len(draft)
            drafts += bool(draft)
            return candidates

        def update_candidate_strategy(
            input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int
        ) -> None:
            with self._as_drafting():
                update(input_ids, scores, num_matches)
            self._tally.add_round(draft, input_ids[0, length:].tolist())

        for method in (get_candidates, update_candidate_strategy):
            setattr(generator, method.__name__, method)
            self._undo.append(partial(delattr, generator, method.__name__))

    @contextmanager
    def _as_drafting(self) -> Iterator[None]:
        self._clock.push("draft_other")
        self._drafting = True
        try:
            yield
        finally:
            self._drafting = False
            self._clock.pop()


@contextmanager
def metered(target: Any, draft: Any = None, *, clocks: Clocks = "parts") -> Iterator[CallTally]:
    """Watch the one `generate` call that the `with` block makes.

    Args:
        target: the model whose `generate` is called; wrapped models are unwrapped.
        draft: the assistant model of the call, if it has one.
        clocks: what is clocked besides the whole call. Clocks inside the draft are hooks, which
            keep an EAGLE-3 draft from its short cut; on CUDA every clock waits for the device. A
            speed is measured without what slows it.

    Yields:
        The tally, complete once the block has ended.
    """
    models = [unwrapped(model) for model in (target, draft) if model is not None]
    tally = CallTally()
    clock = _PartClock(tally, {model.device for model in models}, clocks != "none")
    watch = _Watch(tally, clock)
    try:
        watch.watch_target(models[0])
        if len(models) > 1 and clocks == "parts":
            watch.watch_draft(models[1])
        clock.start()
        yield tally
        clock.stop()
    finally:
        watch.close()
