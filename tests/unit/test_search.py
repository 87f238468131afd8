"""Choosing a vocabulary: what comes back, the preset, domains, and what is refused."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from search_samples import step, zipf
from vtrim_hf.required_tokens import RequiredTokens
from vtrim_hf.search import search_vocabulary
from vtrim_hf.search_result import SearchResult
from vtrim_hf.token_counts import TokenCounts


@pytest.fixture(scope="module")
def counts() -> TokenCounts:
    return TokenCounts.from_counts(zipf(), heldout=zipf(tokens=40_000), tokenizer_hash="ab" * 32)


class TestResult:
    def test_figures_are_those_of_the_counts(self, counts: TokenCounts) -> None:
        latency = step(5000)
        result = search_vocabulary(counts, latency, required=[1, 2, 3])
        vocabulary = result.vocabulary
        assert result.k == len(vocabulary)
        assert {1, 2, 3} <= set(vocabulary.ids.tolist())
        assert result.coverage == pytest.approx(counts.coverage(vocabulary, "search"))
        assert result.heldout_coverage == pytest.approx(counts.coverage(vocabulary, "heldout"))
        assert result.coverage_interval == counts.coverage_interval(vocabulary, "search")
        assert result.heldout_interval == counts.coverage_interval(vocabulary, "heldout")
        assert result.reduction == pytest.approx(latency.reduction(result.k))
        assert result.utility == pytest.approx(0.5 * result.coverage + 0.5 * result.reduction)
        assert result.gap_to_exact == 0
        assert result.method == "exact"
        assert result.study is None
        assert vocabulary.vocab_size == 5000
        assert vocabulary.tokenizer_hash == "ab" * 32

    def test_required_are_part_of_k_and_of_what_is_covered(self, counts: TokenCounts) -> None:
        rare = np.flatnonzero(counts.array() == 0)[:100].tolist()
        plain = search_vocabulary(counts, step(5000))
        pinned = search_vocabulary(counts, step(5000), required=rare)
        assert set(rare) <= set(pinned.vocabulary.ids.tolist())
        # The best cut among the counted ids stays; the rare ones come on top.
        assert pinned.k == plain.k + 100
        assert pinned.coverage == plain.coverage

    def test_vocabulary_can_be_cut_by_need(self, counts: TokenCounts) -> None:
        result = search_vocabulary(counts, step(5000), required=[4999])
        smaller = result.vocabulary.cut(100)
        assert 4999 in smaller
        array = counts.array()
        assert array[smaller.ids.numpy()].sum() >= np.sort(array)[::-1][:99].sum()

    def test_curve_is_whole_and_front_is_thin(self, counts: TokenCounts) -> None:
        result = search_vocabulary(counts, step(5000))
        ranked = int((counts.array() > 0).sum())
        assert result.curve.sizes.tolist() == list(range(50, ranked + 1))
        assert len(result.front) <= 200
        assert result.front[0].k == 50
        assert result.front[-1].k == ranked
        assert any(point.k == result.k for point in result.front)
        sizes, coverages, reductions = zip(*result.front, strict=True)
        assert list(sizes) == sorted(sizes)
        assert list(coverages) == sorted(coverages)
        assert list(reductions) == sorted(reductions, reverse=True)

    def test_nothing_held_out(self) -> None:
        result = search_vocabulary(TokenCounts.from_counts(zipf()), step(5000))
        assert result.heldout_coverage is None
        assert result.heldout_interval is None
        assert result.per_domain["default"]["heldout_coverage"] is None
        assert result.per_domain["default"]["weak"] is False

    def test_provenance_tells_how(self, counts: TokenCounts) -> None:
        required = RequiredTokens({"end_of_turn": (2,), "byte_piece": (5, 6)})
        result = search_vocabulary(
            counts, step(5000), required=required, alpha=0.7, min_coverage=0.9, k_max=4000
        )
        provenance = json.loads(json.dumps(dict(result.vocabulary.provenance), allow_nan=False))
        assert provenance["made_by"] == "search_vocabulary"
        assert provenance["counts"] == counts.fingerprint
        assert provenance["alpha"] == 0.7
        assert provenance["min_coverage"] == 0.9
        assert provenance["domain_floors"] == {}
        assert provenance["method"] == "exact"
        assert (provenance["k_min"], provenance["k_max"]) == (50, 4000)
        assert provenance["required"] == {
            "number": 3,
            "by_reason": {"end_of_turn": 1, "byte_piece": 2},
        }
        assert provenance["latency"]["kind"] == "flops"
        assert provenance["coverage"] == result.coverage

    def test_same_call_same_vocabulary(self, counts: TokenCounts) -> None:
        one = search_vocabulary(counts, step(5000))
        two = search_vocabulary(counts, step(5000))
        assert one.vocabulary == two.vocabulary
        assert one.to_dict() == two.to_dict()

    def test_usual_size(self) -> None:
        wide = TokenCounts.from_counts(zipf(width=40_000, distinct=35_000, tokens=10**6))
        latency = step(40_000)
        result = search_vocabulary(wide, latency)
        assert result.usual is not None
        assert result.usual.k == 32_000
        top = np.sort(wide.array())[::-1]
        assert result.usual.coverage == pytest.approx(top[:32_000].sum() / top.sum())
        assert result.usual.reduction == latency.reduction(32_000)
        narrow = search_vocabulary(TokenCounts.from_counts(zipf()), step(5000))
        assert narrow.usual is None

    @pytest.mark.parametrize("multiple", [1, 64])
    def test_multiple_of_the_latency_model(self, counts: TokenCounts, multiple: int) -> None:
        result = search_vocabulary(counts, step(5000, multiple_of=multiple))
        assert result.k % multiple == 0
        assert result.settings["multiple_of"] == multiple
        own = search_vocabulary(counts, step(5000, multiple_of=multiple), multiple_of=7)
        assert own.k % 7 == 0


@pytest.fixture(scope="module")
def two() -> TokenCounts:
    logs, prose = np.zeros(5000, dtype=np.int64), np.zeros(5000, dtype=np.int64)
    logs[:2000] = zipf(2000, 2000, 900_000, seed=1)
    prose[2000:] = zipf(3000, 3000, 30_000, seed=2)
    return TokenCounts.merge(
        TokenCounts.from_counts(logs, heldout=logs // 4, domain="logs"),
        TokenCounts.from_counts(prose, heldout=prose // 4, domain="prose"),
    )


class TestDomains:
    """[ggml-org/llama.cpp#25187] what one domain's counts cost another is in the result."""

    def test_the_weak_domain_is_marked(self, two: TokenCounts) -> None:
        result = search_vocabulary(two, step(5000))
        assert result.weak_domains == ("prose",)
        logs, prose = result.per_domain["logs"], result.per_domain["prose"]
        assert prose["coverage"] == pytest.approx(two.coverage(result.vocabulary, domain="prose"))
        assert prose["coverage"] < result.coverage < logs["coverage"]
        assert prose["heldout_coverage"] < logs["heldout_coverage"]
        low, high = prose["heldout_interval"]
        assert low <= prose["heldout_coverage"] <= high
        assert prose["tokens"] == 30_000

    def test_a_floor_lifts_it(self, two: TokenCounts) -> None:
        plain = search_vocabulary(two, step(5000))
        lifted = search_vocabulary(two, step(5000), domain_floors={"prose": 0.995})
        assert lifted.k > plain.k
        assert lifted.per_domain["prose"]["coverage"] >= 0.995
        assert lifted.per_domain["prose"]["floor"] == 0.995
        assert lifted.per_domain["logs"]["floor"] is None

    def test_one_floor_for_all(self, two: TokenCounts) -> None:
        result = search_vocabulary(two, step(5000), domain_floors=0.98)
        assert all(facts["coverage"] >= 0.98 for facts in result.per_domain.values())
        assert result.settings["domain_floors"] == {"logs": 0.98, "prose": 0.98}

    def test_weights_shift_the_choice(self, two: TokenCounts) -> None:
        """[asahi417/lm-vocab-trimmer#2] domains are merged with weights, without new counts."""
        heavy = TokenCounts.merge(two, weights={"logs": 1.0, "prose": 100.0})
        plain = search_vocabulary(two, step(5000))
        shifted = search_vocabulary(heavy, step(5000))
        assert (
            shifted.per_domain["prose"]["coverage"] > plain.per_domain["prose"]["coverage"] + 0.1
        )

    def test_curves_of_the_domains(self, two: TokenCounts) -> None:
        result = search_vocabulary(two, step(5000))
        place = result.k - int(result.curve.sizes[0])
        for domain in two.domains:
            here = result.curve.domain_coverage[domain][place]
            assert here == pytest.approx(two.coverage(result.vocabulary, domain=domain))


class TestPaperPreset:
    def test_is_the_papers_search(self, counts: TokenCounts) -> None:
        result = search_vocabulary(counts, step(5000), preset="paper", progress=False)
        assert result.method == "tpe"
        assert result.study is not None
        assert result.study["trials"] == 100
        assert result.study["seed"] == 42
        facts = result.settings
        assert (facts["alpha"], facts["k_min"], facts["k_max"]) == (0.5, 50, 50_000)
        assert facts["required"]["number"] == 0
        assert result.gap_to_exact < 0.001

    def test_exact_under_the_papers_limits(self, counts: TokenCounts) -> None:
        result = search_vocabulary(counts, step(5000), preset="paper", method="exact")
        assert result.method == "exact"
        assert result.settings["k_max"] == 50_000

    def test_ignores_the_devices_multiple(self, counts: TokenCounts) -> None:
        latency = step(5000, multiple_of=64)
        result = search_vocabulary(counts, latency, preset="paper", method="exact")
        assert result.settings["multiple_of"] == 1

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"required": [1]}, "has no required ids, got 1"),
            ({"alpha": 0.7}, "sets alpha=0.5, got 0.7"),
            ({"k_min": 100}, "sets k_min=50, got 100"),
            ({"k_max": 100}, "sets k_max=50000, got 100"),
            ({"multiple_of": 64}, "sets multiple_of=1, got 64"),
            ({"preset": "papers"}, "preset must be 'paper' or None, got 'papers'"),
        ],
    )
    def test_contradictions(self, counts: TokenCounts, options: dict[str, Any], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            search_vocabulary(counts, step(5000), **{"preset": "paper", **options})


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"objective": "speed"}, "objective must be one of utility, throughput, got 'speed'"),
            ({"method": "grid"}, "method must be one of exact, tpe, got 'grid'"),
            ({"method": "tpe", "trials": 0}, "trials must be at least 1, got 0"),
        ],
    )
    def test_arguments(self, counts: TokenCounts, options: dict[str, Any], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            search_vocabulary(counts, step(5000), **options)

    @pytest.mark.parametrize("method", ["exact", "tpe"])
    def test_impossible_constraint(self, counts: TokenCounts, method: Any) -> None:
        """[optuna/optuna#5462] Optuna would only say that no trial was feasible."""
        with pytest.raises(ValueError, match=r"min_coverage=0\.99 cannot be met") as error:
            search_vocabulary(counts, step(5000), min_coverage=0.99, k_max=500, method=method)
        reached = counts.coverage(
            search_vocabulary(counts, step(5000), alpha=1.0, k_max=500).vocabulary
        )
        assert f"{reached:.6f}, at k=500" in str(error.value)


class TestLightness:
    def test_exact_search_needs_no_optuna_and_no_matplotlib(
        self, counts: TokenCounts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """[sgl-project/SpecForge#765] the choice needs no GPU, no model, and little besides."""
        for name in ("optuna", "sqlalchemy", "matplotlib", "datasets"):
            monkeypatch.setitem(sys.modules, name, None)  # importing it would raise
        result = search_vocabulary(counts, step(5000))
        assert SearchResult.from_dict(result.to_dict()).vocabulary == result.vocabulary
        with pytest.raises(ImportError, match="optuna"):
            search_vocabulary(counts, step(5000), method="tpe")

    def test_numpy_types_do_not_leak(self, counts: TokenCounts) -> None:
        result = search_vocabulary(
            counts,
            step(5000),
            required=np.asarray([1, 2]),
            alpha=np.float64(0.5),
            min_coverage=np.float32(0.5),  # type: ignore[arg-type]
            k_max=np.int64(3000),  # type: ignore[arg-type]
            method="tpe",
            trials=3,
            progress=False,
        )
        json.dumps(result.to_dict(), allow_nan=False)
        json.dumps(dict(result.vocabulary.provenance), allow_nan=False)
        assert type(result.k) is int
        assert type(result.coverage) is float

    def test_ids_beyond_the_tokenizer_are_never_chosen(self) -> None:
        """[vllm-project/vllm#7218] rows of padding are never counted, so never kept."""
        padded = np.concatenate([zipf(1000, 1000), np.zeros(24, dtype=np.int64)])
        result = search_vocabulary(TokenCounts.from_counts(padded), step(1024), alpha=1.0)
        assert int(result.vocabulary.ids.max()) < 1000


def test_five_sizes_from_one_count(counts: TokenCounts) -> None:
    """[asahi417/lm-vocab-trimmer#2] other sizes need no other file."""
    from vtrim_hf.vocabulary import DraftVocabulary

    full = search_vocabulary(counts, step(5000), alpha=1.0).vocabulary
    for size in (60, 100, 500, 1000, 2000):
        assert DraftVocabulary.from_counts(counts, size) == full.cut(size)


def test_tpe_is_silent_when_warnings_are_errors(counts: TokenCounts) -> None:
    """[optuna/optuna release 5.0] constraints_func would warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = search_vocabulary(
            counts, step(5000), min_coverage=0.9, method="tpe", trials=12, progress=False
        )
    assert isinstance(result, SearchResult)


@pytest.mark.parametrize("required", [[1.5], [True, False], ["1"], [10**30]])
def test_required_ids_are_never_rounded(required: Any) -> None:
    counts = TokenCounts.from_counts(zipf())
    with pytest.raises(ValueError, match="required ids must be a flat list of whole numbers"):
        search_vocabulary(counts, step(5000), required=required)
