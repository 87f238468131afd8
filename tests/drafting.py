"""What the tests of assisted generation share: drafts, and runs of `generate` that are watched.

Greedy text is right whatever a draft proposes, so equal ids prove nothing about the draft. Every
run is watched instead: what was proposed, how much of it was taken, how often the target ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    WatermarkingConfig,
)

from eagle_reference import EagleReference
from tiny_models import VOCAB_SIZE
from vtrim_hf.eagle_unroll import unroll
from vtrim_hf.modeling_trimmed_draft import TrimmedDraftForCausalLM
from vtrim_hf.vocabulary import DraftVocabulary


def make_draft(
    model: PreTrainedModel,
    ids: Iterable[int] | None = None,
    *,
    length: int = 4,
    threshold: float = 0.0,
    layers: int | None = None,
    vocab_size: int | None = None,
) -> Any:
    """Cut a draft out of `model`, with all ids kept unless some are named."""
    vocab_size = vocab_size or model.config.vocab_size
    vocabulary = DraftVocabulary.from_ids(
        range(vocab_size) if ids is None else sorted(set(ids)), vocab_size=vocab_size
    )
    draft = TrimmedDraftForCausalLM.from_draft_model(model, vocabulary, layers=layers)
    return _drafting(draft, length, threshold)


def _drafting(draft: Any, length: int, threshold: float) -> Any:
    draft.generation_config.num_assistant_tokens = length
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = threshold
    return draft


def make_eagle(
    target: Any,
    ids: Iterable[int] | None = None,
    *,
    length: int = 4,
    threshold: float = 0.0,
    layers: tuple[int, int, int] | None = None,
    **settings: Any,
) -> Any:
    """Make a draft of random weights that reads `target`'s states; all ids unless some are named.

    The weights are wide, as the target's are: what it says depends on all that it reads.
    """
    width = target.config.get_text_config().vocab_size
    vocabulary = DraftVocabulary.from_ids(
        range(width) if ids is None else sorted(set(ids)), vocab_size=width
    )
    draft = TrimmedDraftForCausalLM.for_target(target, vocabulary, layers, **settings)
    return _drafting(draft, length, threshold)


def teach(draft: Any, target: Any, texts: torch.Tensor, passes: int = 60, steps: int = 4) -> None:
    """Train an EAGLE-3 draft a little, on texts [n, length] that the target wrote.

    Every guess of every position is taught, `steps` in a row, as drafting makes them.
    """
    with torch.no_grad():
        found = target(texts[:, :-1], output_hidden_states=True).hidden_states
        features = torch.cat([found[i] for i in draft.config.target_layer_ids], dim=-1).float()
        embeds = target.get_input_embeddings()(texts[:, 1:]).float()
    kept = torch.arange(draft.config.vocab_size) if draft.kept_ids is None else draft.kept_ids
    rows = torch.full((draft.config.vocab_size,), -100)
    rows[kept] = torch.arange(len(kept))
    optimizer = torch.optim.Adam(draft.parameters(), lr=5e-3)
    for _ in range(passes):
        total = torch.zeros(())
        for step, state in enumerate(unroll(draft.body, embeds, features, steps)):
            logits = draft.body.score(state[:, : texts.shape[1] - 2 - step])
            labels = rows[texts[:, 2 + step :]]
            total = total + torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten()
            )
        optimizer.zero_grad()
        total.backward()
        optimizer.step()


class AddTable(LogitsProcessor):
    """A custom processor that keeps nothing but a table."""

    def __init__(self) -> None:
        self.table = torch.linspace(-2, 2, VOCAB_SIZE)[torch.randperm(VOCAB_SIZE)]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + 3 * self.table


class InPlace(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, ::2] -= 4.0
        return scores


PROCESSORS: dict[str, Any] = {
    "repetition penalty": {"repetition_penalty": 1.5},
    "repetition reward": {"repetition_penalty": 0.7},
    "no_repeat_ngram": {"no_repeat_ngram_size": 1},
    "encoder repetition": {"encoder_repetition_penalty": 4.0},
    "encoder n-gram": {"encoder_no_repeat_ngram_size": 1, "repetition_penalty": 0.5},
    "bad words": {"bad_words_ids": [[n] for n in range(0, VOCAB_SIZE, 2)]},
    "suppressed": {"suppress_tokens": list(range(0, VOCAB_SIZE, 2))},
    "suppressed at the start": {"begin_suppress_tokens": list(range(1, VOCAB_SIZE, 2))},
    "sequence bias": {"sequence_bias": [[[n], 6.0] for n in range(40, 90)]},
    "forced eos": {"forced_eos_token_id": 77, "eos_token_id": 77},
    "length penalty": {"exponential_decay_length_penalty": (4, 1.4), "eos_token_id": 77},
    "finite and normalised": {"remove_invalid_values": True, "renormalize_logits": True},
    "allowed by prefix": {"prefix_allowed_tokens_fn": lambda batch, ids: [*range(3, 99)]},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=6.0)},
    "custom": {"logits_processor": LogitsProcessorList([AddTable()])},
    "custom in place": {"logits_processor": LogitsProcessorList([InPlace()])},
    "several": {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 2,
        "suppress_tokens": [5, 6, 7],
        "logits_processor": LogitsProcessorList([AddTable()]),
    },
}
"""Settings of `generate` that change scores, for the tiny targets of `VOCAB_SIZE` ids."""


def plain_ids(target: Any, prompt: torch.Tensor, **settings: Any) -> list[int]:
    """Return what the target says by itself."""
    ids: list[int] = target.generate(prompt, **settings)[0, prompt.shape[1] :].tolist()
    return ids


@dataclass
class Run:
    """One watched run of `generate`.

    Attributes:
        output: what `generate` returned.
        prompt: the prompt, int64 [1, length].
        widths: tokens that each forward of the target read.
        proposals: ids that were proposed, one list a round.
        proposed_scores: the scores handed over with them, one tensor or None a round.
        known: how many ids were real before each round.
        generators: the candidate generators, one a run of `generate`.
        calls: what each of them was made from.
    """

    output: Any
    prompt: torch.Tensor
    widths: list[int] = field(default_factory=list)
    proposals: list[list[int]] = field(default_factory=list)
    proposed_scores: list[torch.Tensor | None] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    generators: list[Any] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list, repr=False)

    @property
    def sequences(self) -> torch.Tensor:
        ids = self.output if isinstance(self.output, torch.Tensor) else self.output.sequences
        assert isinstance(ids, torch.Tensor)
        return ids

    @property
    def new_ids(self) -> list[int]:
        ids: list[int] = self.sequences[0, self.prompt.shape[1] :].tolist()
        return ids

    @property
    def forwards(self) -> int:
        return len(self.widths)

    @property
    def proposed(self) -> int:
        return sum(map(len, self.proposals))

    @property
    def accepted(self) -> int:
        """How many proposals became text; behind them the target says one token of its own."""
        said, accepted = self.new_ids, 0
        for proposal in self.proposals:
            agreed = 0
            while agreed < min(len(proposal), len(said)) and proposal[agreed] == said[agreed]:
                agreed += 1
            accepted += agreed
            said = said[agreed + 1 :]
        return accepted

    @property
    def proposed_ids(self) -> set[int]:
        return {token for proposal in self.proposals for token in proposal}


def watch(
    target: Any,
    draft: Any,
    prompt: torch.Tensor,
    *,
    base: Any = None,
    after_round: Any = None,
    **settings: Any,
) -> Run:
    """Run `target.generate(prompt, assistant_model=draft)` and watch it.

    Args:
        target: what `generate` is called on.
        draft: a trimmed draft.
        prompt: int64 [1, length].
        base: the model inside `target` whose forwards count, if `target` wraps one.
        after_round: called with the generator and the real ids when it has made its proposals.
        **settings: for `generate`.
    """
    run = Run(None, prompt)
    original = draft.make_candidate_generator

    def make_candidate_generator(**call: Any) -> Any:
        generator = original(**call)
        run.generators.append(generator)
        run.calls.append(call)
        fetch = generator.get_candidates

        def get_candidates(input_ids: torch.Tensor, **inputs: Any) -> Any:
            ids, scores = fetch(input_ids, **inputs)
            run.proposals.append(ids[0, input_ids.shape[1] :].tolist())
            run.proposed_scores.append(scores)
            run.known.append(input_ids.shape[1])
            if after_round is not None:
                after_round(generator, input_ids)
            return ids, scores

        generator.get_candidates = get_candidates
        return generator

    def count(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        run.widths.append(ids.shape[1])

    handle = (base or target).register_forward_pre_hook(count, with_kwargs=True)
    draft.make_candidate_generator = make_candidate_generator
    try:
        run.output = target.generate(prompt, assistant_model=draft, **settings)
    finally:
        handle.remove()
        del draft.make_candidate_generator
    return run


def check_proposals(
    run: Run,
    draft: Any,
    target: Any,
    *,
    length: int = 4,
    mask: torch.Tensor | None = None,
    processed: bool = False,
) -> None:
    """Fail unless every round proposed what the plain reference of EAGLE-3 drafting proposes.

    Args:
        run: a greedy run, with threshold 0.
        draft: its draft, with an EAGLE-3 body.
        target: its target, without wraps.
        length: tokens a draft.
        mask: of the prompt, [1, length], 0 where ids are no text.
        processed: let the processors of the call shape the reference, too.
    """
    settings = run.calls[0]["generation_config"]
    eos = settings.eos_token_id
    ends = {eos} if isinstance(eos, int) else set(eos or ())
    processors = run.calls[0]["logits_processor"] if processed else None
    reference = EagleReference(draft, target)
    masked = [] if mask is None else (mask[0] == 0).nonzero()[:, 0].tolist()
    text = [at for at in range(run.sequences.shape[1]) if at not in masked]
    assert run.proposals[0] == [], "before the target has read anything there is nothing to read"
    assert len(run.proposals) == len(run.known) > 1
    for proposal, known in zip(run.proposals[1:], run.known[1:], strict=True):
        most = min(length, settings.max_length - known - 1)
        ids = run.sequences[:, [at for at in text if at < known]]
        expected = reference.proposals(ids, most, processors)
        stop = next((at + 1 for at, token in enumerate(expected) if token in ends), len(expected))
        assert proposal == expected[:stop], f"after {known} ids"


def chi_square_p(observed: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the p-value of counts against expected counts; cells expected under 5 are pooled.

    A count where nothing is expected is impossible, so p is 0.
    """
    observed, expected = observed.flatten().double(), expected.flatten().double()
    if bool((observed[expected <= 0] > 0).any()):
        return 0.0
    small = expected < 5
    cells = [(observed[~small], expected[~small])]
    if bool(expected[small].sum() > 0):
        cells.append((observed[small].sum()[None], expected[small].sum()[None]))
    seen = torch.cat([cell[0] for cell in cells])
    wanted = torch.cat([cell[1] for cell in cells])
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    freedom = torch.tensor(float(max(seen.numel() - 1, 1)), dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))
