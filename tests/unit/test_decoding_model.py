"""Expected tokens a second: against simulated rounds, out of reports, timed, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_models import make_tiny
from vtrim_hf import forward_timing
from vtrim_hf.decode_report import DecodeReport
from vtrim_hf.decoding_model import DecodingModel
from vtrim_hf.latency import LatencyModel
from vtrim_hf.latency_timing import WARM_UP

SHIPPED = (
    Path(__file__).resolve().parents[2] / "examples/drafts/smollm2_wikisql/decode_report.json"
)

WIDTH = 1000


@pytest.fixture(scope="module")
def report() -> DecodeReport:
    return DecodeReport.load(SHIPPED)


def in_seconds(body: float = 0.001, row: float = 1e-6, unit: str = "s") -> LatencyModel:
    return LatencyModel(WIDTH, "measured", unit, {"body": body}, (0, WIDTH), (0.0, row * WIDTH))


def sizes(*values: int) -> np.ndarray:
    return np.asarray(values, dtype=np.int64)


rates = st.lists(st.floats(0, 1), min_size=1, max_size=6)
shares = st.floats(0.01, 1)


class TestExpectation:
    @pytest.mark.parametrize("length", [1, 3, 7])
    @pytest.mark.parametrize(("covered", "reference"), [(1.0, 1.0), (0.8, 1.0), (0.6, 0.9)])
    def test_simulated_rounds_agree(self, length: int, covered: float, reference: float) -> None:
        """Words are drawn and looked up in two vocabularies; no formula of the model is used."""
        rng = np.random.default_rng(7)
        rounds, words = 200_000, 1000
        # Word i is the draft's right guess with the same chance, whichever it is; those of the
        # reference's vocabulary are the first ones, and k rows are a part of them.
        known = np.arange(words) < covered * words
        given_in = np.asarray([0.9, 0.8, 0.85])  # by position, where the word is in both
        said = rng.integers(words, size=(rounds, length))
        chance = given_in[np.minimum(np.arange(length), 2)]
        right = (rng.random((rounds, length)) < chance) & known[said]
        tokens = 1 + np.cumprod(right, axis=1).sum(axis=1)
        seconds = 0.03 + 0.001 * length + length * 0.002 + 0.0005
        model = DecodingModel(
            (given_in * reference).tolist(), {1: 0.03, 9: 0.038}, coverage=reference,
            overhead=0.0005,
        )  # fmt: skip
        step = np.asarray([0.002])
        expected = model.tokens_per_round(np.asarray([covered]))[length, 0]
        spread = tokens.std() / np.sqrt(rounds)
        assert abs(tokens.mean() - expected) < 5 * spread
        speedup = model.speedups(np.asarray([covered]), step)[length, 0]
        simulated = tokens.sum() / (rounds * seconds) * 0.03
        assert speedup == pytest.approx(simulated, rel=5 * spread / expected)

    def test_by_hand(self) -> None:
        model = DecodingModel([0.5, 0.5], {1: 2.0, 3: 3.0}, overhead=0.25, max_draft_length=3)
        tokens = model.tokens_per_round(np.asarray([1.0, 0.5]))
        assert tokens[:, 0].tolist() == [1, 1.5, 1.75, 1.875]
        assert tokens[:, 1].tolist() == [1, 1.25, 1.3125, 1.328125]
        speedups = model.speedups(np.asarray([1.0]), np.asarray([0.5]))[:, 0]
        assert speedups[0] == 1
        assert speedups[2] == pytest.approx(1.75 / (3.0 + 2 * 0.5 + 0.25) * 2)
        # Beyond what was measured time goes on as it rose, and the last rate is repeated.
        assert speedups[3] == pytest.approx(1.875 / (3.5 + 3 * 0.5 + 0.25) * 2)

    def test_a_rate_is_never_above_one(self) -> None:
        model = DecodingModel([0.9], {1: 1.0}, coverage=0.5)
        assert model.tokens_per_round(np.asarray([1.0]))[16, 0] == 17

    def test_time_beyond_a_single_point_stays(self) -> None:
        assert DecodingModel([0.9], {1: 2.0}).forward_seconds(np.asarray([1.0, 9.0])).tolist() == [
            2,
            2,
        ]

    def test_plain_decoding_may_be_faster_than_the_target_beside_a_draft(self) -> None:
        model = DecodingModel([0.0], {1: 2.0}, plain_seconds=1.0)
        assert model.plain_speed == 1
        speedups = model.speedups(np.asarray([1.0]), np.asarray([1.0]))[:, 0]
        assert speedups[:2].tolist() == [1, pytest.approx(1 / 3)]

    @settings(max_examples=60, deadline=None)
    @given(rates, shares, shares, st.floats(0, 0.1), st.integers(1, 20))
    def test_more_covered_is_never_worse(
        self, acceptance: list[float], low: float, high: float, step: float, most: int
    ) -> None:
        model = DecodingModel(acceptance, {1: 0.03, 4: 0.05}, max_draft_length=most)
        both = model.speedups(np.sort([low, high]), np.asarray([step, step]))
        assert both.shape == (most + 1, 2)
        assert (both[:, 0] <= both[:, 1]).all()

    @settings(max_examples=60, deadline=None)
    @given(rates, shares, st.floats(0.0001, 0.1), st.floats(0.0001, 0.1))
    def test_a_faster_step_is_never_worse(
        self, acceptance: list[float], share: float, one: float, other: float
    ) -> None:
        model = DecodingModel(acceptance, {1: 0.03, 4: 0.05})
        both = model.speedups(np.asarray([share, share]), np.sort([one, other]))
        assert (both[:, 0] >= both[:, 1]).all()


class TestSteps:
    def test_a_cost_model_in_seconds_is_taken_as_it_is(self) -> None:
        model, latency = DecodingModel([0.5], {1: 1.0}), in_seconds()
        at = sizes(10, WIDTH)
        assert model.step_seconds(latency, at).tolist() == latency.costs(at).tolist()

    def test_operations_are_refused_with_the_ways_out(self) -> None:
        model = DecodingModel([0.5], {1: 1.0})
        with pytest.raises(ValueError, match=r"counts FLOP.*kind='bytes'.*measured.*draft_step"):
            model.step_seconds(in_seconds(unit="FLOP"), sizes(10))

    def test_a_measured_step_scales_operations(self) -> None:
        latency = in_seconds(body=1e9, row=1e6, unit="FLOP")
        model = DecodingModel([0.5], {1: 1.0}, draft_step=(500, 0.003))
        assert model.step_seconds(latency, sizes(500, 1000)) == pytest.approx([0.003, 0.004])

    def test_a_measured_step_lifts_seconds_and_scales_them_down(self) -> None:
        latency = in_seconds(body=0.001, row=1e-6)  # 0.0015 at 500 rows
        lifted = DecodingModel([0.5], {1: 1.0}, draft_step=(500, 0.002))
        assert lifted.step_seconds(latency, sizes(500, 1000)) == pytest.approx([0.002, 0.0025])
        scaled = DecodingModel([0.5], {1: 1.0}, draft_step=(500, 0.00075))
        assert scaled.step_seconds(latency, sizes(500, 1000)) == pytest.approx([0.00075, 0.001])


class TestReport:
    """The trained draft that comes with the repository, with 2,977 kept ids of 49,152."""

    @pytest.mark.parametrize("name", ["draft", "full"])
    def test_it_gives_back_what_was_measured(self, report: DecodeReport, name: str) -> None:
        entry = report.entries[name]
        model = DecodingModel.from_report(report, name)
        length = entry.facts["num_assistant_tokens"]
        assert len(model.acceptance) == length
        assert model.coverage == pytest.approx(1 - (entry.oov_share or 0))
        rows, seconds = model.draft_step or (0, 0.0)
        assert rows == entry.facts["draft_vocab_size"]
        latency = LatencyModel(49152, "measured", "s", {"all": 1e-9}, (0, 49152), (0.0, 1e-9))
        share, at = np.asarray([model.coverage]), sizes(rows)
        assert model.step_seconds(latency, at)[0] == pytest.approx(seconds)
        # Its drafts had as many tokens, but at the end of a text: 5.7 of 6 on an average.
        assert model.tokens_per_round(share)[length, 0] == pytest.approx(
            entry.acceptance_length, rel=0.04
        )
        plain = report.plain
        after_prompts = [
            (one.tokens - len(report.rows)) / (one.seconds - one.seconds_by_part["prefill"])
            for one in (entry, plain)
        ]
        speedup = model.speedups(share, model.step_seconds(latency, at))[length, 0]
        assert speedup == pytest.approx(after_prompts[0] / after_prompts[1], rel=0.05)

    @pytest.mark.parametrize(
        ("forwards", "expected"),
        [
            (6, {1.0: 1.0, 5.0: 1.2}),  # EAGLE-3: the prompt's pass checks nothing, 5 check 4 each
            (5, {1.0: 1.0, 5.0: 1.5}),  # standalone: the prompt's pass is one of the 5 checks
        ],
    )
    def test_times_are_those_of_a_verification(
        self, report: DecodeReport, forwards: int, expected: dict[float, float]
    ) -> None:
        def timed(data: dict[str, Any]) -> None:
            for row in data["rows"]:
                for name, cell in row["entries"].items():
                    outside = {"verification": 8.0, "rest": 2.0}
                    if name == "draft":
                        outside = {"verification": 5.0, "rest": 1.0}
                    cell["parts"] = dict.fromkeys(cell["parts"], 0.0) | {"prefill": 1.0} | outside
                    cell["seconds"] = sum(cell["parts"].values())
                    cell["target_forwards"] = forwards if name == "draft" else 11
                row["entries"]["draft"] |= {
                    "verified_drafts": 5, "drafted": [5] * 4, "accepted": [3, 2, 1, 0],
                }  # fmt: skip

        changed = self.changed(report, timed)
        assert DecodingModel.from_report(changed).forward == expected

    def test_the_passes_over_prompts_of_an_eagle_draft_check_nothing(
        self, report: DecodeReport
    ) -> None:
        entry, prompts = report.draft, len(report.rows)
        assert all(
            row["entries"]["draft"]["verified_drafts"] < row["entries"]["draft"]["target_forwards"]
            for row in report.rows
        )
        _, tokens = DecodingModel.from_report(report).forward
        assert tokens == 1 + entry.drafted / (entry.target_forwards - prompts)

    def test_conditional_shares_are_no_shares_of_all(self, report: DecodeReport) -> None:
        model = DecodingModel.from_report(report)
        shares = report.draft.acceptance_by_position
        assert model.acceptance[0] == pytest.approx(shares[0])
        assert model.acceptance[3] > shares[3] / shares[2]  # texts that end end drafts
        assert model.acceptance[3] == pytest.approx(shares[3] / shares[2], rel=0.05)

    def test_own_times_stand_for_the_reports(self, report: DecodeReport) -> None:
        model = DecodingModel.from_report(report, forward={1: 0.5, 4: 0.6}, coverage=0.9)
        assert model.forward == {1.0: 0.5, 4.0: 0.6}
        assert model.plain_seconds is None
        assert model.coverage == 0.9

    def changed(self, report: DecodeReport, change: Any) -> DecodeReport:
        data = json.loads(report.to_json())
        change(data)
        return DecodeReport.from_json(json.dumps(data))

    def test_drafts_that_end_early_are_refused(self, report: DecodeReport) -> None:
        def end_early(data: dict[str, Any]) -> None:
            for row in data["rows"]:
                cell = row["entries"]["draft"]
                cell["drafted"] = [n // (i + 1) for i, n in enumerate(cell["drafted"])]
                cell["accepted"] = [n // (i + 1) for i, n in enumerate(cell["accepted"])]

        DecodingModel.from_report(self.changed(report, end_early))  # no threshold ended them

        def threshold(data: dict[str, Any]) -> None:
            end_early(data)
            data["entries"]["draft"]["facts"]["assistant_confidence_threshold"] = 0.4

        with pytest.raises(ValueError, match=r"of 0\.4 ended the others.*threshold=0\.0"):
            DecodingModel.from_report(self.changed(report, threshold))

    def test_a_position_that_few_got_to_says_nothing(self, report: DecodeReport) -> None:
        def few(data: dict[str, Any]) -> None:
            for number, row in enumerate(data["rows"]):
                cell = row["entries"]["draft"]
                cell["drafted"] += [1 if number < 10 else 0]
                cell["accepted"] += [0]

        length = report.draft.facts["num_assistant_tokens"]
        assert len(DecodingModel.from_report(self.changed(report, few)).acceptance) == length

    def test_what_cannot_be_read_is_refused(self, report: DecodeReport) -> None:
        with pytest.raises(ValueError, match=r"no draft 'plain bfloat16' in this report"):
            DecodingModel.from_report(report, "plain bfloat16")

        def nothing(data: dict[str, Any]) -> None:
            for row in data["rows"]:
                row["entries"]["draft"] |= {"drafted": [], "accepted": [], "verified_drafts": 0}

        with pytest.raises(ValueError, match="drafted nothing"):
            DecodingModel.from_report(self.changed(report, nothing))

        def one_token(data: dict[str, Any]) -> None:
            for row in data["rows"]:
                row["entries"]["draft"]["target_forwards"] = 1

        with pytest.raises(ValueError, match="longer answers"):
            DecodingModel.from_report(self.changed(report, one_token))

        def untimed(data: dict[str, Any]) -> None:
            for row in data["rows"]:
                parts = row["entries"]["draft"]["parts"]
                row["entries"]["draft"]["parts"] = dict.fromkeys(parts, 0.0)

        with pytest.raises(ValueError, match="were not timed"):
            DecodingModel.from_report(self.changed(report, untimed))


class TestMeasured:
    @pytest.mark.parametrize("kind", ["llama", "mistral-sliding"])
    def test_times_a_target(self, kind: str) -> None:
        target = make_tiny(kind)
        model = DecodingModel.measured(
            target, acceptance=[0.5], max_draft_length=5, rounds=2, context_length=4
        )
        assert [*model.forward] == [1, 2, 3, 5, 6]
        assert model.settings["dtype"] == "float32"
        assert DecodingModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model

    def test_takes_turns_and_smooths(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[int] = []

        class Target:
            training = False
            config = None

        def make(*_: Any) -> Any:
            return lambda number: number

        def seconds(number: int, _: Any) -> float:
            seen.append(number)
            return {1: 3.0, 2: 1.0, 4: 5.0}[number]

        monkeypatch.setattr(forward_timing, "_cached_pass", make)
        monkeypatch.setattr(forward_timing, "seconds_of_call", seconds)
        model = DecodingModel.measured(
            make_tiny("llama"), acceptance=[0.5], tokens=[4, 1, 2], rounds=3
        )
        assert model.forward == {1.0: 2.0, 2.0: 2.0, 4.0: 5.0}
        assert len(seen) == 3 * (3 + WARM_UP)
        assert {*seen[:3]} == {*seen[3:6]} == {1, 2, 4}

    def test_what_is_wrong_is_said_before_anything_is_timed(self) -> None:
        with pytest.raises(ValueError, match="no percentages"):
            DecodingModel.measured(None, acceptance=[80])
        with pytest.raises(TypeError, match="must be a list of shares"):
            DecodingModel.measured(None, acceptance=0.8)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must begin with 1"):
            DecodingModel.measured(make_tiny("llama"), acceptance=[0.8], tokens=[2])
        with pytest.raises(ValueError, match="rounds must be at least 1"):
            DecodingModel.measured(make_tiny("llama"), acceptance=[0.8], rounds=0)

    def test_a_model_in_training_stays_so(self) -> None:
        target = make_tiny("llama").train()
        DecodingModel.measured(target, acceptance=[0.5], tokens=[1], rounds=1)
        assert target.training


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"acceptance": []}, "for each position, the first at least"),
        ({"acceptance": [1.1]}, "no percentages"),
        ({"acceptance": [-0.1]}, r"share in \[0, 1\]"),
        ({"acceptance": [NAN]}, "an acceptance must be a finite number, got nan"),
        ({"acceptance": [True]}, "must be a finite number, got True"),
        ({"acceptance": [None]}, "must be a finite number, got None"),
        ({"forward": {}}, "what 1 token takes"),
        ({"forward": {2: 1.0}}, "what 1 token takes"),
        ({"forward": {0: 1.0, 1: 2.0}}, "nothing for less"),
        ({"forward": {1: 0.0}}, "above 0"),
        ({"forward": {1: -1.0}}, "above 0"),
        ({"forward": {1: 2.0, 5: 1.0}}, "not fall with more tokens"),
        ({"forward": {1: NAN}}, "seconds in forward must be a finite number"),
        ({"forward": {1: 1.0, INF: 2.0}}, "a number of tokens in forward must be a finite"),
        ({"coverage": 0.0}, r"coverage must lie in \(0, 1\], got 0"),
        ({"coverage": 1.5}, "coverage must lie in"),
        ({"coverage": NAN}, "coverage must be a finite number"),
        ({"overhead": -1}, "overhead must not be negative"),
        ({"overhead": INF}, "overhead must be a finite"),
        ({"plain_seconds": 0}, "plain_seconds must be above 0"),
        ({"max_draft_length": 0}, "from 1 to 64, got 0"),
        ({"max_draft_length": 65}, "from 1 to 64, got 65"),
        ({"max_draft_length": 2.0}, "whole number"),
        ({"acceptance": [10**400]}, "must be a finite number, got 1000"),
        ({"forward": {1: 1e-320}}, "above 0, 1e-100 at least, .* got .*measure again"),
        ({"plain_seconds": 1e-320}, "plain_seconds must be above 0, 1e-100 at least"),
        ({"max_draft_length": True}, "whole number"),
        ({"forward": {"1": 1.0, 5: 2.0}}, "a number of tokens in forward must be a finite"),
        ({"draft_step": (1, 2, 3)}, r"draft_step must be .*such as \(49152.*got \(1, 2, 3\)"),
        ({"draft_step": (True, 1.0)}, "draft_step must be"),
        ({"draft_step": (1.5, 1.0)}, "draft_step must be"),
        ({"draft_step": (0, 1.0)}, "draft_step must be"),
        ({"draft_step": (5, 0.0)}, "draft_step must be"),
        ({"draft_step": (5, NAN)}, "finite"),
    ],
)
def test_bad_numbers_are_refused(options: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {"acceptance": [0.5], "forward": {1: 1.0}}
    with pytest.raises(ValueError, match=said):
        DecodingModel(**{**good, **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"forward": [(1, 1.0)]}, "forward must map numbers"),
        ({"acceptance": "0.8"}, r"acceptance must be a list of shares.* got '0\.8'"),
        ({"acceptance": 0.8}, r"acceptance must be a list of shares.* got 0\.8: write \[0\.8\]"),
        ({"acceptance": np.asarray(0.8)}, "acceptance must be a list of shares"),
        ({"acceptance": None}, "acceptance must be a list of shares.* got None"),
        ({"draft_step": 100}, r"draft_step must be \(rows of the head, seconds.* got 100"),
        ({"draft_step": "ab"}, "draft_step must be .* got 'ab'"),
    ],
)
def test_bad_types_are_refused(options: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {"acceptance": [0.5], "forward": {1: 1.0}}
    with pytest.raises(TypeError, match=said):
        DecodingModel(**{**good, **options})


def test_whole_numbers_of_numpy_are_whole() -> None:
    numbers: Any = np.int64(3), np.int64(1), (np.int64(100), np.float64(0.01)), np.asarray([0.5])
    longest, one, step, acceptance = numbers
    model = DecodingModel(acceptance, {one: 1.0}, max_draft_length=longest, draft_step=step)
    assert model.draft_step == (100, 0.01)
    assert DecodingModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model


def test_to_json_and_back() -> None:
    model = DecodingModel(
        [np.float64(0.8), 0.7], {5: 2, 1: 1}, coverage=np.float64(0.9), overhead=0.1,
        plain_seconds=0.5, draft_step=(100, 0.25), max_draft_length=3, settings={"made_by": "x"},
    )  # fmt: skip
    again = DecodingModel.from_dict(json.loads(json.dumps(model.to_dict(), allow_nan=False)))
    assert again == model
    assert [*again.forward] == [1.0, 5.0]


@pytest.mark.parametrize(
    "data", [{}, {"acceptance": [0.5], "forward": 3}, {"forward": [], "x": 1}]
)
def test_what_is_no_model_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="this is no decoding model"):
        DecodingModel.from_dict(data)
