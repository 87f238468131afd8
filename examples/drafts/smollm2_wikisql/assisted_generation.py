"""Drafting inside `target.generate(assistant_model=draft)`, and the one hook into Transformers.

The hook wraps `GenerationMixin._get_candidate_generator`: a model that carries
`make_candidate_generator` gets its own generator, everything else goes the usual way untouched.
The marker is an attribute, not a class, so that drafts of the installed package and drafts that
brought this code along from a repository work side by side.

The loop stays in draft space: hidden state, k logits, choice, kept id, next step. A tensor of the
target's width is made once a round when sampling, never when greedy, unless the user asked for a
processor that looks at ids. This module knows nothing about what kind of body drafts.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList
from transformers.generation import CandidateGenerator, StopStringCriteria

from .compatibility import check_call
from .confidence import confidence_rule
from .draft_length import draft_length
from .draft_space import DraftSpaceProcessors, certain, choose_rows, widen

__all__ = [
    "DraftSession",
    "DraftSpaceProcessors",
    "TrimmedCandidateGenerator",
    "choose_rows",
    "install_hook",
    "make_candidate_generator",
    "restore_hook",
    "widen",
]

HOOKED = "_get_candidate_generator"
_ORIGINAL = "_vtrim_original"


class DraftSession(Protocol):
    """What a body offers for one run of `generate`: logits in draft space, [1, k].

    A body with `requires_model_outputs` is handed the target's outputs by Transformers, as keyword
    arguments of `catch_up`, and names in `model_kwargs_overrides` what the target's forward needs
    to be asked for. It answers None while there is nothing to draft from.
    """

    requires_model_outputs: bool

    def catch_up(self, input_ids: torch.Tensor, **inputs: Any) -> torch.Tensor | None: ...

    def step(self, token: torch.Tensor) -> torch.Tensor: ...


class TrimmedCandidateGenerator(CandidateGenerator):
    """Proposes tokens of one trimmed draft for one run of `generate`.

    How many tokens it proposes is set in the draft's own `generation_config`, which is never
    written: `num_assistant_tokens` and `num_assistant_tokens_schedule` (`draft_length.py`),
    `assistant_confidence_threshold` and `assistant_confidence_calibration` (`confidence.py`).
    `do_sample=False` there makes the draft greedy even when the target samples.

    Tokens are chosen where the prompt is, for there the processors' own tensors are too; the
    session runs where the draft is.

    Args:
        session: the body's side of this run.
        kept_ids: int64 [k], or None if all V ids are kept.
        vocab_size: V.
        draft_settings: the draft's generation config.
        settings: the target's generation config of this call.
        logits_processor: the processors of this call.
        device: the draft's device.
        input_device: the prompt's device; the draft's own if not given.
        stop_strings: tells whether a text ends with a stop string, if the call has any.
        clock: seconds from some start, for the schedule `adaptive`.

    Attributes:
        length: the schedule of this run.
        confidence: what ends a draft early; None if nothing does.
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
        input_device: torch.device | None = None,
        stop_strings: StopStringCriteria | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._session = session
        self._device = device
        self._input_device = input_device or device
        self._kept_ids = kept_ids.to(self._input_device) if kept_ids is not None else None
        self._vocab_size = vocab_size
        self._processors = DraftSpaceProcessors(logits_processor, self._kept_ids, vocab_size)
        self._stop_strings = stop_strings
        # Only these look at the text while it is drafted.
        self._text_matters = bool(self._processors) or stop_strings is not None
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
        self.length = draft_length(draft_settings, sampling=self._sampling_target, clock=clock)
        self.confidence = confidence_rule(draft_settings)
        self.requires_model_outputs = session.requires_model_outputs
        self.model_kwargs_overrides = getattr(session, "model_kwargs_overrides", {})

    def get_candidates(  # type: ignore[override]
        self, input_ids: torch.Tensor, **session_inputs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Propose a continuation.

        Args:
            input_ids: all real tokens so far, int64 [1, length].
            session_inputs: what Transformers hands over when the body needs the target's outputs.

        Returns:
            The ids with n proposals behind them, [1, length + n], and, when the target samples,
            the scores that each proposal was drawn from in the target's width, [1, n, V].
        """
        self.length.asked()
        most = min(self.length.current, self._max_length - input_ids.shape[1] - 1)
        tokens: list[torch.Tensor] = []
        drawn_from: list[torch.Tensor] = []
        if most > 0:
            logits = self._session.catch_up(input_ids.to(self._device), **session_inputs)
            if logits is not None:
                if self.confidence is not None:
                    self.confidence.begin()
                self._draft(input_ids.to(self._input_device), logits, most, tokens, drawn_from)
        self.length.handed_over(most, len(tokens))
        if not tokens:
            return input_ids, None
        ids = torch.cat([input_ids.to(self._input_device), *tokens], dim=1)
        if not drawn_from:
            return ids, None
        return ids, widen(torch.stack(drawn_from, dim=1), self._kept_ids, self._vocab_size)

    def _draft(
        self,
        text: torch.Tensor,
        logits: torch.Tensor,
        most: int,
        tokens: list[torch.Tensor],
        drawn_from: list[torch.Tensor],
    ) -> None:
        while True:
            scores = self._scores(text, logits)
            if scores is None:
                return
            row = choose_rows(scores, self._sample)
            token = row if self._kept_ids is None else self._kept_ids.take(row)
            if self._text_matters:
                text = torch.cat([text, token], dim=1)
            if self._stop_strings is not None and bool(self._stop_strings(text, None)[0]):
                # Left to the target, which then ends there: nothing is checked in mid-draft.
                return
            if not tokens:
                self.length.first_chosen()
            tokens.append(token)
            if self._sampling_target:
                drawn_from.append(scores if self._sample else certain(scores, row))
            # The guess itself stays: undoing a draw would change the law of what is proposed.
            if len(tokens) == most or self._ends(scores, row, token):
                return
            logits = self._session.step(token.to(self._device))

    def update_candidate_strategy(
        self,
        input_ids: torch.Tensor,  # noqa: ARG002  (what Transformers hands over)
        scores: torch.Tensor,  # noqa: ARG002
        num_matches: int,
    ) -> None:
        """Tell the schedule of this run how many of the last proposals were accepted."""
        self.length.checked(int(num_matches))

    def _scores(self, text: torch.Tensor, logits: torch.Tensor) -> torch.Tensor | None:
        # What is drawn and what is reported as its law must be the same float32 numbers; and the
        # largest of them is found several times faster than of a half-precision row.
        scores = logits.to(self._input_device, torch.float32)
        return self._processors(text, scores) if self._processors else scores

    def _ends(self, scores: torch.Tensor, row: torch.Tensor, token: torch.Tensor) -> bool:
        if self.confidence is None:
            return bool(self._eos) and int(token) in self._eos
        # Asked for before the first number is waited for.
        probability = scores.softmax(dim=-1).gather(1, row)
        if self._eos and int(token) in self._eos:
            return True
        return self.confidence.doubts(probability.item())


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
        input_device=input_ids.device,
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
