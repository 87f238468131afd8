"""`recommend_drafts`: published drafts by how much of somebody's own data they can say.

Coverage is counted, nothing is run: the kept ids of a draft are a small file beside its weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .card_words import harmless
from .catalogue import check_wishes, find_drafts
from .hub_arguments import check_access, check_flag, check_text
from .hub_errors import is_passing, status_of
from .hub_upload import client_bars
from .named_models import NamedModel
from .published_draft import PublishedDraft
from .published_files import answered, read_vocabulary
from .steps import count_domains

if TYPE_CHECKING:
    from .batch_counting import SkippedRow
    from .token_counts import TokenCounts
    from .vocabulary import DraftVocabulary

logger = logging.getLogger(__name__)

_AT_ONCE = 8
_ALL = "all"


@dataclass(frozen=True)
class Recommendation:
    """A published draft, and what it is worth on the data that was counted.

    Attributes:
        draft: the draft.
        coverage: share of the data's tokens that it can say.
        interval: 95 % interval of that share.
        tokens: how many tokens the share is of.
    """

    draft: PublishedDraft
    coverage: float
    interval: tuple[float, float]
    tokens: int


def recommend_drafts(
    target: str | NamedModel,
    data: str | Path | Sequence[str | Path] | TokenCounts,
    *,
    domain: str | None = None,
    author: str | None = None,
    k_max: int | None = None,
    license: str | None = None,
    split: str | None = None,
    text_column: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    limit: int | None = 20,
    progress: bool = True,
    on_skipped: Callable[[SkippedRow], None] | None = None,
) -> list[Recommendation]:
    """Score published drafts for a target on data of one's own, by coverage alone.

    No weights are downloaded, neither of drafts nor of the target. A draft with another tokenizer
    than the target's, or published without its table of kept ids, is left out with a warning.

    Args:
        target: Hub id, folder or embedded name of the model to draft for; drafts for its Hub id
            are looked for, of a folder all whose tokenizer is the same.
        data: files, folders or Hub ids of chat data, counted as `vtrim count` counts it; or a
            `TokenCounts`.
        domain: see `find_drafts`, as for what follows.
        author: the same.
        k_max: the same.
        license: the same.
        split: of data sets that have several.
        text_column: count this column's text.
        token: of the Hub.
        endpoint: of the Hub, if it is another.
        limit: how many to return at most; None for all.
        progress: show bars on a terminal.
        on_skipped: called with the first rows that were skipped.

    Returns:
        The drafts that cover most first; of equal ones the smaller.

    Raises:
        TypeError: if `data` or `token` is of another kind.
        ValueError: for another argument that means nothing; if no draft for the target is
            published, or the data holds nothing to count.
        OSError: if the Hub does not answer.

    Example:
        ```python
        best, *others = recommend_drafts("HuggingFaceTB/SmolLM2-1.7B-Instruct", "mine.jsonl")
        best.draft.repo_id, best.coverage, best.interval
        ```
    """
    from huggingface_hub import HfApi

    if not isinstance(target, NamedModel | str) or not str(target).strip():
        raise ValueError(
            f"target must be a text or a NamedModel, got {target!r:.80}: pass the target's Hub id "
            "or folder"
        )
    check_wishes(None, domain, author=author, license=license, k_max=k_max, limit=limit)
    check_access(token, endpoint)
    check_text("split", split, "leave it out for the usual one")
    check_text("text_column", text_column, "leave it out for conversations")
    check_flag("progress", progress)
    sources = _sources(data)
    model = NamedModel(target) if isinstance(target, str) else target
    found = find_drafts(
        model.hub_id,
        domain,
        author=author,
        k_max=k_max,
        license=license,
        token=token,
        endpoint=endpoint,
        limit=None,
    )
    if not found:
        raise ValueError(
            f"no draft for {model.hub_id or model} that fits is published on "
            f"{HfApi(endpoint=endpoint).endpoint}: see `vtrim catalogue`, or make one with "
            "`vtrim count`, `vtrim search` and `vtrim trim`"
        )
    counts = _counts(model, sources, split, text_column, progress, on_skipped)
    tokens = counts.total(_ALL)
    if not tokens:
        raise ValueError("the data holds no token that the target would say: give more of it")

    if model.hub_id is None:  # of a folder only its tokenizer tells what drafts for it
        published = len(found)
        found = [one for one in found if one.tokenizer_hash == counts.tokenizer_hash]
        if not found:
            raise ValueError(
                f"none of {published} published drafts is for the tokenizer of {model}: see "
                "`vtrim catalogue`, or name the target's Hub id"
            )

    def score(draft: PublishedDraft) -> Recommendation | None:
        vocabulary = _vocabulary(draft, counts, token, endpoint)
        if vocabulary is None:
            return None
        return Recommendation(
            draft,
            counts.coverage(vocabulary, _ALL),
            counts.coverage_interval(vocabulary, _ALL),
            tokens,
        )

    with client_bars(shown=False), ThreadPoolExecutor(_AT_ONCE) as pool:
        scored = [one for one in pool.map(score, found) if one is not None]
    if not scored:
        raise ValueError(
            f"of {len(found)} published drafts for {model.hub_id or model} none can be scored: "
            "the warnings say why"
        )
    scored.sort(key=lambda one: (-one.coverage, one.draft.k, one.draft.repo_id))
    return scored[:limit]


def _sources(data: Any) -> TokenCounts | list[str]:
    """Return the data as names, or as the counts that it is.

    Raises:
        TypeError: if it is neither.
        ValueError: if there is none.
    """
    from .token_counts import TokenCounts

    if isinstance(data, TokenCounts):
        return data
    named = [data] if isinstance(data, str | Path) else data
    several = isinstance(named, Sequence) and not isinstance(named, bytes | bytearray)
    if not several or not all(isinstance(one, str | Path) and str(one) for one in named):
        raise TypeError(
            "data must be a TokenCounts, or files, folders or Hub ids of chat data, got "
            f"{data!r:.120}: count rows in memory with TokenCounts.from_dataset first"
        )
    if not named:
        raise ValueError(f"data must name a file, a folder or a Hub id, got {data!r}: give one")
    return [str(one) for one in named]


def _counts(
    model: NamedModel,
    data: TokenCounts | list[str],
    split: str | None,
    text_column: str | None,
    progress: bool,
    on_skipped: Callable[[SkippedRow], None] | None,
) -> TokenCounts:
    if not isinstance(data, list):
        return data
    # Nothing is chosen by this data, so nothing of it needs to be held out.
    return count_domains(
        [("default", source) for source in data],
        model,
        split=split,
        text_column=text_column,
        heldout=0.0,
        progress=progress,
        on_skipped=on_skipped,
    )


def _vocabulary(
    draft: PublishedDraft, counts: TokenCounts, token: str | bool | None, endpoint: str | None
) -> DraftVocabulary | None:
    """Return what a draft can say; None, with a warning, if that does not fit the counts."""
    known = (draft.tokenizer_hash, counts.tokenizer_hash)
    if None not in known and known[0] != known[1]:
        logger.warning(
            "%s is not scored: it is for another tokenizer (%.12s) than the target's (%.12s)",
            draft.name,
            *known,
        )
        return None
    try:
        if draft.vocab_size > 2 * counts.vocab_size:  # padding is far less
            raise ValueError(
                f"it is for a target of width {draft.vocab_size:,}, this one has "
                f"{counts.vocab_size:,}"
            )
        vocabulary = read_vocabulary(draft, token=token, endpoint=endpoint)
        if int(vocabulary.ids[-1]) >= counts.vocab_size:
            raise ValueError(
                f"it keeps the id {int(vocabulary.ids[-1])}, the target has {counts.vocab_size}"
            )
    except (OSError, ValueError) as error:
        if status_of(error) == 429 or (status_of(error) is None and is_passing(error)):
            with answered(f"reading {draft.name}", endpoint or "the Hub"):
                raise
        text = harmless(" ".join(str(error).split()))
        logger.warning("%s is not scored: %s", draft.name, text)
        return None
    return vocabulary
