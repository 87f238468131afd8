"""Choosing size and draft length for most tokens a second: the best of all, three answers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_samples import step, zipf
from vtrim_hf.decoding_model import DecodingModel
from vtrim_hf.latency import LatencyModel
from vtrim_hf.search import search_vocabulary
from vtrim_hf.search_result import SearchResult
from vtrim_hf.search_space import build_space
from vtrim_hf.search_throughput import Throughput
from vtrim_hf.token_counts import TokenCounts

WIDTH = 5000


def in_seconds(width: int = WIDTH, body: float = 0.001, head: float = 0.004) -> LatencyModel:
    """A draft step whose whole head takes `head` seconds."""
    return LatencyModel(width, "measured", "s", {"body": body}, (0, width), (0.0, head))


def drafting(*acceptance: float, **options: Any) -> DecodingModel:
    """A target that takes 30 ms for a token, and 36 ms for 9."""
    return DecodingModel(acceptance or (0.8, 0.75), {1: 0.030, 9: 0.036}, **options)


def fastest(counts: Any, latency: LatencyModel, decoding: Any, **options: Any) -> SearchResult:
    return search_vocabulary(
        counts, latency, objective="throughput", decoding=decoding, progress=False, **options
    )


@pytest.fixture(scope="module")
def counts() -> TokenCounts:
    here = zipf()
    there = np.random.default_rng(1).binomial(here, 0.2)
    there[np.flatnonzero(here == 0)[:40]] = 5  # what only other text says
    return TokenCounts.from_counts(here, heldout=there, tokenizer_hash="ab" * 32)


@pytest.fixture(scope="module")
def result(counts: TokenCounts) -> SearchResult:
    return fastest(counts, in_seconds(), drafting())


def speed(decoding: DecodingModel, coverage: float, seconds: float, length: int) -> float:
    """The speed-up by its definition, one loop a sum."""
    tokens, reached = 1.0, 1.0
    for position in range(length):
        rate = decoding.acceptance[min(position, len(decoding.acceptance) - 1)]
        reached *= min(1.0, rate * coverage / decoding.coverage)
        tokens += reached
    alone, (last, beyond) = decoding.forward[1], [*decoding.forward.items()][-1]
    forward = alone + (beyond - alone) / (last - 1) * length
    return tokens / (forward + length * seconds + decoding.overhead) * alone


class TestExact:
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.integers(0, 30), min_size=3, max_size=12).filter(any),
        st.lists(st.floats(0.05, 1), min_size=1, max_size=3),
        st.sampled_from([0.0, 0.5, 0.9]),
        st.sampled_from([(), (0,), (1, 2)]),
        st.sampled_from([0.001, 0.01, 0.2]),
        st.integers(1, 4),
    )
    def test_is_the_best_of_all_pairs(
        self,
        counted: list[int],
        acceptance: list[float],
        least: float,
        required: tuple[int, ...],
        head: float,
        most: int,
    ) -> None:
        latency = in_seconds(len(counted), head=head)
        decoding = drafting(*acceptance, max_draft_length=most)
        counts = TokenCounts.from_counts(np.asarray(counted))
        others = (i for i, n in enumerate(counted) if n and i not in required)
        ranked = [*required, *sorted(others, key=lambda i: (-counted[i], i))]
        options = {}
        for size in range(max(1, len(required)), len(ranked) + 1):
            covered = sum(counted[i] for i in ranked[:size]) / sum(counted)
            if size < len(counted) and covered >= least - 1e-12:
                for length in range(1, most + 1):
                    options[size, length] = speed(decoding, covered, latency.cost(size), length)
        result = fastest(counts, latency, decoding, required=required, min_coverage=least, k_min=1)
        expected = result.expected
        assert expected is not None
        whole = max(
            speed(decoding, 1.0, latency.cost(len(counted)), length)
            for length in range(1, most + 1)
        )
        assert expected["full"]["search"]["speedup"] == pytest.approx(whole)
        best = max(options.values(), default=0.0)
        if options:
            assert expected["trimmed"]["search"]["speedup"] == pytest.approx(best)
            pair = (expected["trimmed"]["k"], expected["trimmed"]["draft_length"])
            assert options[pair] == pytest.approx(best)
        assert result.utility == pytest.approx(max(best, whole, 1.0))
        if not math.isclose(max(best, whole), 1.0, rel_tol=1e-6):
            assert (expected["advice"] == "do not draft") == (max(best, whole) < 1)
        assert result.gap_to_exact == 0

    def test_figures_are_those_of_the_model(self, counts: TokenCounts) -> None:
        latency, decoding = in_seconds(), drafting(overhead=0.001)
        result = fastest(counts, latency, decoding, required=[4999])
        expected, length = result.expected, result.draft_length
        assert expected is not None
        assert length is not None
        assert length > 0
        assert expected["advice"] == "trim"
        assert expected["judged_on"] == "heldout"
        chosen = expected["chosen"]
        assert (chosen["k"], chosen["draft_length"]) == (result.k, length)
        assert chosen == expected["trimmed"] == expected["by_length"][length - 1]
        for part, covered in (
            ("search", result.coverage),
            ("heldout", result.heldout_coverage or 0.0),
        ):
            figures = chosen[part]
            assert figures["coverage"] == covered
            assert figures["speedup"] == pytest.approx(
                speed(decoding, covered, latency.cost(result.k), length)
            )
            assert figures["tokens_per_second"] == pytest.approx(figures["speedup"] / 0.030)
        assert result.utility == chosen["search"]["speedup"]
        assert expected["plain"]["tokens_per_second"] == pytest.approx(1 / 0.030)
        low, high = expected["interval"]
        assert low <= chosen["heldout"]["speedup"] <= high
        assert result.heldout_interval is not None
        assert low == pytest.approx(
            speed(decoding, result.heldout_interval[0], latency.cost(result.k), length)
        )
        assert [one["draft_length"] for one in expected["by_length"]] == list(range(1, 17))
        assert 4999 in result.vocabulary
        assert expected["beyond_measured"] == (length > 2)

    def test_curve_holds_every_size_and_the_whole_head(self, counts: TokenCounts) -> None:
        result = fastest(counts, in_seconds(), drafting())
        curve = result.curve
        assert curve.sizes[-1] == WIDTH
        assert curve.coverage[-1] == 1
        assert curve.reduction[-1] == 0
        place = int(np.searchsorted(curve.sizes, result.k))
        assert curve.utility[place] == result.utility == curve.utility[:-1].max()
        assert curve.heldout_utility is not None
        assert result.expected is not None
        assert curve.heldout_utility[place] == result.expected["chosen"]["heldout"]["speedup"]

    def test_settings_tell_how(self, counts: TokenCounts) -> None:
        decoding = drafting()
        result = fastest(counts, in_seconds(), decoding)
        assert result.settings["objective"] == "throughput"
        assert result.settings["alpha"] is None
        assert DecodingModel.from_dict(result.settings["decoding"]) == decoding
        provenance = json.loads(json.dumps(dict(result.vocabulary.provenance), allow_nan=False))
        assert provenance["draft_length"] == result.draft_length
        assert provenance["decoding"]["acceptance"] == [0.8, 0.75]

    def test_floors_hold(self, counts: TokenCounts) -> None:
        free = fastest(counts, in_seconds(head=0.02), drafting())
        held = fastest(counts, in_seconds(head=0.02), drafting(), min_coverage=0.9)
        assert free.coverage < 0.9 <= held.coverage
        assert 1 < held.utility < free.utility

    def test_sizes_of_a_device(self, counts: TokenCounts) -> None:
        result = fastest(counts, in_seconds(), drafting(), multiple_of=64)
        assert result.k % 64 == 0
        assert result.curve.sizes[-1] == WIDTH

    def test_padded_widths(self) -> None:
        """The whole head has a row for each id of the counts that the draft has."""
        wide = TokenCounts.from_counts(np.r_[zipf(1000, 800), np.zeros(24, dtype=np.int64)])
        for width in (1000, 1024, 1100):
            result = fastest(wide, in_seconds(width, head=0.0), drafting())
            assert result.k == min(width, 1024)


class TestWhatMatters:
    def test_a_dearer_head_takes_fewer_rows(self, counts: TokenCounts) -> None:
        sizes = [fastest(counts, in_seconds(head=h), drafting()).k for h in (1e-4, 1e-3, 1e-2)]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > sizes[2]

    def test_a_better_draft_drafts_more(self, counts: TokenCounts) -> None:
        lengths = [
            fastest(counts, in_seconds(), drafting(rate)).draft_length for rate in (0.5, 0.8, 0.95)
        ]
        assert lengths == sorted(lengths, key=lambda length: length or 0)
        assert lengths[0] != lengths[2]

    def test_a_free_step_of_a_perfect_draft_is_taken_to_the_end(self, counts: TokenCounts) -> None:
        free = DecodingModel([1.0], {1: 1.0}, max_draft_length=9)
        result = fastest(counts, in_seconds(body=1e-9, head=0.0), free, k_max=3000)
        assert result.draft_length == 9
        assert result.coverage == 1

    def test_where_everything_is_covered_the_smallest_is_best(self) -> None:
        one = TokenCounts.from_counts(np.r_[100, np.zeros(99, dtype=np.int64)])
        assert fastest(one, in_seconds(100), drafting()).k == 1


class TestAnswers:
    def test_do_not_trim(self, counts: TokenCounts) -> None:
        """A head that costs nothing gains nothing by being cut, and other text shows the loss."""
        result = fastest(counts, in_seconds(head=1e-9), drafting())
        assert result.expected is not None
        assert result.expected["advice"] == "do not trim"
        assert result.k == WIDTH
        assert result.vocabulary.ids.tolist() == list(range(WIDTH))
        assert result.coverage == result.heldout_coverage == 1
        assert result.reduction == 0
        assert result.expected["chosen"] == result.expected["full"]
        assert result.draft_length
        speeds = {
            name: result.expected[name]["heldout"]["speedup"] for name in ("trimmed", "full")
        }
        assert speeds["full"] > speeds["trimmed"] > 1

    def test_do_not_trim_though_a_largest_size_was_asked_for(self, counts: TokenCounts) -> None:
        result = fastest(counts, in_seconds(head=1e-9), drafting(), k_max=500)
        assert result.expected is not None
        assert result.expected["advice"] == "do not trim"
        assert result.k == 500
        assert result.expected["full"]["k"] == WIDTH
        assert result.curve.sizes[-1] == 500
        assert fastest(counts, in_seconds(head=1e-9), drafting(), k_max=WIDTH).k == WIDTH

    def test_do_not_draft(self, counts: TokenCounts) -> None:
        result = fastest(counts, in_seconds(body=0.1), drafting(0.3))
        assert result.expected is not None
        assert result.expected["advice"] == "do not draft"
        assert result.draft_length == 0
        assert result.utility == 1
        assert result.k == result.expected["trimmed"]["k"] < WIDTH
        assert result.expected["chosen"]["search"]["speedup"] == 1
        assert result.expected["interval"] == [1, 1]
        for name in ("trimmed", "full"):
            assert result.expected[name]["heldout"]["speedup"] < 1

    def test_other_text_decides(self) -> None:
        """The search part is covered whole by ids that the held-out part never says."""
        here, there = np.zeros(100, dtype=np.int64), np.zeros(100, dtype=np.int64)
        here[:50], there[50:] = 100, 100
        seen = fastest(TokenCounts.from_counts(here), in_seconds(100), drafting())
        assert seen.expected is not None
        assert (seen.expected["advice"], seen.expected["judged_on"]) == ("trim", "search")
        unseen = fastest(TokenCounts.from_counts(here, heldout=there), in_seconds(100), drafting())
        assert unseen.expected is not None
        assert unseen.expected["advice"] == "do not trim"
        assert unseen.expected["trimmed"]["k"] == seen.k
        assert unseen.expected["trimmed"]["heldout"]["tokens_per_round"] == 1

    def test_equal_speeds_are_no_reason_to_trim_or_to_draft(self) -> None:
        flat = TokenCounts.from_counts(np.full(10, 5))
        result = fastest(flat, in_seconds(10, head=0.0), drafting(), k_min=1)
        assert result.expected is not None
        assert result.expected["advice"] == "do not trim"
        nothing = DecodingModel([0.0], {1: 1.0})
        result = fastest(flat, in_seconds(10, body=1e-30, head=0.0), nothing, k_min=1)
        assert result.expected is not None
        assert result.expected["advice"] == "do not draft"

    def test_every_id_counted_leaves_the_whole_head(self) -> None:
        flat = TokenCounts.from_counts(np.full(10, 5))
        for method in ("exact", "tpe"):
            result = fastest(flat, in_seconds(10), drafting(), k_min=10, method=method, trials=2)
            assert result.expected is not None
            assert result.expected["trimmed"] is None
            assert result.k == 10
            assert SearchResult.from_dict(result.to_dict()).k == 10


class TestStudy:
    def test_searches_both(self, counts: TokenCounts) -> None:
        latency, decoding = in_seconds(head=0.02), drafting(max_draft_length=8)
        result = fastest(counts, latency, decoding, min_coverage=0.6, method="tpe", trials=60)
        exact = fastest(counts, latency, decoding, min_coverage=0.6)
        trials = result.optuna_study.get_trials(deepcopy=False)
        assert all({*trial.params} == {"vocab_size", "draft_length"} for trial in trials)
        assert {trial.params["draft_length"] for trial in trials} <= set(range(1, 9))
        assert any(trial.constraints["coverage"] > 0 for trial in trials)
        assert result.coverage >= 0.6
        assert result.gap_to_exact == pytest.approx(1 - result.utility / exact.utility)
        assert 0 <= result.gap_to_exact < 0.02
        assert result.study is not None
        assert result.study["best_draft_length"] == result.draft_length
        assert result.study["best_utility"] == pytest.approx(result.utility)

    @pytest.mark.parametrize("trials", [1, 2, 5])
    @pytest.mark.parametrize("every", [False, True])
    def test_few_trials_are_no_reason_not_to_trim(
        self, counts: TokenCounts, trials: int, every: bool
    ) -> None:
        """The answer is the exact search's; what was found is chosen, and said to be worse."""
        if every:  # the whole head is one of the allowed sizes
            counts = TokenCounts.from_counts(zipf() + 1)
        latency, decoding = in_seconds(head=0.02), drafting()
        exact = fastest(counts, latency, decoding)
        result = fastest(counts, latency, decoding, method="tpe", trials=trials, seed=1)
        assert exact.expected is not None
        assert result.expected is not None
        for name in ("advice", "judged_on", "trimmed", "full"):
            assert result.expected[name] == exact.expected[name]
        assert result.expected["advice"] == "trim"
        assert result.study is not None
        assert result.k == result.study["best_size"] < WIDTH
        assert result.draft_length == result.study["best_draft_length"] > 0
        assert result.utility == result.study["best_utility"] < exact.utility
        assert result.gap_to_exact == pytest.approx(1 - result.utility / exact.utility)
        assert SearchResult.from_dict(result.to_dict()).expected == result.expected

    def test_a_found_size_slower_than_the_whole_head_leaves_the_answer(
        self, counts: TokenCounts
    ) -> None:
        weighed = Throughput.of(
            build_space(
                counts, in_seconds(head=0.02), required=(), alpha=0.5, min_coverage=0.0,
                domain_floors=None, k_min=50, k_max=None, multiple_of=1,
            ),
            counts, in_seconds(head=0.02), drafting(), None,
        )  # fmt: skip
        found = (50, 16)
        assert weighed.value(*found) < weighed.decide().expected["full"]["search"]["speedup"]
        decision = weighed.decide(found)
        assert (decision.size, decision.draft_length) == found
        assert decision.expected["advice"] == "trim"
        assert decision.expected["trimmed"] == weighed.decide().expected["chosen"]

    @pytest.mark.parametrize("advice", ["do not trim", "do not draft"])
    def test_other_answers_are_the_exact_ones_too(self, counts: TokenCounts, advice: str) -> None:
        no_draft = advice == "do not draft"
        latency = in_seconds(body=0.1) if no_draft else in_seconds(head=1e-9)
        result = fastest(counts, latency, drafting(0.3), method="tpe", trials=1)
        assert result.expected is not None
        assert result.expected["advice"] == advice
        assert result.study is not None
        assert result.k == (result.study["best_size"] if no_draft else WIDTH)
        assert (result.draft_length == 0) == no_draft
        assert result.gap_to_exact == 0

    def test_goes_on_and_tells_problems_apart(self, counts: TokenCounts) -> None:
        from optuna.storages import InMemoryStorage

        options: dict[str, Any] = {"method": "tpe", "trials": 3, "storage": InMemoryStorage()}
        one = fastest(counts, in_seconds(), drafting(), **options)
        again = fastest(counts, in_seconds(), drafting(), **options)
        other = fastest(counts, in_seconds(), drafting(0.5), **options)
        plain = search_vocabulary(counts, in_seconds(), progress=False, **options)
        studies = [result.study or {} for result in (one, again, other, plain)]
        assert [study["trials_before"] for study in studies] == [0, 3, 0, 0]
        assert studies[1]["evaluations"] <= 3
        assert studies[0]["name"] == studies[1]["name"]
        assert len({study["name"] for study in studies}) == 3


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"decoding": None}, "needs decoding"),
            ({"alpha": 0.7}, "throughput has no weights, got alpha=0.7"),
            ({"preset": "paper"}, "the preset 'paper' is the paper's search"),
            ({"objective": "utility"}, "decoding is for objective='throughput'"),
            ({"min_coverage": 0.99, "k_max": 60}, "min_coverage=0.99 cannot be met"),
        ],
    )
    def test_arguments(self, counts: TokenCounts, options: dict[str, Any], said: str) -> None:
        given: dict[str, Any] = {"objective": "throughput", "decoding": drafting()}
        with pytest.raises(ValueError, match=said):
            search_vocabulary(counts, in_seconds(), **{**given, **options})

    def test_types(self, counts: TokenCounts) -> None:
        with pytest.raises(TypeError, match="must be a DecodingModel, got dict"):
            fastest(counts, in_seconds(), {"acceptance": [0.8]})

    def test_operations_without_a_scale(self, counts: TokenCounts) -> None:
        with pytest.raises(ValueError, match="this latency model counts FLOP"):
            fastest(counts, step(WIDTH), drafting())
        scaled = fastest(counts, step(WIDTH), drafting(draft_step=(WIDTH, 0.005)))
        assert scaled.expected is not None
        assert scaled.expected["advice"] == "trim"


