"""The steps from chat data to a measured draft, as the commands and the recipes take them.

Each is one call of the library with what goes around it: models are named, their tokenizers are
proven to be one, long work goes on where it was interrupted. Nothing here knows of a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .measuring_step import REPORT_JSON, measure_draft, prompt_keys, read_prompts
from .named_models import NamedModel

if TYPE_CHECKING:
    from .batch_counting import SkippedRow
    from .latency import LatencyModel
    from .modeling_trimmed_draft import TrimmedDraftForCausalLM
    from .search_result import SearchResult
    from .token_counts import TokenCounts

__all__ = [
    "REPORT_JSON",
    "Answering",
    "count_domains",
    "make_latency",
    "measure_draft",
    "prompt_keys",
    "read_prompts",
    "search_counts",
    "trim_draft",
]


@dataclass(frozen=True)
class Answering:
    """How the target answers the data's prompts, so that its own words are counted.

    Attributes:
        beside: the answers lie beside this file, as `<its stem>.<domain>.answers.jsonl`: they are
            what a draft is trained on, too.
        limit: prompts to answer at most.
        max_new_tokens: longest answer in tokens.
        batch_size: prompts answered at once.
        dtype: of the target's weights; "auto" takes the saved one.
    """

    beside: Path
    limit: int | None = None
    max_new_tokens: int = 256
    batch_size: int = 16
    dtype: str = "auto"

    def file(self, domain: str) -> Path:
        """Return where the answers to a domain's prompts go."""
        in_file_name = re.sub(r"[^\w.-]+", "-", domain)
        return self.beside.with_name(f"{self.beside.stem}.{in_file_name}.answers.jsonl")


def count_domains(
    sources: Sequence[tuple[str, str]],
    target: NamedModel,
    *,
    answering: Answering | None = None,
    split: str | None = None,
    text_column: str | None = None,
    heldout: float = 0.2,
    strict: bool = False,
    progress: bool = True,
    on_skipped: Callable[[SkippedRow], None] | None = None,
    on_counted: Callable[[str, Any], None] | None = None,
) -> TokenCounts:
    """Count the tokens that the target must say in chat data, or those that it says itself.

    Args:
        sources: (domain, file, folder or Hub id), in order; sources of one domain are summed.
        target: whose tokens are counted.
        answering: lets the target answer the prompts; None counts the data's own answers.
        split: of data sets that have several.
        text_column: count this column's text.
        heldout: share of conversations that is kept apart.
        strict: stop at the first malformed row.
        progress: show bars on a terminal.
        on_skipped: called with the first rows that were skipped, once all is counted.
        on_counted: called with each domain and the rows that are counted for it.

    Raises:
        ValueError: as `answer_with_target` and `TokenCounts.from_dataset` document.
        FileNotFoundError: if a source does not exist; before any work.
    """
    from .chat_data import open_chat_data
    from .target_answers import answer_with_target
    from .token_counts import TokenCounts

    for _, source in sources:
        open_chat_data(source, split=split)  # so that a wrong name is noticed before any work
    tokenizer, width = target.tokenizer, target.vocab_size
    model = target.model(answering.dtype) if answering is not None else None
    parts: list[TokenCounts] = []
    skipped: list[SkippedRow] = []
    for name, source in sources:
        counted: Any = source
        if answering is not None and model is not None:
            counted = answer_with_target(
                model,
                tokenizer,
                source,
                answering.file(name),
                limit=answering.limit,
                max_new_tokens=answering.max_new_tokens,
                batch_size=answering.batch_size,
                split=split,
                strict=strict,
                progress=progress,
            )
            skipped += counted.skipped
        part = TokenCounts.from_dataset(
            {name: counted},
            tokenizer,
            vocab_size=width,
            heldout=heldout,
            split=None if answering is not None else split,
            text_column=text_column,
            strict=strict,
            progress=progress,
        )
        parts.append(part)
        skipped += part.skipped
        if on_counted is not None:
            on_counted(name, counted)
    for row in skipped:
        if on_skipped is not None:
            on_skipped(row)
    return TokenCounts.merge(*parts)


def make_latency(
    target: NamedModel,
    draft: NamedModel | None = None,
    *,
    cost: str = "flops",
    layers: int | None = None,
    mlp_width: int | None = None,
) -> LatencyModel:
    """Make the cost model of the EAGLE-3 body for a target, or of a draft that is to be cut.

    Args:
        target: the model that will verify.
        draft: the standalone draft; None for the EAGLE-3 body.
        cost: what latency is counted in: "flops", "bytes" or "measured".
        layers: first layers of the standalone draft only.
        mlp_width: of the EAGLE-3 body's MLP, if it is not the target's.

    Raises:
        ValueError: for `layers` without a draft, or `mlp_width` with one.
    """
    from .latency import LatencyModel
    from .modeling_trimmed_draft import TrimmedDraftForCausalLM
    from .vocabulary import DraftVocabulary

    kind: Literal["flops", "bytes"] = "bytes" if cost == "bytes" else "flops"
    if draft is None:
        if layers is not None:
            raise ValueError("layers are a standalone draft's: name the draft")
        if cost == "measured":
            every = DraftVocabulary.from_ids(
                range(target.vocab_size), vocab_size=target.vocab_size
            )
            sizes: dict[str, Any] = {} if mlp_width is None else {"intermediate_size": mlp_width}
            whole = TrimmedDraftForCausalLM.for_target(target.model("auto"), every, **sizes)
            return LatencyModel.measured(whole.body)
        return LatencyModel.eagle3(target.config, kind=kind, intermediate_size=mlp_width)
    if mlp_width is not None:
        raise ValueError(
            f"mlp_width is an EAGLE-3 body's, and the draft {draft} has an MLP already, got "
            f"{mlp_width}: leave one of the two out"
        )
    if cost != "measured":
        return LatencyModel.standalone(
            draft.config, kind=kind, vocab_size=target.vocab_size, num_hidden_layers=layers
        )
    small = draft.model("auto")
    if layers is not None:
        rows = small.get_output_embeddings().out_features
        every = DraftVocabulary.from_ids(range(rows), vocab_size=rows)
        # Its body has all rows of the head, and only the layers that are kept.
        small = TrimmedDraftForCausalLM.from_draft_model(small, every, layers=layers).body
    return LatencyModel.measured(small)


