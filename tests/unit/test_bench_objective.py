"""The benchmark of objectives, on tiny models: sizes, choices, what is told of them, going on."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drafting import make_eagle
from recipes import write_rows
from tiny_models import make_byte_tokenizer, make_tiny
from vtrim_hf import DecodeReport, TokenCounts, measuring_step, search_vocabulary
from vtrim_hf.latency import LatencyModel

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KEPT = range(10, 290)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = importlib.util.spec_from_file_location(
        "bench_objective", EXAMPLES / "bench_objective.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def choices_of(bench: Any) -> Any:
    return importlib.import_module("objective_choices")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("objective")
    target = make_tiny("llama", num_hidden_layers=4, eos_token_id=2)
    target.save_pretrained(folder / "target")
    make_byte_tokenizer().save_pretrained(folder / "target")
    draft = make_eagle(target, KEPT)
    # Of a schedule that goes its own way nothing may be left: n is the same for all sizes.
    draft.generation_config.num_assistant_tokens_schedule = "adaptive"
    draft.save_pretrained(folder / "draft")
    for name, subject in (("sql", "fox"), ("ner", "dog")):
        (folder / "data" / name).mkdir(parents=True)
        write_rows(folder / "data" / name / "train.jsonl", subject, 0, 30)
        write_rows(folder / "data" / name / "test.jsonl", "city", 0, 6)
    # The same prompts in a file of other content.
    rows = (folder / "data/sql/test.jsonl").read_text("utf-8")
    (folder / "empty.jsonl").write_text("", "utf-8")
    (folder / "leaked.jsonl").write_text(f"{rows}\n", "utf-8")
    return folder


def words(folder: Path, output: Path, *more: str) -> list[str]:
    named = {"target": folder / "target", "data": folder / "data"}
    named |= {"output": output, "work": output / "work"}
    files = [word for name, path in named.items() for word in (f"--{name}", str(path))]
    numbers = ["--prompts", "2", "--search-prompts", "2", "--trial-prompts", "1", "--trials", "4"]
    lengths = ["--max-new-tokens", "6", "--draft-length", "2"]
    return [*files, *numbers, *lengths, "--draft", f"sql={folder / 'draft'}", *more]


def test_it_measures_the_sizes_and_judges_the_choices(
    bench: Any,
    choices_of: Any,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = importlib.import_module("bench_trained_draft")
    asked: list[tuple[str, list[Any]]] = []

    def watched(target: Any, draft: Any, prompts: Any, **how: Any) -> Any:
        asked.append((how["output"].name, prompts))
        heads.update(how["compare"])
        if how["output"].name == "sizes" and not killed:
            killed.append(True)
            raise KeyboardInterrupt
        return measuring_step.measure_draft(target, draft, prompts, **how, progress=False)

    ranges: list[tuple[int, int]] = []
    try_sizes = choices_of.chosen_by_tpe

    def ranged(speedup: Any, least: int, most: int, trials: int) -> Any:
        ranges.append((least, most))
        return try_sizes(speedup, least, most, trials)

    monkeypatch.setattr(choices_of, "chosen_by_tpe", ranged)
    sizes_around = bench.sizes_around
    monkeypatch.setattr(bench, "sizes_around", lambda *given: sizes_around(*given)[1:])
    killed: list[bool] = []
    heads: dict[str, Any] = {}
    monkeypatch.setattr(trained, "measure_draft", watched)
    with pytest.raises(KeyboardInterrupt):
        bench.main(words(folder, tmp_path))
    before = [name for name, _ in asked]
    assert before[0] == "acceptance"
    assert before[-1] == "sizes"
    assert not (tmp_path / "sql" / "figures.json").exists()

    # The same sizes are chosen: timings are kept, and the trials played again.
    timed = LatencyModel.measured
    monkeypatch.setattr(LatencyModel, "measured", None)
    asked.clear()
    bench.main(words(folder, tmp_path))
    assert [name for name, _ in asked] == ["sizes"]
    output, work = tmp_path / "sql", tmp_path / "work" / "sql"
    found = json.loads((output / "figures.json").read_text("utf-8"))
    report = DecodeReport.load(work / "sizes" / "decode_report.json")
    assert found["format"] == bench.FORMAT

    names = {"utility 0.5", "utility 0.3", "utility 0.7", "utility 0.9"}
    names |= {"throughput", "throughput_by_counts"}
    assert found["predicted"].keys() == found["rank_correlation"].keys() == names
    assert found["choices"].keys() == {*names, "tpe"}
    assert {len(values) for values in found["predicted"].values()} == {len(found["sweep"])}
    assert len(KEPT) in found["sweep"]
    assert found["sweep"][-1] == 300
    sizes = {row["k"]: row for row in found["measured"]}
    for k, row in sizes.items():
        entry = report.entries["draft" if k == len(KEPT) else f"k={k}"]
        assert entry.facts["draft_vocab_size"] == k
        assert entry.facts["num_assistant_tokens"] == 2
        assert entry.facts["num_assistant_tokens_schedule"] == "constant"
        assert entry.facts["assistant_confidence_threshold"] == 0.0
        assert row["over_plain"]["median"] == entry.speedup.median
        assert row["in_sweep"] == (k in found["sweep"])
    assert sizes[found["best"]]["of_best"]["median"] == 1
    for choice in found["choices"].values():
        there = sizes[choice["measured_at"]]
        assert choice["of_best"] == there["of_best"]
        assert choice["inside_the_spread"] == (there["of_best"]["high"] >= 1)
        assert abs(choice["measured_at"] - choice["k"]) <= 0.02 * choice["k"]
    assert found["choices"]["utility 0.5"]["over_usual"]["median"] == 1
    assert found["trained_ids_first_by_counts"] < len(KEPT)  # it lacks required ids
    most = found["counted_or_required"]
    assert all(
        choice["k"] <= most or choice["k"] == 300
        for choice in found["choices"].values()
        if "trials" not in choice
    )

    # Each size is that many ids, those that the draft was trained with first.
    assert {int(name.removeprefix("k=")) for name in heads} == sizes.keys() - {len(KEPT)}
    for name, head in heads.items():
        assert head.ids.size == int(name.removeprefix("k="))
        smaller, larger = sorted([set(head.ids.tolist()), set(KEPT)], key=len)
        assert smaller < larger

    # What chooses has seen no prompt of the test data.
    first = DecodeReport.load(work / "acceptance" / "decode_report.json")
    assert {row["digest"] for row in first.rows}.isdisjoint(row["digest"] for row in report.rows)
    assert len(asked[0][1]) == len(report.rows) == 2
    trials = found["choices"]["tpe"]["trials"]
    assert len(trials) == 4
    # The others choose no smaller one; the sweep begins further up.
    assert ranges == [(found["required"], 300)] * 2
    assert 1 < found["required"] < found["sweep"][0]
    for k, value in trials:
        trial = DecodeReport.load(work / "trials" / str(k) / "decode_report.json")
        assert trial.draft.facts["num_assistant_tokens_schedule"] == "constant"
        assert trial.speedup == value
        assert trial.draft.facts["draft_vocab_size"] == k
        assert {row["digest"] for row in trial.rows} <= {row["digest"] for row in first.rows}
    assert found["choices"]["tpe"]["k"] == max(trials, key=lambda one: one[1])[0]

    assert set(found["machines"]) == {"the search part", "trials of TPE", "the sizes"}
    assert found["machines"]["the sizes"][0]["versions"]["vtrim-hf"]
    text = (output / "report.md").read_text("utf-8")
    assert text in capsys.readouterr().out
    assert bench.markdown(found) == text
    assert "python examples/bench_objective.py --target " in text
    assert {path.name for path in output.iterdir()} == {"figures.json", "report.md", "report.png"}

    # The same call measures nothing again, another domain joins, other settings do not mix.
    asked.clear()
    there = (output / "figures.json").read_bytes()
    bench.main(words(folder, tmp_path))
    assert asked == []
    assert "sql is of this call already" in capsys.readouterr().out
    monkeypatch.setattr(LatencyModel, "measured", timed)
    bench.main(words(folder, tmp_path, "--draft", f"ner={folder / 'draft'}"))
    assert (output / "figures.json").read_bytes() == there
    both = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert set(both["domains"]) == {"sql", "ner"}
    assert both["domains"]["sql"]["best"] == found["best"]
    assert both["format"] == bench.FORMAT
    summary = (tmp_path / "report.md").read_text("utf-8")
    assert bench.summary(both) == summary
    assert "[ner](ner/report.md), [sql](sql/report.md): a trained draft and 2 test" in summary
    assert summary.count("    python examples/bench_objective.py --target ") == 2
    for name, one in both["compared"]["objectives"].items():
        ratios = [
            json.loads((tmp_path / domain / "figures.json").read_text("utf-8"))["choices"][name]
            for domain in ("ner", "sql")
        ]
        ratio = np.prod([one["of_best"]["median"] for one in ratios]) ** 0.5
        assert one["of_best"] == pytest.approx(ratio)
    with pytest.raises(SystemExit, match=r"was measured with draft_length 2, now it is 3"):
        bench.main(words(folder, tmp_path, "--draft-length", "3"))
    with pytest.raises(SystemExit, match=r"0 minutes are over .*: the same command goes on"):
        bench.main(words(folder, tmp_path, "--minutes", "0"))


@pytest.mark.parametrize("told", [{}, {"format": 1}])
def test_figures_of_another_version_are_not_told_beside_new_ones(
    bench: Any, folder: Path, tmp_path: Path, told: dict[str, Any]
) -> None:
    """What they call the best may be another thing."""
    there = tmp_path / "ner" / "figures.json"
    there.parent.mkdir()
    there.write_text(json.dumps({**told, "domain": "ner"}), "utf-8")
    with pytest.raises(SystemExit, match=r"ner.figures.json was measured by another version of"):
        bench.main(words(folder, tmp_path))
    assert not (tmp_path / "work").exists()


def test_other_rows_than_were_asked_for_are_noticed(
    bench: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = importlib.import_module("bench_parts").OtherRows
    right = rows.model

    def one_short(self: Any, dtype: str) -> Any:
        few = rows(self._draft, self._target, self.ids[:-1])
        return right(self if self.ids.size == 300 else few, dtype)

    monkeypatch.setattr(rows, "model", one_short)
    with pytest.raises(ValueError, match=r"draft must have \d+ rows and was measured with \d+"):
        bench.main(words(folder, tmp_path))
    assert not (tmp_path / "figures.json").exists()


def test_the_objectives_choose_as_the_package_does(choices_of: Any, folder: Path) -> None:
    from vtrim_hf import DecodingModel
    from vtrim_hf.named_models import NamedModel

    target = NamedModel(str(folder / "target"))
    array = np.arange(300, dtype=np.int64)[::-1] ** 3
    counts = TokenCounts.from_counts(array)
    latency = LatencyModel(300, "measured", "s", {"rest": 0.001}, (0, 300), (0.0, 0.02))
    model = DecodingModel([0.8, 0.7], {1: 0.03, 9: 0.036})
    sizes = np.array([50, 100, 300])
    covered = np.cumsum(array)[sizes - 1] / array.sum()
    choices, values = choices_of.predictions(
        target, counts, (), latency, {"throughput": model}, 2, (sizes, covered)
    )
    operations = LatencyModel.eagle3(target.config, vocab_size=300)
    for alpha in choices_of.ALPHAS:
        one = search_vocabulary(counts, operations, alpha=alpha)
        assert choices[f"utility {alpha}"] == {"k": one.k}
        expected = [
            alpha * c + (1 - alpha) * operations.reduction(k)
            for k, c in zip(sizes.tolist(), covered, strict=True)
        ]
        assert values[f"utility {alpha}"] == pytest.approx(expected)
    found = search_vocabulary(counts, latency, objective="throughput", decoding=model)
    assert found.expected is not None
    chosen = found.expected["by_length"][1]
    assert chosen["draft_length"] == 2
    assert choices["throughput"]["k"] == chosen["k"]
    assert choices["throughput"]["predicted"] == chosen["search"]["speedup"]
    assert choices["throughput"]["advice"] == found.expected["advice"]
    alone = choices_of.predictions(
        target,
        counts,
        (),
        latency,
        {"throughput": model},
        2,
        (np.array([chosen["k"]]), np.array([chosen["search"]["coverage"]])),
    )
    assert alone[1]["throughput"] == pytest.approx([choices["throughput"]["predicted"]])


def test_the_committed_reports_are_those_of_their_figures(bench: Any) -> None:
    folder = EXAMPLES / "evidence/objective"
    found = json.loads((folder / "figures.json").read_text("utf-8"))
    assert found["format"] == bench.FORMAT
    assert bench.summary(found) == (folder / "report.md").read_text("utf-8")
    for domain in found["domains"]:
        place = folder / domain / "figures.json"
        one = json.loads(place.read_text("utf-8"))
        assert one["format"] == bench.FORMAT, place
        assert bench.markdown(one) == place.with_name("report.md").read_text("utf-8"), place


def test_torn_rows_are_told(bench: Any) -> None:
    place = EXAMPLES / "evidence/objective/ner/figures.json"
    found = json.loads(place.read_text("utf-8"))
    assert "passed over" not in bench.markdown(found)
    found["unreadable"] = {"search": 0, "test": 2}
    assert "be read are passed over: 2 of the test data.\n" in bench.markdown(found)


def test_sizes_are_around_the_trained_one(bench: Any) -> None:
    sizes = bench.sizes_around(6000, 300, 9000, 49_152)
    assert len(sizes) == 10
    assert (sizes[0], sizes[-1]) == (750, 49_152)
    assert 6000 in sizes
    steps = np.diff(np.log(sizes))
    assert steps.max() < 1.3 * steps.min()
    assert bench.sizes_around(1000, 300, 9000, 49_152)[0] == 300
    for trained in (300, 320, 48_000, 49_152):
        sizes = bench.sizes_around(trained, 300, 9000, 49_152)
        assert len(sizes) == 10
        assert trained in sizes
        assert sizes[-1] == 49_152
    assert bench.sizes_around(200, 300, 9000, 49_152)[0] == 200  # trained without required ids
    # Of a draft that was trained with all ids, most of which were never said.
    sizes = bench.sizes_around(49_152, 250, 3718, 49_152)
    assert (sizes[0], sizes[-1], len(sizes)) == (464, 49_152, 10)


def test_a_choice_is_measured_itself_unless_one_is_near(bench: Any) -> None:
    every, shown_as = bench.with_chosen([100, 1000], [990, 500, 505, 100])
    assert every == [100, 500, 1000]
    assert shown_as == {990: 1000, 500: 500, 505: 500, 100: 100}


def test_tpe_finds_a_peak_and_plays_the_same_trials_again(choices_of: Any) -> None:
    def speedup(k: int) -> float:
        return -abs(float(np.log(k / 4000)))

    trials = choices_of.chosen_by_tpe(speedup, 500, 50_000, 8)
    assert len(trials) == 8
    assert all(500 <= k <= 50_000 and value == speedup(k) for k, value in trials)
    assert choices_of.chosen_by_tpe(speedup, 500, 50_000, 8) == trials
    assert choices_of.chosen_by_tpe(speedup, 500, 50_000, 5) == trials[:5]


def test_only_the_search_part_is_asked(bench: Any, folder: Path) -> None:
    prompts = importlib.import_module("bench_prompts")
    path = folder / "data/sql/train.jsonl"
    counts = TokenCounts.from_dataset(str(path), make_byte_tokenizer(), progress=False)
    rows = list(prompts.search_rows(path, 0.2, 300))
    assert 0 < counts.conversations("search") == len(rows) < 30
    own = TokenCounts.from_dataset(rows, make_byte_tokenizer(), heldout=0.0, progress=False)
    assert own.array().tolist() == counts.array("search").tolist()


def test_timings_of_another_call_are_made_anew(choices_of: Any, tmp_path: Path) -> None:
    made: list[int] = []

    def time_it() -> LatencyModel:
        made.append(len(made))
        return LatencyModel(300, "measured", "s", {"rest": 0.1 + len(made)}, (300,), (0.2,))

    first = choices_of.kept_timing(tmp_path, {"draft": "a"}, time_it)
    assert choices_of.kept_timing(tmp_path, {"draft": "a"}, time_it) == first
    assert len(made) == 1
    assert choices_of.kept_timing(tmp_path, {"draft": "b"}, time_it) != first
    assert len(made) == 2
    for number, torn in enumerate(('{"call": {"dra', "[]", '{"call": {"draft": "b"}}'), 3):
        (tmp_path / "timing.json").write_text(torn, "utf-8")
        choices_of.kept_timing(tmp_path, {"draft": "b"}, time_it)
        assert len(made) == number


def test_predictions_are_ranked_beside_medians(bench: Any) -> None:
    report = importlib.import_module("objective_figures")
    speeds = np.array([[1.0, 2.0, 3.0, 4.0], [1.1, 2.1, 2.9, 4.1], [1.2, 2.2, 3.1, 3.9]])
    same = report.rank_correlation([0.1, 0.2, 0.3, 0.4], speeds)
    assert [*same.values()] == pytest.approx([1.0, 1.0, 1.0])
    assert report.rank_correlation([4, 3, 2, 1], speeds)["rho"] == pytest.approx(-1.0)
    ties = report.rank_correlation([1, 1, 1, 2], speeds)["rho"]
    assert ties == pytest.approx(3 / 15**0.5)  # Pearson's of the ranks 2, 2, 2, 4 and 1, 2, 3, 4
    assert report.rank_correlation([1, 1, 1, 1], speeds)["rho"] == 0.0
    swapped = report.rank_correlation([1, 2, 4, 3], speeds)
    assert swapped["rho"] == pytest.approx(0.8)
    speeds[0, 2] += 2
    noisy = report.rank_correlation([1, 2, 3, 4], speeds)
    assert noisy["low"] < noisy["high"] == pytest.approx(1.0)


def test_the_best_size_is_the_one_that_no_other_beats_prompt_by_prompt(bench: Any) -> None:
    """Its median over plain may be below another's that it beats on most prompts."""
    best_of = importlib.import_module("objective_figures").best_of
    speeds = {"10": [1.0, 5.0, 6.0], "20": [2.0, 4.0, 7.0], "30": [0.5, 1.0, 1.0]}
    assert best_of(speeds) == 20
    # 30 beats 10 in the ratio 1.5, 10 beats 20 in 2.2, and 20 beats 30 in 1.25.
    ring = {"10": [3.0, 1.0, 2.0], "20": [1.0, 2.5, 0.9], "30": [0.8, 2.0, 3.0]}
    assert best_of(ring) == 30


