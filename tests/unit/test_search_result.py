"""A search result as a value: to JSON and back, and what a damaged file says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_samples import step, zipf
from vtrim_hf.search import search_vocabulary
from vtrim_hf.search_curve import SearchCurve, thinned
from vtrim_hf.search_result import SearchResult
from vtrim_hf.token_counts import TokenCounts


@pytest.fixture(scope="module")
def results() -> dict[str, SearchResult]:
    one = TokenCounts.from_counts(zipf(), domain="sql")
    two = TokenCounts.merge(
        TokenCounts.from_counts(zipf(), heldout=zipf(seed=4), domain="sql"),
        TokenCounts.from_counts(zipf(seed=3), domain="chat"),
    )
    options: dict[str, Any] = {"method": "tpe", "trials": 5, "progress": False}
    return {
        "exact": search_vocabulary(two, step(5000), required=[9, 3], domain_floors=0.9),
        "tpe": search_vocabulary(two, step(5000), min_coverage=0.9, **options),
        "nothing-held-out": search_vocabulary(one, step(5000)),
        "usual": search_vocabulary(TokenCounts.from_counts(zipf(40_000)), step(40_000)),
    }


KINDS = ["exact", "tpe", "nothing-held-out", "usual"]


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(results: dict[str, SearchResult], kind: str, tmp_path: Path) -> None:
    result = results[kind]
    result.save(tmp_path / "result.json")
    again = SearchResult.load(tmp_path / "result.json")
    assert again.vocabulary == result.vocabulary
    assert again.vocabulary.provenance == json.loads(
        json.dumps(dict(result.vocabulary.provenance))
    )
    assert again.vocabulary.cut(60) == result.vocabulary.cut(60)
    for name in (
        "k",
        "utility",
        "coverage",
        "coverage_interval",
        "heldout_coverage",
        "heldout_interval",
        "reduction",
        "gap_to_exact",
        "study",
        "method",
        "front",
        "usual",
        "per_domain",
        "weak_domains",
    ):
        assert getattr(again, name) == getattr(result, name), name
    assert len(again.curve.sizes) <= 200
    assert result.k in again.curve.sizes
    assert again.to_dict() == json.loads(json.dumps(result.to_dict()))
    assert not list(tmp_path.glob(".result.json*"))


def test_file_is_small(results: dict[str, SearchResult], tmp_path: Path) -> None:
    results["exact"].save(tmp_path / "deep" / "result.json")
    assert (tmp_path / "deep" / "result.json").stat().st_size < 150_000


class TestDamage:
    @pytest.fixture
    def path(self, results: dict[str, SearchResult], tmp_path: Path) -> Path:
        results["exact"].save(tmp_path / "result.json")
        return tmp_path / "result.json"

    def damage(self, path: Path, change: Any) -> None:
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    def test_changed_ids(self, path: Path) -> None:
        def change(data: dict[str, Any]) -> None:
            ids = data["vocabulary"]["ids_by_need"]
            ids[-1] = next(i for i in range(5000) if i not in set(ids))

        self.damage(path, change)
        with pytest.raises(ValueError, match=r"result.json: the ids have the fingerprint"):
            SearchResult.load(path)

    @pytest.mark.parametrize("field", ["k", "vocabulary", "front", "curve", "per_domain"])
    def test_missing_field(self, path: Path, field: str) -> None:
        self.damage(path, lambda data: data.pop(field))
        with pytest.raises(ValueError, match=rf"damaged: KeyError\('{field}'\)"):
            SearchResult.load(path)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "\x00",
            pytest.param("[" * 100_000, id="deep"),
            "[1]",
            '"text"',
            "{}",
            '{"format": "x/9"}',
        ],
    )
    def test_something_else(self, path: Path, text: str) -> None:
        path.write_text(text)
        with pytest.raises(ValueError, match=r"result\.json"):
            SearchResult.load(path)

    def test_cut_off(self, path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(ValueError, match="is no search result"):
            SearchResult.load(path)

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            SearchResult.load(tmp_path / "none.json")

    def test_failed_save_keeps_the_old_file(
        self, results: dict[str, SearchResult], path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = path.read_bytes()

        def full(*_: Any) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="disk full"):
            results["tpe"].save(path)
        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]


def curve(coverage: Any, reduction: Any) -> SearchCurve:
    sizes = np.arange(1, len(coverage) + 1)
    c, r = np.asarray(coverage, dtype=float), np.asarray(reduction, dtype=float)
    return SearchCurve(sizes, c, None, r, c + r, np.ones(len(c), dtype=bool))


class TestFront:
    def test_plateaus(self) -> None:
        positions = curve([0.5, 0.5, 0.6, 0.7, 0.7], [0.9, 0.9, 0.9, 0.8, 0.7]).front()
        assert positions.tolist() == [2, 3]

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
    def test_is_what_no_other_point_beats(self, steps: list[tuple[int, int]]) -> None:
        coverage = np.cumsum([up for up, _ in steps])
        reduction = 100 - np.cumsum([down for _, down in steps])
        points = list(zip(coverage.tolist(), reduction.tolist(), strict=True))
        wanted = [
            i
            for i, (c, r) in enumerate(points)
            if not any(
                (a >= c and b >= r and (a > c or b > r)) or ((a, b) == (c, r) and j < i)
                for j, (a, b) in enumerate(points)
            )
        ]
        assert curve(coverage, reduction).front().tolist() == wanted


class TestThinned:
    @pytest.mark.parametrize("size", [1, 2, 199, 200, 201, 1000, 128_256])
    def test_ends_and_choice_stay(self, size: int) -> None:
        chosen = size // 3
        kept = thinned(np.arange(size), chosen)
        assert kept.size <= 200
        assert {0, chosen, size - 1} <= set(kept.tolist())
        assert np.all(np.diff(kept) > 0)

    def test_choice_that_is_not_there_is_not_added(self) -> None:
        assert 301 not in thinned(np.arange(0, 2000, 2), 301)


def _set(data: Any, path: str, value: Any) -> None:
    *way, last = path.split("/")
    for name in way:
        data = data[name]
    data[last] = value


def each(field: str, *values: Any) -> list[tuple[str, Any]]:
    return [(field, value) for value in values]


WRONG: list[tuple[str, Any]] = [
    *each("k", "x", 1.5, True, 0, None, 10**30),
    *each("utility", None, "1", [], 10**400),
    *each("gap_to_exact", None, "1", [], 10**400),
    ("gap_to_exact", -1),
    *each("coverage", [], None, 1.2, -0.1, True, float("nan")),
    *each("coverage_interval", None, [0.5], [0.9, 0.1], [0, 2], {"a": 0}),
    *each("heldout_coverage", "1", 3, False),
    *each("heldout_interval", 0, [], [1, 2, 3], "ab"),
    *each("reduction", 2, None, "x", float("inf")),
    *each("settings", -1, None, [], {"min_coverage": "x"}, {"latency": 3}),
    *each("per_domain", None, [], {"sql": 1}),
    *each("per_domain/sql/weak", None, 1),
    *each("per_domain/sql/coverage", "x", 2),
    *each("per_domain/sql/interval", 1, [1]),
    *each("per_domain/sql/tokens", -1, 1.5),
    *each("front", None, [[1, 2]], [1], [["x", 0.5, 0.5]], {"a": 1}),
    *each("usual", 0, [1, 2], {}),
    *each("study", 0, [], "x"),
    *each("method", None, "guess", []),
    *each("vocabulary", None, [], "x"),
    *each("curve", None, []),
    *each("curve/sizes", None, [], [3, 2], ["x"], [10**30]),
    *each("curve/coverage", None, [0.5], ["x"]),
    *each("curve/feasible", None, [1], [True]),
    *each("curve/domain_coverage", None, [], {"sql": [0.5]}),
]


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_a_field_that_is_wrong_is_named(
    results: dict[str, SearchResult], path: str, value: Any
) -> None:
    data = json.loads(json.dumps(results["exact"].to_dict()))
    _set(data, path, value)
    with pytest.raises(ValueError, match="damaged: ") as error:
        SearchResult.from_dict(data)
    for name in path.split("/"):
        assert name in str(error.value)


def test_the_size_is_that_of_the_vocabulary(results: dict[str, SearchResult]) -> None:
    data = results["nothing-held-out"].to_dict()
    data["k"] = next(size for size in data["curve"]["sizes"] if size != data["k"])
    with pytest.raises(ValueError, match=rf"k is {data['k']}, but the vocabulary holds"):
        SearchResult.from_dict(data)


@pytest.mark.parametrize("data", [None, [], "x", 3])
def test_what_is_no_object_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="a search result says format"):
        SearchResult.from_dict(data)
