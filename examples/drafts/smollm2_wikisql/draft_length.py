"""How many tokens to draft in a round: the schedules.

`constant` is a fixed number; the heuristics of Transformers go up by two and down by one;
`adaptive` chooses the number that promises most tokens a second, by what was accepted and how
long it took in this very run. The settings are fields of the draft's own `generation_config`.
Everything counted here lives as long as one run of `generate` and is never written back. This
module knows neither models nor tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

HEURISTICS = ("heuristic", "heuristic_transient")
SCHEDULES = ("constant", *HEURISTICS, "adaptive")

ADAPTIVE_REACH = 3
"""An adaptive draft has at most so many times `num_assistant_tokens`."""

# Each round counts this much of the one after it: the last twenty or so matter.
_MEMORY = 0.95
# What is assumed before there is anything to go by, and how many rounds the assumption weighs.
_ACCEPTED, _WEIGHT = 0.8, 4.0
# A token more to check makes a verification longer by this share; and how many rounds, each a
# token longer or shorter than usual, that weighs.
_LONGER, _LONGER_WEIGHT = 0.05, 20.0
# A machine that paused has not become slow.
_OUTLIER = 3.0


def draft_length(
    settings: Any, *, sampling: bool, clock: Callable[[], float] = time.perf_counter
) -> DraftLength:
    """Make the schedule of one run of `generate`.

    Args:
        settings: the draft's generation config.
        sampling: whether the target samples. Times differ from run to run, and the number of
            draft tokens decides which random numbers are used for what: so `adaptive` then stands
            still, and the same seed gives the same text.
        clock: seconds from some start, for `adaptive`.

    Raises:
        ValueError: if `num_assistant_tokens` is no whole number from 0 on, or the schedule is
            unknown.
    """
    length = settings.num_assistant_tokens or 0
    whole = isinstance(length, int | float) and float(length).is_integer()
    if not whole or length < 0:
        raise ValueError(
            "the draft's generation_config.num_assistant_tokens must be a whole number, at least "
            f"0, got {length!r}: 0 drafts nothing"
        )
    schedule = settings.num_assistant_tokens_schedule or "constant"
    if schedule not in SCHEDULES:
        raise ValueError(
            "the draft's generation_config.num_assistant_tokens_schedule must be one of "
            f"{', '.join(SCHEDULES)}, got {schedule!r}"
        )
    if schedule in HEURISTICS:
        return HeuristicLength(int(length))
    if schedule == "adaptive" and not sampling:
        return AdaptiveLength(int(length), clock)
    return DraftLength(int(length))


class DraftLength:
    """The same number in every round; also what the other schedules have in common.

    A round is told in this order: `asked`, `first_chosen` if a token was chosen, `handed_over`,
    and, once the target has looked at it, `checked`.

    Attributes:
        current: tokens that the next round may have.
    """

    def __init__(self, length: int) -> None:
        self.current = length

    def asked(self) -> None:
        """The target wants a draft."""

    def first_chosen(self) -> None:
        """The draft has caught up with the text and chosen its first token."""

    def handed_over(self, allowed: int, drafted: int) -> None:
        """`drafted` tokens of at most `allowed` go to the target."""

    def checked(self, accepted: int) -> None:
        """The target took the first `accepted` tokens."""


class HeuristicLength(DraftLength):
    """Two more when all were accepted, one less when not, as Transformers does it."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._drafted = 0

    def handed_over(self, allowed: int, drafted: int) -> None:  # noqa: ARG002
        self._drafted = drafted

    def checked(self, accepted: int) -> None:
        if self._drafted:
            all_accepted = accepted == self._drafted
            self.current = self.current + 2 if all_accepted else max(1, self.current - 1)