def test_the_fastest_choice_is_recommended_and_what_cannot_be_told_from_it_is_named(
    bench: Any,
) -> None:
    """Whose interval reaches the best is no reason to take it: with few prompts all do."""
    figures = importlib.import_module("objective_figures")
    # Speeds of three sizes on four prompts; the middle one is the best, the last nearly as fast.
    speeds = {"1": [5.0, 9.0, 6.0, 7.0], "2": [8.0, 8.0, 8.0, 8.0], "3": [7.9, 8.2, 7.9, 8.0]}

    def domain(sizes: dict[str, int], speeds: Any = speeds) -> dict[str, Any]:
        medians = {size: float(np.median(np.array(found) / 8)) for size, found in speeds.items()}
        return {
            "speeds": speeds,
            "choices": {
                name: {"measured_at": size, "of_best": {"median": medians[str(size)]}}
                for name, size in sizes.items()
            },
        }

    one = figures.compared({"a": domain({"utility": 1, "throughput": 2, "tpe": 3})})
    assert one["recommended"] == "throughput"
    assert one["alike"] == ["utility", "tpe"]
    assert one["objectives"]["utility"]["of_best"] == pytest.approx(6.5 / 8)
    told = importlib.import_module("objective_summary").advice(one)[0]
    assert told.startswith("`throughput` comes nearest to the best size: 1.000 times as fast.")
    assert "Not to be told from it by these prompts: `utility`, 0.81 (" in told

    slow = speeds | {"1": [4.0, 4.0, 4.0, 4.0]}
    sizes = {"utility": 1, "throughput": 2, "tpe": 3}
    other = {"utility": 2, "throughput": 2, "tpe": 3}
    both = figures.compared({"a": domain(sizes, slow), "b": domain(other)})
    assert both["objectives"]["utility"]["of_best"] == pytest.approx(0.5**0.5)
    assert both["objectives"]["utility"]["over_recommended"]["high"] == pytest.approx(0.5**0.5)
    assert both["alike"] == ["tpe"]
    assert (
        "Slower: `utility`, 0.71 (0.71 to 0.71) times as fast."
        in importlib.import_module("objective_summary").advice(both)[0]
    )


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["--draft", "law={0}/draft"], "there is no .*law/train.jsonl"),
        (["--draft", "sql={0}/target"], "no draft of this package"),
        (["--draft", "{0}/data"], "must be NAME=DRAFT"),
        (["--search-data", "{0}/none.jsonl"], "there is no .*none.jsonl"),
        (["--search-data", "{0}/empty.jsonl"], "empty.jsonl "),
        (["--counts", "{0}/data/sql/train.jsonl"], "train.jsonl must be what `vtrim count` wrote"),
        (["--search-data", "{0}/data/sql/test.jsonl"], "has the content of .*sql/test.jsonl"),
        (
            ["--search-data", "{0}/leaked.jsonl", "--search-prompts", "3", "--prompts", "6"],
            "3 of the 6 test prompts are also asked from .*leaked.jsonl",
        ),
        (["--prompts", "9", "--search-prompts", "99"], "the search part holds .* asked for 99"),
    ],
)
def test_wrong_arguments_are_said(
    bench: Any, folder: Path, tmp_path: Path, changed: list[str], told: str
) -> None:
    with pytest.raises(SystemExit, match=told):
        bench.main([*words(folder, tmp_path), *(word.format(folder) for word in changed)])


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["--trials", "0"], "--trials must be at least 1"),
        (["--longest-prompt", "-1"], "must be a whole number of at least 1, got -1"),
        (["--dtype", "float23"], "invalid choice: 'float23'"),
        (["--minutes", "nan"], "must be a number of minutes of at most 525,600, got nan"),
        (["--trial-prompts", "3"], "--trial-prompts must not be more than --search-prompts"),
    ],
)
def test_numbers_out_of_range_are_refused(
    bench: Any,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: list[str],
    told: str,
) -> None:
    with pytest.raises(SystemExit):
        bench.main([*words(folder, tmp_path), *changed])
    assert told in capsys.readouterr().err
