"""Every size's figures, the exact optimum against brute force, and what cannot be met."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_samples import space_of, step, two_domains
from vtrim_hf.latency import LatencyModel
from vtrim_hf.search_space import running_coverage
from vtrim_hf.token_counts import TokenCounts


class TestFigures:
    def test_by_hand(self) -> None:
        space = space_of([1, 0, 6, 3], latency=step(4, body=4.0))
        assert space.ranked.tolist() == [2, 3, 0]
        assert space.sizes.tolist() == [1, 2, 3]  # never id 1, which was not counted
        assert space.coverage.tolist() == [0.6, 0.9, 1.0]
        assert space.reduction.tolist() == [1 - 5 / 8, 1 - 6 / 8, 1 - 7 / 8]
        assert space.utility == pytest.approx([0.4875, 0.575, 0.5625])
        assert space.best_size() == 2

    def test_required_come_first_and_their_counts_count(self) -> None:
        space = space_of([1, 0, 6, 3], required=[0, 1])
        assert space.ranked.tolist() == [0, 1, 2, 3]
        assert space.sizes.tolist() == [2, 3, 4]
        assert space.coverage.tolist() == [0.1, 0.7, 1.0]

    def test_equal_utility_takes_the_smaller(self) -> None:
        space = space_of(
            [5, 5, 5, 5],
            alpha=0.0,
            latency=LatencyModel(4, "measured", "s", {"rest": 1.0}, (1, 4), (1.0, 1.0)),
        )
        assert space.best_size() == 1

    @pytest.mark.parametrize("size", [500, 250])
    def test_never_more_than_what_occurs_and_what_is_required(self, size: int) -> None:
        """[pangoleen/qwen3.8-flash-next-dgx-spark#1] a size chosen by habit, not from counts."""
        counts = np.zeros(5000, dtype=np.int64)
        counts[1000 : 1000 + size] = np.arange(1, size + 1)
        space = space_of(counts, required=range(7), alpha=1.0)
        assert space.sizes[-1] == size + 7
        assert space.best_size() == size + 7
        assert set(space.ranked.tolist()) == {*range(7), *range(1000, 1000 + size)}

    def test_smaller_draft_than_counts(self) -> None:
        counts = np.arange(20)
        space = space_of(counts, latency=step(12, body=10.0))
        assert space.sizes[-1] == 12

    def test_running_coverage_of_nothing(self) -> None:
        nothing = running_coverage(np.zeros(3, dtype=np.int64), np.arange(3), np.arange(1, 4))
        assert np.isnan(nothing).all()


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    width = draw(st.integers(2, 14))
    arrays = [draw(st.lists(st.integers(0, 9), min_size=width, max_size=width)) for _ in range(2)]
    floors = st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9, 1.0])
    return {
        "sql": [*arrays[0][:-1], arrays[0][-1] + 1],
        "chat": [arrays[1][0] + 1, *arrays[1][1:]],
        "required": draw(st.sets(st.integers(0, width - 1), max_size=width)),
        "alpha": draw(st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0])),
        "min_coverage": draw(floors),
        "domain_floors": draw(st.one_of(st.none(), floors, st.just({"sql": 0.8}))),
        "k_min": draw(st.integers(1, width)),
        "k_max": draw(st.one_of(st.none(), st.integers(1, width))),
        "multiple_of": draw(st.sampled_from([1, 1, 2, 3])),
        "body": draw(st.sampled_from([0.0, 5.0, 50.0])),
    }


def brute_force(problem: dict[str, Any]) -> tuple[int, float] | None:
    """Try every size, with sets and sums."""
    sql, chat = problem["sql"], problem["chat"]
    both = [a + b for a, b in zip(sql, chat, strict=True)]
    width = len(both)
    required = sorted(problem["required"])
    rest = [i for i in range(width) if both[i] and i not in problem["required"]]
    order = required + sorted(rest, key=lambda i: (-both[i], i))
    floors = problem["domain_floors"]
    if not isinstance(floors, dict):
        floors = {"sql": floors or 0.0, "chat": floors or 0.0}
    if problem["k_max"] and problem["k_max"] < problem["k_min"]:
        return None  # refused, whatever was counted
    best = None
    low = max(min(problem["k_min"], len(order)), len(required))
    for k in range(low, min(problem["k_max"] or width, len(order)) + 1):
        kept = order[:k]
        share = sum(both[i] for i in kept) / sum(both)
        shares = {"sql": sum(sql[i] for i in kept) / sum(sql)}
        shares["chat"] = sum(chat[i] for i in kept) / sum(chat)
        if k % problem["multiple_of"] or share < problem["min_coverage"] - 1e-9:
            continue
        if any(shares[name] < floor - 1e-9 for name, floor in floors.items()):
            continue
        saved = 1 - (problem["body"] + k) / (problem["body"] + width)
        worth = problem["alpha"] * share + (1 - problem["alpha"]) * saved
        if best is None or worth > best[1] + 1e-12:
            best = (k, worth)
    return best


