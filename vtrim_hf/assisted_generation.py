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
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList
from transformers.generation import CandidateGenerator, StopStringCriteria

from .compatibility import check_call
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

    Draft length, schedule and threshold are read from the draft's own `generation_config`
    (`num_assistant_tokens`, `num_assistant_tokens_schedule`, `assistant_confidence_threshold`) and
    never written back. `do_sample=False` there makes the draft greedy even when the target
    samples.

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
    ) -> None:
        self._session = session
        self._device = device
        self._input_device = input_device or device
        self._kept_ids = kept_ids.to(self._input_device) if kept_ids is not None else None
        self._vocab_size = vocab_size
        self._processors = DraftSpaceProcessors(logits_processor, self._kept_ids, vocab_size)
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
        self._proposed = 0
        self._schedule = draft_settings.num_assistant_tokens_schedule
        self._threshold = float(draft_settings.assistant_confidence_threshold or 0.0)
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
        self._proposed = 0
        most = min(self._length, self._max_length - input_ids.shape[1] - 1)
        if most <= 0:
            return input_ids, None
        ids = input_ids.to(self._input_device)
        logits = self._session.catch_up(input_ids.to(self._device), **session_inputs)
        if logits is None:
            return input_ids, None
        drawn_from: list[torch.Tensor] = []
        while True:
            scores = self._scores(ids, logits)
            if scores is None:
                break
            row = choose_rows(scores, self._sample)
            token = row if self._kept_ids is None else self._kept_ids[row]
            longer = torch.cat([ids, token], dim=1)
            if self._stop_strings is not None and bool(self._stop_strings(longer, None)[0]):
                # Left to the target, which then ends there: nothing is checked in mid-draft.
                break
            ids = longer
            self._proposed += 1
            if self._sampling_target:
                drawn_from.append(scores if self._sample else certain(scores, row))
            # The guess itself stays: undoing a draw would change the law of what is proposed.
            if self._proposed == most or int(token) in self._eos or self._unsure(scores, row):
                break
            logits = self._session.step(token.to(self._device))
        if not drawn_from:
            return ids, None
        return ids, widen(torch.stack(drawn_from, dim=1), self._kept_ids, self._vocab_size)

    def update_candidate_strategy(
        self,
        input_ids: torch.Tensor,  # noqa: ARG002  (what Transformers hands over)
        scores: torch.Tensor,  # noqa: ARG002
        num_matches: int,
    ) -> None:
        """Follow a `heuristic` schedule within this run; others leave the length alone."""
        if self._schedule in ("heuristic", "heuristic_transient") and self._proposed:
            all_accepted = num_matches == self._proposed
            self._length = self._length + 2 if all_accepted else max(1, self._length - 1)

    def _scores(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor | None:
        logits = logits.to(self._input_device)
        if not (self._sampling_target or self._processors):
            return logits
        # What is drawn and what is reported as its law must be the same float32 numbers.
        return self._processors(ids, logits.float())

    def _unsure(self, scores: torch.Tensor, row: torch.Tensor) -> bool:
        if self._threshold <= 0:
            return False
        probability = scores.float().softmax(dim=-1).gather(1, row)
        return probability.item() < self._threshold


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
