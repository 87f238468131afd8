"""Drafting inside `target.generate(assistant_model=draft)`, and the one hook into Transformers.

The hook wraps `GenerationMixin._get_candidate_generator`: a model that carries
`make_candidate_generator` gets its own generator, everything else goes the usual way untouched. The
marker is an attribute, not a class, so that drafts of the installed package and drafts that brought
this code along from a repository work side by side.

The loop stays in draft space: hidden state, k logits, choice, kept id, next step. A tensor of the
target's width is made once a round when sampling, never when greedy, unless the user asked for a
processor that looks at ids. This module knows nothing about what kind of body drafts.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList
from transformers.generation import CandidateGenerator, StopStringCriteria

from .compatibility import check_call
from .vocabulary import rows_of

HOOKED = "_get_candidate_generator"
_ORIGINAL = "_vtrim_original"

# These look at scores only, never at ids, so they give the same answer in draft space.
_ID_FREE = frozenset(
    {
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "TopHLogitsWarper",
        "MinPLogitsWarper",
        "TypicalLogitsWarper",
        "EpsilonLogitsWarper",
        "EtaLogitsWarper",
        "InfNanRemoveLogitsProcessor",
        "LogitNormalization",
    }
)


class DraftSession(Protocol):
    """What a body offers for one run of `generate`: logits in draft space, [1, k]."""

    requires_model_outputs: bool

    def catch_up(self, input_ids: torch.Tensor) -> torch.Tensor: ...

    def step(self, token: torch.Tensor) -> torch.Tensor: ...


class DraftSpaceProcessors:
    """The target's logits processors, applied to draft logits.

    Processors that look at scores alone and the repetition penalty run on k numbers. From the first
    processor on that needs the target's ids, scores are spread to V, processed, and gathered again.

    Args:
        processors: the processors of the call, in order.
        kept_ids: int64 [k] on the draft's device, or None if all V ids are kept.
        vocab_size: V.
    """

    def __init__(
        self, processors: LogitsProcessorList, kept_ids: torch.Tensor | None, vocab_size: int
    ) -> None:
        self._processors = list(processors)
        self._kept_ids = kept_ids
        self._vocab_size = vocab_size
        # A processor that looks at ids can forbid every kept one.
        self.may_forbid_all = any(type(p).__name__ not in _ID_FREE for p in self._processors)

    def __bool__(self) -> bool:
        return bool(self._processors)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Process draft scores [batch, k] that follow `input_ids` [batch, length]."""
        wide = self._kept_ids is None
        for processor in self._processors:
            kind = type(processor).__name__
            if wide or kind in _ID_FREE:
                scores = processor(input_ids, scores)
            elif kind == "RepetitionPenaltyLogitsProcessor":
                scores = self._penalise(processor, input_ids, scores)
            else:
                scores = processor(input_ids, widen(scores, self._kept_ids, self._vocab_size))
                wide = True
        if wide and self._kept_ids is not None:
            scores = scores[:, self._kept_ids]
        return scores

    def _penalise(self, processor: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        rows = rows_of(ids, self._kept_ids)  # type: ignore[arg-type]
        ignored = getattr(processor, "prompt_ignore_length", None)
        if ignored is not None:
            limit = torch.as_tensor(ignored, device=ids.device).reshape(-1, 1)
            rows = rows.masked_fill(torch.arange(ids.shape[1], device=ids.device) < limit, -1)
        said = torch.zeros(
            scores.shape[0], scores.shape[1] + 1, dtype=torch.bool, device=scores.device
        )
        # Row -1 lands in the extra column, which is cut off again.
        said.scatter_(1, rows.masked_fill(rows < 0, scores.shape[1]), True)
        penalty = processor.penalty
        penalised = torch.where(scores < 0, scores * penalty, scores / penalty)
        return torch.where(said[:, :-1], penalised, scores)


def widen(scores: torch.Tensor, kept_ids: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    """Spread scores of draft space [..., k] over the target's width [..., V], -inf elsewhere."""
    if kept_ids is None:
        return scores
    wide = scores.new_full((*scores.shape[:-1], vocab_size), -torch.inf)
    wide[..., kept_ids] = scores
    return wide


def choose_rows(scores: torch.Tensor, sample: bool) -> torch.Tensor:
    """Choose one row of the head a batch element, int64 [batch, 1], from scores [batch, k]."""
    if sample:
        return torch.multinomial(scores.softmax(dim=-1), num_samples=1)
    return scores.argmax(dim=-1, keepdim=True)


class TrimmedCandidateGenerator(CandidateGenerator):
    """Proposes tokens of one trimmed draft for one run of `generate`.

    Draft length, schedule and threshold are read from the draft's own `generation_config`
    (`num_assistant_tokens`, `num_assistant_tokens_schedule`, `assistant_confidence_threshold`) and
    never written back. `do_sample=False` there makes the draft greedy even when the target samples.

    Args:
        session: the body's side of this run.
        kept_ids: int64 [k] on the draft's device, or None if all V ids are kept.
        vocab_size: V.
        draft_settings: the draft's generation config.
        settings: the target's generation config of this call.
        logits_processor: the processors of this call.
        device: the draft's device.
        stop_strings: tells whether a text ends with a stop string, if the call has any.
    """

    def __init__(
        self,
        session: DraftSession,
        *,
        kept_ids: torch.Tensor | None,
        vocab_size: int,
        draft_settings: GenerationConfig,
        settings: GenerationConfig,
        logits_processor: LogitsProcessorList,
        device: torch.device,
        stop_strings: StopStringCriteria | None = None,
    ) -> None:
        self._session = session
        self._kept_ids = kept_ids
        self._vocab_size = vocab_size
        self._device = device
        self._processors = DraftSpaceProcessors(logits_processor, kept_ids, vocab_size)
        self._stop_strings = stop_strings
        self._max_length = settings.max_length
        self._sampling_target = bool(settings.do_sample)
        # Guesses may be dropped before a stop string only if they were not drawn at random.
        self._sample = (
            self._sampling_target
            and draft_settings.do_sample is not False
            and stop_strings is None
        )
        eos = settings.eos_token_id
        self._eos = frozenset([eos] if isinstance(eos, int) else eos or ())
        self._length = int(draft_settings.num_assistant_tokens or 0)
        self._schedule = draft_settings.num_assistant_tokens_schedule
        self._threshold = float(draft_settings.assistant_confidence_threshold or 0.0)
        self.requires_model_outputs = session.requires_model_outputs

    def get_candidates(
        self, input_ids: torch.Tensor, **session_inputs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Propose a continuation.

        Args:
            input_ids: all real tokens so far, int64 [1, length].
            session_inputs: what Transformers hands over when the body needs the target's outputs.

        Returns:
            The ids with n proposals behind them, [1, length + n], and, when the target samples, the
            scores that each proposal was drawn from in the target's width, [1, n, V].
        """
        room = self._max_length - input_ids.shape[1] - 1
        most = min(self._length, room)
        if most <= 0:
            return input_ids, None
        ids = input_ids.to(self._device)
        logits = self._session.catch_up(ids, **session_inputs)
        drawn_from: list[torch.Tensor] = []
        for position in range(most):
            # What is drawn and what is reported as its law must be the same float32 numbers.
            scores = logits.float() if self._sampling_target or self._processors else logits
            scores = self._processors(ids, scores)
            if self._processors.may_forbid_all and bool(torch.isneginf(scores).all()):
                break
            row = choose_rows(scores, self._sample)
            token = row if self._kept_ids is None else self._kept_ids[row]
            longer = torch.cat([ids, token], dim=1)
            if self._stop_strings is not None and bool(self._stop_strings(longer, None)[0]):
                # Left to the target, which then ends there: nothing is checked in mid-draft.
                break
            ids = longer
            if self._sampling_target:
                drawn_from.append(scores if self._sample else _certain(scores, row))
            if token.item() in self._eos or self._unsure(scores, row):
                break
            if position + 1 < most:
                logits = self._session.step(token)
        if not drawn_from:
            return ids, None
        return ids, widen(torch.stack(drawn_from, dim=1), self._kept_ids, self._vocab_size)

    def update_candidate_strategy(
        self, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int
    ) -> None:
        """Follow a `heuristic` schedule within this run; other schedules leave the length alone."""
        if self._schedule in ("heuristic", "heuristic_transient"):
            all_accepted = num_matches == scores.shape[1] - 1
            self._length = self._length + 2 if all_accepted else max(1, self._length - 1)

    def _unsure(self, scores: torch.Tensor, row: torch.Tensor) -> bool:
        # The guess itself stays: undoing a draw would change the law of what is proposed.
        if self._threshold <= 0:
            return False
        probability = scores.float().softmax(dim=-1).gather(1, row)
        return probability.item() < self._threshold


def _certain(scores: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """The scores of a choice made without chance: all mass on one row."""
    return torch.full_like(scores, -torch.inf).scatter_(1, row, 0.0)


def make_candidate_generator(
    draft: Any,
    session: DraftSession,
    *,
    target: Any,
    generation_config: GenerationConfig,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList | None = None,
    model_kwargs: dict[str, Any] | None = None,
    target_tokenizer: Any = None,
) -> TrimmedCandidateGenerator:
    """Check one call of `generate` and make its candidate generator.

    Raises:
        ValueError: if the call cannot be served exactly; see `compatibility.check_call`.
    """
    processors = logits_processor if logits_processor is not None else LogitsProcessorList()
    check_call(
        target,
        draft,
        input_ids=input_ids,
        generation_config=generation_config,
        logits_processor=processors,
        model_kwargs=model_kwargs,
        tokenizer=target_tokenizer,
    )
    stop_strings = None
    if generation_config.stop_strings:
        stop_strings = StopStringCriteria(target_tokenizer, generation_config.stop_strings)
    return TrimmedCandidateGenerator(
        session,
        kept_ids=draft.kept_ids,
        vocab_size=draft.config.vocab_size,
        draft_settings=draft.generation_config,
        settings=generation_config,
        logits_processor=processors,
        device=draft.device,
        stop_strings=stop_strings,
    )


def install_hook() -> None:
    """Let `generate` ask a draft that carries `make_candidate_generator` for its generator.

    Idempotent, also between the installed package and code shipped inside a repository.

    Raises:
        RuntimeError: if this Transformers has no place for the hook.
    """
    original = getattr(GenerationMixin, HOOKED, None)
    if original is None:
        raise RuntimeError(
            f"this release of Transformers has no GenerationMixin.{HOOKED}, which vtrim_hf hooks "
            "into: upgrade vtrim_hf, or install a Transformers release that its README names"
        )
    if hasattr(original, _ORIGINAL):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def with_trimmed_drafts(self: Any, *args: Any, **kwargs: Any) -> CandidateGenerator:
        given = signature.bind(self, *args, **kwargs).arguments
        own = getattr(given.get("assistant_model"), "make_candidate_generator", None)
        if own is None:
            generator: CandidateGenerator = original(self, *args, **kwargs)
            return generator
        made: CandidateGenerator = own(
            target=self,
            **{
                name: given[name]
                for name in (
                    "generation_config",
                    "input_ids",
                    "logits_processor",
                    "model_kwargs",
                    "target_tokenizer",
                )
                if name in given
            },
        )
        return made

    setattr(with_trimmed_drafts, _ORIGINAL, original)
    setattr(GenerationMixin, HOOKED, with_trimmed_drafts)


def restore_hook() -> None:
    """Take the hook out again, leaving Transformers as it was."""
    original = getattr(getattr(GenerationMixin, HOOKED, None), _ORIGINAL, None)
    if original is not None:
        setattr(GenerationMixin, HOOKED, original)