class TestExact:
    @settings(max_examples=300, deadline=None)
    @given(problems())
    def test_is_what_brute_force_finds(self, problem: dict[str, Any]) -> None:
        counts = two_domains(problem["sql"], problem["chat"])
        options = {k: v for k, v in problem.items() if k not in ("sql", "chat", "body")}
        wanted = brute_force(problem)
        try:
            space = space_of(
                counts, latency=step(counts.vocab_size, body=problem["body"]), **options
            )
        except ValueError:
            assert wanted is None
            return
        assert wanted is not None
        found = space.best_size()
        assert space.utility[space.position(found)] == pytest.approx(wanted[1], abs=1e-9)
        assert found % problem["multiple_of"] == 0

    @settings(max_examples=50, deadline=None)
    @given(st.integers(2, 60), st.integers(0, 2**32 - 1), st.floats(0.01, 0.99))
    def test_is_the_closed_form_without_floors(self, width: int, seed: int, alpha: float) -> None:
        """U is concave for a linear cost: keep what is worth more than a row costs."""
        counts = np.random.default_rng(seed).integers(1, 1000, width)
        space = space_of(counts, alpha=alpha)
        price = (1 - alpha) / alpha / (10 + width)
        worth = int((counts / counts.sum() > price).sum())
        found = space.utility[space.position(space.best_size())]
        assert found == pytest.approx(space.utility[space.position(max(1, worth))], abs=1e-12)

    def test_cost_that_is_not_linear(self) -> None:
        """A measured cost may have steps; the optimum is still the best of all sizes."""
        counts = np.arange(100, 0, -1)
        stairs = LatencyModel(
            100, "measured", "s", {"rest": 1.0}, (1, 30, 31, 64, 65, 100), (1, 1, 5, 5, 9, 9)
        )
        space = space_of(counts, latency=stairs)
        assert space.best_size() in (30, 64)
        assert space.utility.max() == space.utility[space.position(space.best_size())]


class TestImpossible:
    def test_coverage_beyond_k_max(self) -> None:
        with pytest.raises(ValueError, match=r"min_coverage=0\.95 cannot be met") as error:
            space_of([50, 30, 10, 10], min_coverage=0.95, k_max=3)
        assert "the nearest coverage is 0.900000, at k=3" in str(error.value)
        assert "it takes k=4" in str(error.value)

    def test_floor_of_a_domain(self) -> None:
        counts = two_domains([90, 10, 0, 0], [0, 0, 4, 6])
        with pytest.raises(ValueError, match=r"the floor of domain 'chat'=0\.7") as error:
            space_of(counts, domain_floors={"chat": 0.7, "sql": 0.9}, k_max=3)
        assert "the nearest coverage is 0.600000, at k=3" in str(error.value)

    def test_the_nearest_is_the_first_of_equals(self) -> None:
        counts = two_domains([90, 10, 5, 0], [0, 0, 0, 2])
        with pytest.raises(ValueError, match="at k=1;"):
            space_of(counts, domain_floors={"chat": 0.7}, k_max=3)

    def test_domain_of_no_weight(self) -> None:
        counts = TokenCounts.merge(
            TokenCounts.from_counts([5, 5, 0], domain="sql"),
            TokenCounts.from_counts([1, 0, 9], domain="chat"),
            weights=[1.0, 0.0],
        )
        with pytest.raises(ValueError, match="no size covers more: lower it"):
            space_of(counts, domain_floors={"chat": 0.5})

    def test_domain_without_tokens(self) -> None:
        counts = two_domains([5, 5], [0, 0])
        with pytest.raises(ValueError, match=r"'chat'=0\.5 cannot be met: its search part has no"):
            space_of(counts, domain_floors=0.5)
        assert space_of(counts, domain_floors=0.0).best_size() >= 1

    def test_floor_that_multiples_jump_over(self) -> None:
        with pytest.raises(ValueError, match=r"at k=4; it takes k=5: .* lower multiple_of"):
            space_of([2, 2, 2, 2, 2], min_coverage=1.0, multiple_of=4)

    def test_floor_that_is_met_exactly(self) -> None:
        counts = [1] * 10  # 7 / 10 and 0.7 differ in floating point from sums of tenths
        assert space_of(counts, min_coverage=0.7, alpha=0.0).best_size() == 7
        assert space_of(counts, min_coverage=1.0, alpha=0.0).best_size() == 10

    def test_more_required_than_room(self) -> None:
        """[MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark#43] too small a k names the minimum."""
        with pytest.raises(ValueError, match="k_max must be at least 5, got 4"):
            space_of([1] * 10, required=range(5), k_max=4)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"alpha": 1.1}, r"alpha must lie in \[0, 1\], got 1.1"),
            ({"alpha": float("nan")}, r"alpha must lie in \[0, 1\], got nan"),
            ({"min_coverage": -0.1}, r"min_coverage must lie in \[0, 1\], got -0.1"),
            ({"min_coverage": 97}, "got 97"),
            ({"domain_floors": {"sql": 0.5}}, "names the domain 'sql', but .* is 'default'"),
            ({"domain_floors": 2.0}, "the floor of domain 'default' must lie in"),
            ({"k_min": 0}, "at least 1, got 0 and 1"),
            ({"multiple_of": 0}, "at least 1, got 1 and 0"),
            ({"k_min": 5, "k_max": 4}, "k_max must not be below k_min=5, got 4"),
            ({"multiple_of": 64}, "no multiple of 64 lies between 1 and 10"),
            ({"required": [10]}, r"required ids must lie in \[0, 10\), got 10"),
            ({"latency": step(5000, body=10.0)}, "10 tokens, the latency model for one of 5000"),
        ],
    )
    def test_arguments(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            space_of([1] * 10, **options)

    def test_nothing_counted(self) -> None:
        with pytest.raises(ValueError, match="the search part of the counts is empty"):
            space_of([0] * 10, required=[1])

    def test_k_min_above_what_there_is(self) -> None:
        assert space_of([1] * 10, k_min=50).sizes.tolist() == [10]
