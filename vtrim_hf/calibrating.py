"""Fitting a draft's confidence to what its target really takes.

The draft proposes on some prompts, the target decides, and a line between the log-odds of the
draft's softmax and those of being accepted is fitted by logistic regression. It becomes a setting
of the draft (`assistant_confidence_calibration`), and with it the threshold of the confidence rule
is a probability that means what it says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from .compatibility import check_call, check_loaded, check_pair, unwrap
from .confidence import CALIBRATION, ConfidenceRule, calibrated, log_odds
from .decoding_prompts import prepare_prompts
from .draft_length import DraftLength
from .kept_ids import whole_number

_ROUNDS = 100
_CLOSE = 1e-10


class NothingProposedError(ValueError):
    """There is nothing to calibrate on: the draft proposed nothing."""


@dataclass(frozen=True)
class Calibration:
    """A calibration and what it was found on.

    Attributes:
        slope: of the line between log-odds.
        offset: of the line.
        proposals: draft tokens that the target decided on.
        accepted: how many of them it took.
        log_loss_before: mean -log of the probability given to what happened, in nats, without it.
        log_loss_after: the same with it, on the same proposals.
    """

    slope: float
    offset: float
    proposals: int
    accepted: int
    log_loss_before: float
    log_loss_after: float


def calibrate_confidence(
    target: Any,
    draft: Any,
    prompts: Iterable[Any],
    *,
    tokenizer: Any = None,
    max_new_tokens: int = 128,
    num_assistant_tokens: int | None = None,
    raw: bool = False,
) -> Calibration:
    """Calibrate a draft on greedy runs of its target, and set the calibration in the draft.

    Of every round the proposals up to and including the first refusal count: only these were
    decided on. Calibrate on prompts like those to come; a few thousand proposals are plenty.

    Args:
        target: the model that decides.
        draft: a trimmed draft; its `generation_config` gets `assistant_confidence_calibration`.
        prompts: texts, conversations, token ids or model inputs, see `prepare_prompts`.
        tokenizer: needed for texts and conversations.
        max_new_tokens: tokens generated for each prompt, unless it ends before.
        num_assistant_tokens: proposals a round; the draft's own setting if None.
        raw: take texts as they are instead of as a user's message.

    Raises:
        TypeError: if the target is no loaded model, or the draft is not trimmed.
        ValueError: if the pair does not fit, a prompt does not, or nothing was proposed.
    """
    check_loaded(target, "target")
    inner = unwrap(draft)
    if not hasattr(inner, "make_candidate_generator"):
        raise TypeError(
            f"the draft must be a TrimmedDraftForCausalLM, got {type(inner).__name__}: others "
            "have no calibration to set"
        )
    check_pair(target, inner)
    model = unwrap(target)
    most = num_assistant_tokens
    if most is None:
        most = inner.generation_config.num_assistant_tokens
    most = whole_number(most, "num_assistant_tokens")
    if most < 1:
        raise ValueError(
            f"num_assistant_tokens must be at least 1, got {most}: nothing is drafted"
        )
    check_call(target, inner, do_sample=False)
    inputs = prepare_prompts(
        prompts, tokenizer, raw=raw, device=model.device, max_new_tokens=max_new_tokens
    )
    record = _Record()

    def recorded(**call: Any) -> Any:
        generator = type(inner).make_candidate_generator(inner, **call)
        # The last one of a round is not asked about.
        generator.length = DraftLength(int(most) + 1)
        generator.confidence = record
        record.listen(generator)
        return generator

    with ExitStack() as stack:
        for module in [*model.modules(), *inner.modules()]:
            if module.training:
                stack.callback(setattr, module, "training", True)
                module.training = False
        stack.callback(delattr, inner, "make_candidate_generator")
        inner.make_candidate_generator = recorded
        for one in inputs:
            target.generate(
                **one, assistant_model=draft, max_new_tokens=max_new_tokens, do_sample=False
            )
    if not record.accepted:
        raise NothingProposedError(
            f"the draft proposed nothing on {len(inputs)} prompts, so there is nothing to go by: "
            "allow more max_new_tokens or take other prompts"
        )
    slope, offset = fit_calibration(record.probabilities, record.accepted)
    setattr(inner.generation_config, CALIBRATION, [slope, offset])
    return Calibration(
        slope=slope,
        offset=offset,
        proposals=len(record.accepted),
        accepted=sum(record.accepted),
        log_loss_before=log_loss(record.probabilities, record.accepted),
        log_loss_after=log_loss(record.probabilities, record.accepted, slope, offset),
    )


def fit_calibration(
    probabilities: Sequence[float], accepted: Sequence[bool], *, ridge: float = 1.0
) -> tuple[float, float]:
    """Fit P(accepted) = sigmoid(slope * logit(p) + offset) by penalised maximum likelihood.

    Args:
        probabilities: what the draft's softmax gave each proposal.
        accepted: whether the target took it, one for each.
        ridge: pulls towards slope 1 and offset 0, as strongly as so many undecided observations;
            it keeps the fit finite where all or none were accepted.

    Returns:
        Slope, at least 0, and offset.

    Raises:
        ValueError: if there is not one outcome a probability, none at all, or a number is no
            probability.

    Example:
        >>> slope, offset = fit_calibration([0.9, 0.8, 0.95, 0.6], [True, False, True, False])
        >>> slope > 0
        True
    """
    if len(probabilities) != len(accepted) or not len(accepted):
        raise ValueError(
            "there must be one outcome for each probability, and at least one, got "
            f"{len(probabilities)} probabilities and {len(accepted)} outcomes"
        )
    wrong = [p for p in probabilities if not 0.0 <= p <= 1.0]
    if wrong or ridge <= 0:
        raise ValueError(
            f"probabilities must lie in [0, 1] and ridge above 0, got {wrong[:1] or ridge}"
        )
    odds = torch.tensor([log_odds(p) for p in probabilities], dtype=torch.float64)
    taken = torch.tensor([bool(a) for a in accepted], dtype=torch.float64)
    design = torch.stack([odds, torch.ones_like(odds)], dim=1)
    line = _newton(design, taken, torch.tensor([1.0, 0.0], dtype=torch.float64), ridge)
    if line[0] < 0:
        # Surer and more often wrong: then the draft's softmax says nothing.
        line = torch.stack(
            [line.new_zeros(()), _newton(design[:, 1:], taken, line[1:] * 0, ridge)[0]]
        )
    return float(line[0]), float(line[1])


def log_loss(
    probabilities: Sequence[float],
    accepted: Sequence[bool],
    slope: float = 1.0,
    offset: float = 0.0,
) -> float:
    """Return the mean -log of the probability that was given to what happened, in nats."""
    losses = []
    for probability, taken in zip(probabilities, accepted, strict=True):
        given = calibrated(probability, slope, offset)
        losses.append(-math.log(max(given if taken else 1.0 - given, _CLOSE)))
    return sum(losses) / len(losses)


def _newton(
    design: torch.Tensor, taken: torch.Tensor, prior: torch.Tensor, ridge: float
) -> torch.Tensor:
    """Minimise the logistic loss of `design @ line` plus ridge / 2 * |line - prior|^2."""
    line = prior.clone()

    def loss(at: torch.Tensor) -> torch.Tensor:
        score = design @ at
        misfit = torch.nn.functional.softplus(score) - taken * score
        return misfit.sum() + ridge / 2 * (at - prior).square().sum()

    now = loss(line)
    for _ in range(_ROUNDS):
        expected = (design @ line).sigmoid()
        slope = design.T @ (expected - taken) + ridge * (line - prior)
        weighted = design * (expected * (1 - expected))[:, None]
        bend = design.T @ weighted + ridge * torch.eye(len(line), dtype=line.dtype)
        step = torch.linalg.solve(bend, slope)
        # Far from the optimum a whole step may overshoot.
        while loss(line - step) > now and step.abs().max() > _CLOSE:
            step = step / 2
        line = line - step
        now = loss(line)
        if step.abs().max() <= _CLOSE:
            break
    return line


class _Record(ConfidenceRule):
    """Never in doubt; writes down what it was asked, and what became of it."""

    def __init__(self) -> None:
        super().__init__(threshold=0.0)
        self.probabilities: list[float] = []
        self.accepted: list[bool] = []
        self._asked: list[float] = []
        self._proposed: list[int] = []
        self._start = 0

    def doubts(self, probability: float) -> bool:
        self._asked.append(probability)
        return False

    def listen(self, generator: Any) -> None:
        """Follow the rounds of one candidate generator."""
        fetch, update = generator.get_candidates, generator.update_candidate_strategy

        def get_candidates(input_ids: torch.Tensor, **inputs: Any) -> Any:
            self._asked = []
            ids, scores = fetch(input_ids, **inputs)
            self._start = input_ids.shape[1]
            self._proposed = ids[0, self._start :].tolist()
            return ids, scores

        def update_candidate_strategy(input_ids: torch.Tensor, scores: Any, matches: int) -> None:
            self._judge(input_ids[0, self._start :].tolist())
            update(input_ids, scores, matches)

        generator.get_candidates = get_candidates
        generator.update_candidate_strategy = update_candidate_strategy

    def _judge(self, said: list[int]) -> None:
        # What was said ends with the target's own word in the place of the first refusal. What
        # Transformers counts as matches would be cut once more where the text ends.
        for probability, ours, theirs in zip(self._asked, self._proposed, said, strict=False):
            self.probabilities.append(probability)
            self.accepted.append(ours == theirs)
