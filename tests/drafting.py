"""What the tests of assisted generation share: drafts, and runs of `generate` that are watched.

Greedy text is right whatever a draft proposes, so equal ids prove nothing about the draft. Every
run is watched instead: what was proposed, how much of it was taken, how often the target ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

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
) -> TrimmedDraftForCausalLM:
    """Cut a draft out of `model`, with all ids kept unless some are named."""
    vocab_size = vocab_size or model.config.vocab_size
    vocabulary = DraftVocabulary.from_ids(
        range(vocab_size) if ids is None else sorted(set(ids)), vocab_size=vocab_size
    )
    draft = TrimmedDraftForCausalLM.from_draft_model(model, vocabulary, layers=layers)
    draft.generation_config.num_assistant_tokens = length
    draft.generation_config.assistant_confidence_threshold = threshold
    return draft


@dataclass
class Run:
    """One watched run of `generate`.

    Attributes:
        output: what `generate` returned.
        prompt: the prompt, int64 [1, length].
        widths: tokens that each forward of the target read.
        proposals: ids that were proposed, one list a round.
        proposed_scores: the scores handed over with them, one tensor or None a round.
        generators: the candidate generators, one a run of `generate`.
    """

    output: Any
    prompt: torch.Tensor
    widths: list[int] = field(default_factory=list)
    proposals: list[list[int]] = field(default_factory=list)
    proposed_scores: list[torch.Tensor | None] = field(default_factory=list)
    generators: list[Any] = field(default_factory=list)

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
    target: Any, draft: Any, prompt: torch.Tensor, *, base: Any = None, **settings: Any
) -> Run:
    """Run `target.generate(prompt, assistant_model=draft)` and watch it.

    Args:
        target: what `generate` is called on.
        draft: a trimmed draft.
        prompt: int64 [1, length].
        base: the model inside `target` whose forwards count, if `target` wraps one.
        **settings: for `generate`.
    """
    run = Run(None, prompt)
    original = draft.make_candidate_generator

    def make_candidate_generator(**call: Any) -> Any:
        generator = original(**call)
        run.generators.append(generator)
        fetch = generator.get_candidates

        def get_candidates(input_ids: torch.Tensor, **inputs: Any) -> Any:
            ids, scores = fetch(input_ids, **inputs)
            run.proposals.append(ids[0, input_ids.shape[1] :].tolist())
            run.proposed_scores.append(scores)
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