def search_counts(
    counts: TokenCounts,
    target: NamedModel,
    latency: LatencyModel,
    *,
    keep: Sequence[str] = (),
    preset: Literal["paper"] | None = None,
    **settings: Any,
) -> SearchResult:
    """Choose the vocabulary: most coverage for least latency.

    Args:
        counts: of the target's tokens.
        target: the model that will verify.
        latency: what a draft step costs.
        keep: texts whose tokens must stay, besides those that every draft of the target needs.
        preset: "paper" for the paper's settings; nothing is then required.
        **settings: further arguments of `search_vocabulary`; None leaves the default.

    Raises:
        ValueError: if the counts are of another tokenizer, or as `search_vocabulary` documents.
    """
    from .required_tokens import required_token_ids
    from .search import search_vocabulary
    from .vocabulary import tokenizer_fingerprint

    found = tokenizer_fingerprint(target.tokenizer)
    if counts.tokenizer_hash not in (None, found):
        raise ValueError(
            f"the counts are of the tokenizer {str(counts.tokenizer_hash)[:12]}, {target} has "
            f"{found[:12]}: count again with --target {target}"
        )
    required: Any = required_token_ids(
        target.tokenizer,
        target.generation_config,
        extra=tuple(keep),
        vocab_size=counts.vocab_size,
    )
    return search_vocabulary(
        counts,
        latency,
        # The paper requires nothing; what the user asks for is then refused, not dropped.
        required=(required if keep else ()) if preset is not None else required,
        preset=preset,
        **{name: value for name, value in settings.items() if value is not None},
    )


def trim_draft(
    draft: NamedModel,
    vocabulary: Path,
    target: NamedModel,
    *,
    layers: int | None = None,
    dtype: str = "bfloat16",
    draft_length: int | None = None,
    counts: TokenCounts | None = None,
    datasets: Iterable[str] = (),
) -> TrimmedDraftForCausalLM:
    """Cut the head of a small model to a vocabulary; nothing is trained.

    What is known of the search goes with the draft as its `coverage_metadata`.

    Args:
        draft: the small model.
        vocabulary: a folder that holds one, and `search.json` if it came out of a search.
        target: the model that will verify.
        layers: keep the first layers only.
        dtype: of the draft's weights.
        draft_length: tokens drafted a round, stored with the draft; by default the number that
            the search chose, if it chose one.
        counts: what was searched, for the tokens that are missed most.
        datasets: Hub ids of the data that was counted.

    Raises:
        ValueError: if vocabulary, target and draft are not of one tokenizer and width, or as
            `TrimmedDraftForCausalLM.from_draft_model` documents.
    """
    from .coverage_metadata import make_metadata
    from .modeling_trimmed_draft import TrimmedDraftForCausalLM
    from .search_result import SEARCH_JSON, SearchResult, chosen_draft_length
    from .vocabulary import DraftVocabulary, tokenizer_fingerprint

    kept = DraftVocabulary.load(vocabulary)
    if kept.vocab_size != target.vocab_size:
        raise ValueError(
            f"the vocabulary in {vocabulary} is for a target of width {kept.vocab_size}, {target} "
            f"has {target.vocab_size}: count and search again with --target {target}"
        )
    for role, named in (("target", target), ("draft", draft)):
        found = tokenizer_fingerprint(named.tokenizer)
        if kept.tokenizer_hash not in (None, found):
            raise ValueError(
                f"the vocabulary is of the tokenizer {str(kept.tokenizer_hash)[:12]}, the {role} "
                f"{named} has {found[:12]}: target, draft and counts must share one tokenizer"
            )
    made: TrimmedDraftForCausalLM = TrimmedDraftForCausalLM.from_draft_model(
        draft.model(dtype), kept, layers=layers
    )
    beside = vocabulary / SEARCH_JSON
    search = SearchResult.load(beside) if beside.is_file() else None
    length = chosen_draft_length(draft_length, search)
    if length is not None:
        made.generation_config.num_assistant_tokens = length
    if search is not None:
        made.coverage_metadata = make_metadata(
            made,
            search=search,
            counts=counts,
            target_id=target.hub_id,
            draft_id=draft.hub_id,
            datasets=datasets,
            tokenizer=target.tokenizer,
        )
    return made