class TestFile:
    def test_round_trip(self, result: SearchResult, tmp_path: Path) -> None:
        result.save(tmp_path / "result.json")
        again = SearchResult.load(tmp_path / "result.json")
        assert (again.k, again.draft_length, again.utility) == (
            result.k,
            result.draft_length,
            result.utility,
        )
        assert again.expected == result.expected
        assert again.curve.heldout_utility is not None
        assert again.to_dict() == json.loads(json.dumps(result.to_dict()))

    def test_only_these_files_are_of_the_second_format(
        self, result: SearchResult, counts: TokenCounts
    ) -> None:
        """A program that knows the first only would take a speed-up for a utility."""
        assert result.to_dict()["format"] == "vtrim_hf.search_result/2"
        plain = search_vocabulary(counts, in_seconds()).to_dict()
        assert plain["format"] == "vtrim_hf.search_result/1"
        assert not {"draft_length", "expected"} & {*plain}
        assert "heldout_utility" not in plain["curve"]

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            ("draft_length", None),
            ("draft_length", -1),
            ("draft_length", 1.5),
            ("draft_length", 99),
            ("expected", None),
            ("expected", []),
            ("expected/advice", "perhaps"),
            ("expected/judged_on", "all"),
            ("expected/plain", {}),
            ("expected/chosen", None),
            ("expected/chosen/k", 7),
            ("expected/chosen/search", None),
            ("expected/trimmed", 1),
            ("expected/full", {"k": 1}),
            ("expected/beyond_measured", "no"),
            ("expected/by_length", [1]),
            ("expected/interval", [2, 1]),
            ("expected/interval", [1]),
            ("expected/interval", ["1", "2"]),
            ("curve/heldout_utility", [1.0]),
            ("curve/heldout_utility", "x"),
        ],
    )
    def test_a_field_that_is_wrong_is_named(
        self, result: SearchResult, path: str, value: Any
    ) -> None:
        data = json.loads(json.dumps(result.to_dict()))
        *way, last = path.split("/")
        inner = data
        for name in way:
            inner = inner[name]
        inner[last] = value
        with pytest.raises(ValueError, match="damaged: ") as error:
            SearchResult.from_dict(data)
        assert path.split("/")[0] in str(error.value) or last in str(error.value)

    def test_a_missing_field_is_named(self, result: SearchResult) -> None:
        for name in ("expected", "draft_length"):
            data = json.loads(json.dumps(result.to_dict()))
            del data[name]
            with pytest.raises(ValueError, match=rf"damaged: KeyError\('{name}'\)"):
                SearchResult.from_dict(data)


@pytest.mark.parametrize("kind", ["trim", "do not trim", "do not draft", "floor", "loaded"])
def test_picture(counts: TokenCounts, kind: str, tmp_path: Path) -> None:
    latency = in_seconds(
        body=0.1 if kind == "do not draft" else 0.001,
        head=1e-9 if kind == "do not trim" else 0.004,
    )
    result = fastest(counts, latency, drafting(), min_coverage=0.9 if kind == "floor" else 0.0)
    if kind == "loaded":
        result.save(tmp_path / "result.json")
        result = SearchResult.load(tmp_path / "result.json")
    text = result.plot(tmp_path / "search.svg").read_text("utf-8")
    assert result.expected is not None
    assert f"chosen: {result.k:,} tokens, {result.draft_length} drafted" in text
    assert f"{result.expected['advice'].capitalize()}: {result.k:,} of 5,000 tokens" in text
    assert "whole head: 5,000 tokens" in text
    assert "held-out part" in text
    assert ("misses a floor" in text) == (kind == "floor")