class AdaptiveLength(DraftLength):
    """The number that promises most tokens a second, from 1 to `ADAPTIVE_REACH` times the first.

    A round of at most n tokens is expected to give one token of the target's own and every draft
    token that is drafted and accepted, and to take what catching up with the text, the further
    steps and the verification take. Rates are counted by position; times are those between the
    calls of `generate`, without waiting for a device.

    Args:
        length: of the first rounds, until there are times to go by.
        clock: seconds from some start.
    """

    def __init__(self, length: int, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(length)
        most = ADAPTIVE_REACH * length
        # By position: was it accepted, if all before were; was it drafted, if the one before was.
        self._accepting = _Rates(most, _ACCEPTED)
        self._drafting = _Rates(most, 1.0)
        self._catching_up = _Mean()
        self._stepping = _Mean()
        self._verifying = _Line()
        self._clock = clock
        self._rounds = self._drafts = 0
        self._allowed = self._drafted = 0
        self._begun = self._chosen = self._left = 0.0

    def asked(self) -> None:
        self._begun = self._clock()
        if self._rounds > 1:  # the target's first forward reads the prompt
            self._verifying.add(self._drafted, self._begun - self._left)
            self._choose()

    def first_chosen(self) -> None:
        self._chosen = self._clock()

    def handed_over(self, allowed: int, drafted: int) -> None:
        self._left = self._clock()
        self._rounds += 1
        self._allowed, self._drafted = allowed, drafted
        if drafted and self._drafts:  # the draft's first time to catch up is on the prompt
            self._catching_up.add(self._chosen - self._begun)
        if drafted > 1:
            self._stepping.add((self._left - self._chosen) / (drafted - 1))
        self._drafts += drafted > 0

    def checked(self, accepted: int) -> None:
        if self._drafted:
            self._accepting.add(min(self._allowed, accepted + 1), accepted)
            self._drafting.add(min(self._allowed, self._drafted + 1), self._drafted)

    def _choose(self) -> None:
        catching_up = self._catching_up.value or self._stepping.value
        stepping = self._stepping.value or self._catching_up.value
        if catching_up is None or stepping is None:
            return
        alone, longer = self._verifying.fit()
        tokens, seconds = 1.0, alone + catching_up - stepping
        drafted, accepted, best = 1.0, 1.0, 0.0
        positions = zip(self._accepting.values(), self._drafting.values(), strict=True)
        for length, (accepting, drafting) in enumerate(positions, start=1):
            accepted *= accepting
            drafted *= drafting
            tokens += accepted
            seconds += drafted * (stepping + longer)
            if seconds > 0.0 and tokens > best * seconds:
                best = tokens / seconds
                self.current = length


class _Mean:
    """A running mean that forgets; None before the first number."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._weight = 0.0

    def add(self, seconds: float) -> None:
        if self.value is None:
            self.value = seconds
        self._weight = self._weight * _MEMORY + 1.0
        self.value += (min(seconds, _OUTLIER * self.value) - self.value) / self._weight


class _Line:
    """Seconds as a line over the number of tokens, by least squares that forget."""

    def __init__(self) -> None:
        self._weight = self._n = self._s = self._nn = self._ns = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        if self._weight:
            seconds = min(seconds, _OUTLIER * self._s / self._weight)
        self._weight = self._weight * _MEMORY + 1.0
        self._n = self._n * _MEMORY + tokens
        self._s = self._s * _MEMORY + seconds
        self._nn = self._nn * _MEMORY + tokens * tokens
        self._ns = self._ns * _MEMORY + tokens * seconds

    def fit(self) -> tuple[float, float]:
        """Return the seconds of no token, and those of one more."""
        n, s = self._n / self._weight, self._s / self._weight
        spread = self._nn - self._n * n
        together = self._ns - self._n * s
        usual = _LONGER * s / (1.0 + _LONGER * n)
        longer = max(0.0, (together + _LONGER_WEIGHT * usual) / (spread + _LONGER_WEIGHT))
        return max(0.0, s - longer * n), longer


class _Rates:
    """How often something was so, by position, drawn to the rate of all positions."""

    def __init__(self, positions: int, expected: float) -> None:
        self._seen = [0.0] * positions
        self._so = [0.0] * positions
        self._expected = expected

    def add(self, seen: int, so: int) -> None:
        """Count one round: it was seen at the first `seen` positions, and so at `so` of them."""
        for position in range(len(self._seen)):
            self._seen[position] *= _MEMORY
            self._so[position] *= _MEMORY
            self._seen[position] += position < seen
            self._so[position] += position < so

    def values(self) -> list[float]:
        """Return the rate of each position."""
        overall = (sum(self._so) + _WEIGHT * self._expected) / (sum(self._seen) + _WEIGHT)
        return [
            (so + _WEIGHT * overall) / (seen + _WEIGHT)
            for seen, so in zip(self._seen, self._so, strict=True)
        ]
