"""`SearchResult`: the vocabulary that a search chose, and all that was weighed to choose it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .result_checks import check_result
from .search_curve import FrontPoint, SearchCurve, thinned
from .vocabulary import DraftVocabulary, write_atomically

FORMAT = "vtrim_hf.search_result/1"
FORMAT_WITH_LENGTH = "vtrim_hf.search_result/2"
"""What programs that know the first only would take for another utility."""

SEARCH_JSON = "search.json"
"""Where a search leaves its result, in the folder of the vocabulary that it chose."""


@dataclass(frozen=True, eq=False)
class SearchResult:
    """A chosen vocabulary and how it was chosen.

    Attributes:
        k: its size, required ids included.
        vocabulary: the kept ids; its provenance tells how they were chosen.
        utility: U(k). With the objective "throughput" (`settings["objective"]`): the expected
            tokens a second over those without a draft, on the search part.
        coverage: C(k), share of the search part's tokens that it holds.
        coverage_interval: 95 % bootstrap interval of the coverage, (low, high).
        heldout_coverage: the same share of conversations that the search did not see; None if
            nothing was held out.
        heldout_interval: its interval, or None.
        per_domain: by domain: `coverage`, `interval`, `heldout_coverage`, `heldout_interval`,
            `tokens`, `heldout_tokens`, `floor`, and `weak`, which marks a domain that is covered
            a percentage point worse than the whole or falls below its floor out of sample.
        reduction: R(k), share of a draft step's cost that it saves.
        front: sizes that no other beats in both coverage and reduction, at most 200 of them.
        gap_to_exact: how far `utility` is below the best possible for this ranking of the ids, as
            a share of the best; 0 for an exact search.
        study: facts about the TPE study, or None for an exact search.
        method: "exact" or "tpe".
        settings: JSON-able arguments of the search.
        curve: the figures of every allowed size.
        usual: the point of the usual 32,000 most frequent tokens, where the target has that many.
        draft_length: tokens to draft a round, 0 for no draft; None unless the objective is
            throughput.
        expected: None unless the objective is throughput. `advice` is "trim", "do not trim" or
            "do not draft", as `judged_on` the part "heldout", or "search" if nothing was held
            out; it is about the best cut head there is, also where a TPE study found another.
            `chosen`, `trimmed` (that best cut head, or None) and `full` (the whole head) have
            `k`, `draft_length`, and for `search` and `heldout` the `coverage`,
            `tokens_per_round`, `tokens_per_second` and `speedup` over `plain`. `interval` is what
            the 95 % interval of the coverage makes of the chosen speed-up, `by_length` the best
            size for each draft length, and `beyond_measured` says that the length is beyond the
            positions whose acceptance is known. The reading of prompts is in none of them.
        optuna_study: Optuna's own object after a TPE search; it is not saved.
    """

    k: int
    vocabulary: DraftVocabulary
    utility: float
    coverage: float
    coverage_interval: tuple[float, float]
    heldout_coverage: float | None
    heldout_interval: tuple[float, float] | None
    per_domain: Mapping[str, Mapping[str, Any]]
    reduction: float
    front: tuple[FrontPoint, ...]
    gap_to_exact: float
    study: Mapping[str, Any] | None
    method: str
    settings: Mapping[str, Any]
    curve: SearchCurve = field(repr=False)
    usual: FrontPoint | None = None
    draft_length: int | None = None
    expected: Mapping[str, Any] | None = None
    optuna_study: Any = field(default=None, repr=False)

    @property
    def weak_domains(self) -> tuple[str, ...]:
        """Domains that this vocabulary serves worse than the others."""
        return tuple(name for name, facts in self.per_domain.items() if facts["weak"])

    def to_dict(self) -> dict[str, Any]:
        """Return everything but Optuna's object as plain JSON types."""
        chosen = int(np.searchsorted(self.curve.sizes, self.k))
        points = thinned(np.arange(self.curve.sizes.size), chosen)
        drafting: dict[str, Any] = {}
        if self.expected is not None:
            drafting = {"draft_length": self.draft_length, "expected": dict(self.expected)}
        return {
            "format": FORMAT_WITH_LENGTH if drafting else FORMAT,
            "k": self.k,
            "utility": self.utility,
            "coverage": self.coverage,
            "coverage_interval": list(self.coverage_interval),
            "heldout_coverage": self.heldout_coverage,
            "heldout_interval": self.heldout_interval and list(self.heldout_interval),
            "reduction": self.reduction,
            "gap_to_exact": self.gap_to_exact,
            "method": self.method,
            **drafting,
            "per_domain": {
                name: {key: list(v) if isinstance(v, tuple) else v for key, v in facts.items()}
                for name, facts in self.per_domain.items()
            },
            "settings": dict(self.settings),
            "study": self.study and dict(self.study),
            "usual": self.usual and list(self.usual),
            "front": [list(point) for point in self.front],
            "curve": self.curve.at(points).to_dict(),
            "vocabulary": _vocabulary_to_dict(self.vocabulary),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SearchResult:
        """Read what `to_dict` gave.

        Raises:
            ValueError: if it is no search result, or its ids were changed; the text names the
                field that is not as it must be.
        """
        found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        if found not in (FORMAT, FORMAT_WITH_LENGTH):
            raise ValueError(
                f"a search result says format={FORMAT!r} or {FORMAT_WITH_LENGTH!r}, got "
                f"{found!r}: make one with SearchResult.save or `vtrim search`"
            )
        try:
            check_result(data)
            per_domain = {
                name: {key: _pair(v) if isinstance(v, list) else v for key, v in facts.items()}
                for name, facts in data["per_domain"].items()
            }
            result = cls(
                k=data["k"],
                vocabulary=_vocabulary_from_dict(data["vocabulary"]),
                utility=data["utility"],
                coverage=data["coverage"],
                coverage_interval=_pair(data["coverage_interval"]),
                heldout_coverage=data["heldout_coverage"],
                heldout_interval=data["heldout_interval"] and _pair(data["heldout_interval"]),
                per_domain=per_domain,
                reduction=data["reduction"],
                front=tuple(FrontPoint(*point) for point in data["front"]),
                gap_to_exact=data["gap_to_exact"],
                study=data["study"],
                method=data["method"],
                settings=data["settings"],
                curve=SearchCurve.from_dict(data["curve"]),
                usual=data["usual"] and FrontPoint(*data["usual"]),
                draft_length=data.get("draft_length"),
                expected=data.get("expected"),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the search result is damaged: {error!r}") from error
        if result.k != len(result.vocabulary):
            raise ValueError(
                f"the search result is damaged: k is {result.k}, but the vocabulary holds "
                f"{len(result.vocabulary)} ids; search again"
            )
        return result

    def save(self, path: str | Path) -> None:
        """Write one JSON file, ids included, so that it loads back alone.

        It is written beside its place and moved there: an interrupted save leaves the old file.
        """
        fields = self.to_dict().items()
        lines = [f"  {json.dumps(key)}: {json.dumps(v, allow_nan=False)}" for key, v in fields]
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, ("{\n" + ",\n".join(lines) + "\n}\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> SearchResult:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is no search result, or was changed.
        """
        try:
            data = json.loads(Path(path).read_text("utf-8"))
        except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, nested without end
            raise ValueError(f"{path} is no search result: {error}") from error
        if not isinstance(data, dict):
            raise ValueError(f"{path} is no search result: it holds a {type(data).__name__}")
        try:
            return cls.from_dict(data)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def plot(self, path: str | Path, *, title: str | None = None) -> Path:
        """Draw coverage against what a draft step saves, and write it as an image.

        The line is every size that was allowed, from few tokens (right: cheap steps) to many (top:
        all that the target says), pale where a floor is missed; dashed, the same on held-out
        conversations. Marked are the chosen size, the usual 32,000, and the least coverage that
        was asked for, if any. With several domains, bars beside it show how much of each the
        chosen vocabulary covers, with 95 % intervals and floors, the weak ones in another colour.
        With the objective "throughput" the line is the expected speed-up of every size.

        Args:
            path: where to; the ending says the format, such as `.png` or `.svg`.
            title: above the plot; by default the sizes.

        Returns:
            The path.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        from .search_plots import plot_search

        return plot_search(self, Path(path), title=title)


def chosen_draft_length(given: int | None, search: SearchResult | None) -> int | None:
    """Return how many tokens a draft of a search's vocabulary drafts a round.

    Args:
        given: what its user asked for, which holds.
        search: that its vocabulary came out of.

    Returns:
        The number; None leaves the usual one. So does a search that says not to draft: whether
        to heed it, its user decides.
    """
    if given is None and search is not None:
        return search.draft_length or None
    return given


def _pair(values: Any) -> tuple[float, float]:
    low, high = values
    return low, high


def _vocabulary_to_dict(vocabulary: DraftVocabulary) -> dict[str, Any]:
    ranks = vocabulary.ranks
    by_need = vocabulary.ids if ranks is None else vocabulary.ids[ranks.argsort()]
    return {
        "ids_by_need": by_need.tolist(),
        "vocab_size": vocabulary.vocab_size,
        "tokenizer_hash": vocabulary.tokenizer_hash,
        "fingerprint": vocabulary.fingerprint,
        "provenance": dict(vocabulary.provenance),
    }


def _vocabulary_from_dict(data: Mapping[str, Any]) -> DraftVocabulary:
    vocabulary = DraftVocabulary.from_ids(
        data["ids_by_need"],
        vocab_size=data["vocab_size"],
        tokenizer_hash=data["tokenizer_hash"],
        provenance=data["provenance"],
    )
    if vocabulary.fingerprint != data["fingerprint"]:
        raise ValueError(
            f"the ids have the fingerprint {vocabulary.fingerprint[:12]}, but the result names "
            f"{str(data['fingerprint'])[:12]}: the file was changed; search again"
        )
    return vocabulary
