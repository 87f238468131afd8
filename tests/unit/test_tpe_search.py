"""The Optuna study: constraints on every trial, no work twice, resuming, and how good it is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from search_samples import space_of, step, zipf
from vtrim_hf.latency import LatencyModel
from vtrim_hf.search import search_vocabulary
from vtrim_hf.token_counts import TokenCounts
from vtrim_hf.tpe_search import run_study, space_hash

PROBLEM = {"alpha": 0.5}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'study.db'}"


@pytest.fixture
def storage() -> Any:
    """A storage that outlives a study, without the wait for a disk."""
    return optuna.storages.InMemoryStorage()


def sizes_of(study: Any) -> list[int]:
    return [trial.params["vocab_size"] for trial in study.get_trials(deepcopy=False)]


class TestConstraints:
    def test_on_every_trial_of_a_search(self) -> None:
        """[optuna/optuna#4265] a trial that says nothing counts as feasible, and may win."""
        counts = TokenCounts.merge(
            TokenCounts.from_counts(zipf(seed=1), domain="sql"),
            TokenCounts.from_counts(zipf(seed=2), domain="chat"),
        )
        result = search_vocabulary(
            counts,
            step(5000),
            method="tpe",
            min_coverage=0.95,
            domain_floors={"chat": 0.96},
            trials=40,
            progress=False,
        )
        trials = result.optuna_study.get_trials(deepcopy=False)
        broken = 0
        for trial in trials:
            assert trial.state == TrialState.COMPLETE
            limits = trial.constraints
            assert set(limits) == {"coverage", "coverage:chat"}
            broken += any(value > 0 for value in limits.values())
        assert broken, "the study never left the feasible sizes, so this shows nothing"
        assert result.coverage >= 0.95
        assert result.per_domain["chat"]["coverage"] >= 0.96

    def test_even_without_a_floor(self) -> None:
        space = space_of(zipf(), k_min=50)
        outcome = run_study(
            space, lambda size: float(size), PROBLEM, trials=5, seed=0, progress=False
        )
        assert all("coverage" in t.constraints for t in outcome.study.get_trials(deepcopy=False))

    def test_objective_that_raises_half_way(self, storage: Any) -> None:
        """[optuna/optuna#5184] the trial fails; every complete one has its constraint."""
        space = space_of(zipf(), k_min=50, min_coverage=0.9)
        calls = 0

        def fails_at_the_eighth(size: int) -> float:
            nonlocal calls
            calls += 1
            if calls == 8:
                raise RuntimeError("out of memory")
            return float(space.utility[space.position(size)])

        def run() -> Any:
            return run_study(
                space,
                fails_at_the_eighth,
                PROBLEM,
                trials=20,
                seed=0,
                storage=storage,
                progress=False,
            )

        with pytest.raises(RuntimeError, match="out of memory"):
            run()
        outcome = run()  # goes on
        trials = outcome.study.get_trials(deepcopy=False)
        assert [t.state for t in trials].count(TrialState.FAIL) == 1
        assert all("coverage" in t.constraints for t in trials if t.state == TrialState.COMPLETE)
        assert space.coverage[space.position(outcome.size)] >= 0.9
        assert outcome.facts["trials_before"] == 8

    def test_the_best_breaks_no_constraint_though_others_are_worth_more(self) -> None:
        """[optuna/optuna#6825] the summary names an infeasible best; the best trial does not."""
        space = space_of(zipf(), k_min=50, min_coverage=0.999, alpha=0.01)
        outcome = run_study(
            space,
            lambda size: float(space.utility[space.position(size)]),
            PROBLEM,
            trials=30,
            seed=0,
            progress=False,
        )
        values = [trial.value for trial in outcome.study.get_trials(deepcopy=False)]
        assert max(values) > outcome.facts["best_utility"]
        assert space.coverage[space.position(outcome.size)] >= 0.999

    @pytest.mark.parametrize("trials", [1, 3])
    def test_where_chance_would_find_no_feasible_size(self, trials: int) -> None:
        """[optuna/optuna#2867] best_trial raises when no trial is feasible: one always is."""
        counts = np.r_[np.full(4000, 1000), 1]
        space = space_of(counts, k_min=50, min_coverage=1.0)
        outcome = run_study(
            space, lambda size: -float(size), PROBLEM, trials=trials, seed=0, progress=False
        )
        assert outcome.size == 4001
        assert outcome.facts["trials"] == trials
        assert outcome.facts["smallest_feasible"] == 4001

    def test_the_smallest_feasible_size_is_tried_once(self, storage: Any) -> None:
        space = space_of(zipf(), k_min=50, min_coverage=0.95)
        for _ in range(3):
            outcome = run_study(
                space, float, PROBLEM, trials=2, seed=0, storage=storage, progress=False
            )
        sizes = sizes_of(outcome.study)
        assert sizes[0] == outcome.facts["smallest_feasible"]
        assert sizes.count(sizes[0]) == 1

    def test_without_floors_nothing_is_given_away(self) -> None:
        outcome = run_study(
            space_of(zipf(), k_min=50), float, PROBLEM, trials=3, seed=0, progress=False
        )
        assert outcome.facts["smallest_feasible"] == 50
        assert 50 not in sizes_of(outcome.study)


class TestNoWorkTwice:
    def test_one_evaluation_a_size(self) -> None:
        """[optuna, observed] small spaces are sampled over and over."""
        space = space_of([9, 8, 7, 6, 5, 4, 3])
        seen: list[int] = []

        def evaluate(size: int) -> float:
            seen.append(size)
            return float(space.utility[space.position(size)])

        outcome = run_study(space, evaluate, PROBLEM, trials=40, seed=0, progress=False)
        sizes = sizes_of(outcome.study)
        assert len(sizes) == 40
        assert sorted(seen) == sorted(set(sizes))
        assert outcome.facts["evaluations"] == outcome.facts["distinct_sizes"] == len(seen)

    def test_nor_after_resuming(self, storage: Any) -> None:
        space = space_of([9, 8, 7, 6, 5, 4, 3])
        seen: list[int] = []

        def evaluate(size: int) -> float:
            seen.append(size)
            return float(size)

        for _ in range(3):
            outcome = run_study(
                space, evaluate, PROBLEM, trials=12, seed=0, storage=storage, progress=False
            )
        assert len(seen) == len(set(seen))
        assert outcome.facts["trials"] == 36

    def test_only_multiples_are_proposed(self) -> None:
        space = space_of(zipf(), k_min=50, multiple_of=64)
        outcome = run_study(space, float, PROBLEM, trials=20, seed=0, progress=False)
        sizes = sizes_of(outcome.study)
        assert all(size % 64 == 0 for size in sizes)
        assert set(sizes) <= set(space.sizes.tolist())


class TestSeedsAndResuming:
    def run(self, space: Any, **options: Any) -> Any:
        def evaluate(size: int) -> float:
            return float(space.utility[space.position(size)])

        given: dict[str, Any] = {"problem": PROBLEM, "trials": 10, "seed": 7} | options
        return run_study(space, evaluate, given.pop("problem"), progress=False, **given)

    def test_same_seed_same_trials(self) -> None:
        """[optuna/optuna#4412]"""
        space = space_of(zipf(), k_min=50)
        one, two = (self.run(space, trials=25) for _ in range(2))
        assert sizes_of(one.study) == sizes_of(two.study)
        assert sizes_of(self.run(space, trials=25, seed=8).study) != sizes_of(one.study)

    @pytest.mark.parametrize("first", [3, 5, 10], ids=lambda n: f"stopped-after-{n}")
    def test_resuming_does_not_repeat_the_start_up_points(self, storage: Any, first: int) -> None:
        """[optuna/optuna#6344] with one seed, a resumed study began with the same points."""
        space = space_of(zipf(), k_min=50)
        self.run(space, trials=first, storage=storage)
        resumed = self.run(space, trials=10, storage=storage)
        sizes = sizes_of(resumed.study)
        assert len(sizes) == first + 10
        assert resumed.facts["trials_before"] == first
        assert sizes[:first] != sizes[first : 2 * first]
        assert len(set(sizes[:first]) & set(sizes[first : 2 * first])) == 0

    def test_other_problem_other_study(self, storage: Any) -> None:
        """[optuna/optuna#2199] resuming with other choices would raise, or mix two problems."""
        one = self.run(space_of(zipf(), k_min=50), storage=storage)
        two = self.run(space_of(zipf(seed=5), k_min=60), storage=storage, problem={"alpha": 0.6})
        assert one.facts["name"] != two.facts["name"]
        assert two.facts["trials_before"] == 0
        assert len(optuna.get_all_study_names(storage)) == 2

    def test_hash_is_of_everything_that_matters(self, storage: Any) -> None:
        base: dict[str, Any] = {"counts": TokenCounts.from_counts(zipf()), "latency": step(5000)}
        variants: list[dict[str, Any]] = [
            {},
            {"counts": TokenCounts.from_counts(zipf(seed=3))},
            {"latency": step(5000, body=1.0)},
            {"alpha": 0.6},
            {"min_coverage": 0.5},
            {"domain_floors": 0.5},
            {"required": [1]},
            {"k_min": 51},
            {"k_max": 2000},
            {"multiple_of": 2},
        ]
        for variant in variants:
            options = base | variant
            search_vocabulary(
                options.pop("counts"),
                options.pop("latency"),
                method="tpe",
                trials=1,
                storage=storage,
                progress=False,
                **options,
            )
        assert len(optuna.get_all_study_names(storage)) == len(variants)
        again = search_vocabulary(
            base["counts"],
            base["latency"],
            method="tpe",
            trials=2,
            seed=1,
            storage=storage,
            progress=False,
        )
        assert again.study is not None
        assert again.study["trials"] == 3
        assert len(optuna.get_all_study_names(storage)) == len(variants)

    def test_hash_does_not_depend_on_order(self) -> None:
        assert space_hash({"a": 1, "b": [2]}) == space_hash({"b": [2], "a": 1})
        assert space_hash({"a": 1}) != space_hash({"a": 2})

    def test_name_begins_as_asked(self, storage: Any) -> None:
        outcome = self.run(space_of(zipf()), storage=storage, study_name="sql-draft")
        assert outcome.facts["name"].startswith("sql-draft-")
        assert optuna.get_all_study_names(storage) == [outcome.facts["name"]]


class TestStorage:
    def test_file_from_process_to_process(self, url: str) -> None:
        counts = TokenCounts.from_counts(zipf())
        first, second = (
            search_vocabulary(
                counts, step(5000), method="tpe", trials=6, storage=url, progress=False
            )
            for _ in range(2)
        )
        assert first.study is not None
        assert second.study is not None
        assert second.study["name"] == first.study["name"]
        assert second.study["trials_before"] == 6
        assert second.study["storage"] == url
        stored = optuna.load_study(study_name=second.study["name"], storage=url)
        sizes = sizes_of(stored)
        assert len(sizes) == 12
        assert sizes[:6] != sizes[6:]
        assert all("coverage" in trial.constraints for trial in stored.trials)

    def test_object(self) -> None:
        storage = optuna.storages.InMemoryStorage()
        counts = TokenCounts.from_counts(zipf())
        for _ in range(2):
            result = search_vocabulary(
                counts, step(5000), method="tpe", trials=4, storage=storage, progress=False
            )
        assert result.study is not None
        assert result.study["trials"] == 8
        assert result.study["storage"] == "InMemoryStorage"

    def test_password_is_not_kept(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from vtrim_hf import tpe_search

        secret = "postgresql://me:hunter2@db.example/studies"
        monkeypatch.setattr(
            tpe_search, "_open_storage", lambda _: (optuna.storages.InMemoryStorage(), bool)
        )
        result = search_vocabulary(
            TokenCounts.from_counts(zipf()),
            step(5000),
            method="tpe",
            trials=2,
            storage=secret,
            progress=False,
        )
        assert result.study is not None
        assert result.study["storage"] == "postgresql://me:***@db.example/studies"
        assert "hunter2" not in str(result.to_dict())

    def test_no_url(self) -> None:
        with pytest.raises(ValueError, match=r"sqlite:///study\.db, got 'study\.db'"):
            search_vocabulary(
                TokenCounts.from_counts(zipf()), step(5000), method="tpe", storage="study.db"
            )

    def test_logging_is_left_as_it_was(self, capfd: pytest.CaptureFixture[str]) -> None:
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(logging.DEBUG)
        try:
            search_vocabulary(
                TokenCounts.from_counts(zipf()),
                step(5000),
                method="tpe",
                trials=2,
                progress=False,
            )
            assert optuna.logging.get_verbosity() == logging.DEBUG
        finally:
            optuna.logging.set_verbosity(before)
        assert "Trial" not in capfd.readouterr().err

    def test_progress_bar(self, capfd: pytest.CaptureFixture[str]) -> None:
        counts = TokenCounts.from_counts(zipf())
        search_vocabulary(counts, step(5000), method="tpe", trials=3)
        assert "3/3" in capfd.readouterr().err


SHAPES = {
    "coverage-weighs": {"alpha": 0.9},
    "latency-weighs": {"alpha": 0.1},
    "latency-alone": {"alpha": 0.0},
    "coverage-alone": {"alpha": 1.0},
    "at-a-constraint": {"alpha": 0.5, "min_coverage": 0.98},
    "narrow-constraint": {"alpha": 0.3, "min_coverage": 0.9995},
    "multiples": {"alpha": 0.5, "multiple_of": 64},
}


def gaps(options: dict[str, Any], seeds: range) -> list[float]:
    counts = TokenCounts.from_counts(zipf(128_256, 40_000, 2_000_000))
    latency = LatencyModel(
        128_256, "flops", "FLOP", {"body": 587.2e6}, (0, 128_256), (0.0, 1050.67e6)
    )
    return [
        search_vocabulary(
            counts,
            latency,
            method="tpe",
            trials=100,
            seed=seed,
            progress=False,
            k_max=50_000,
            **options,
        ).gap_to_exact
        for seed in seeds
    ]


@pytest.mark.newest
def test_twenty_seeds_come_within_a_thousandth() -> None:
    """Without floors, where TPE is helped by nothing."""
    found = gaps({"alpha": 0.5}, range(20))
    assert min(found) >= 0
    assert max(found) < 0.001


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_twenty_seeds_of_every_shape(shape: str) -> None:
    assert max(gaps(SHAPES[shape], range(20))) < 0.001
