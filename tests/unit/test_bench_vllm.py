"""The benchmark in vLLM on tiny models, with a package that stands for vLLM: figures, going on."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from drafting import make_eagle
from recipes import write_rows
from tiny_models import make_byte_tokenizer, make_tiny

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KEPT = range(0, 300, 2)
# Says the same tokens again and again; a draft of few rows has more accepted than one of all.
VLLM = """
import json, os, sys, time
from pathlib import Path
from types import SimpleNamespace

class SamplingParams:
    def __init__(self, temperature, max_tokens):
        assert temperature == 0.0
        self.max_tokens = max_tokens

def note(what):
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps(what) + "\\n")

class LLM:
    def __init__(self, **given):
        print("vLLM likes to talk, to standard output, too")
        if os.environ.get("BROKEN"):
            raise RuntimeError("no memory is left for the cache")
        draft = given.get("speculative_config", {}).get("model")
        self.rows = None
        if draft:
            self.rows = json.loads((Path(draft) / "config.json").read_text())["draft_vocab_size"]
        note(["made", given["max_num_seqs"], self.rows])
        self.drafts = 0

    def generate(self, prompts, params, use_tqdm):
        note(["asked", len(prompts), params.max_tokens, self.rows])
        if params.max_tokens == 99:
            time.sleep(600)
        self.drafts += 2 * len(prompts)
        return [
            SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7] * params.max_tokens)])
            for prompt in prompts
        ]

    def get_metrics(self):
        if self.rows is None:
            return []
        taken = self.drafts if self.rows < 300 else self.drafts // 2
        name = "vllm:spec_decode_num_"
        return [
            SimpleNamespace(name=name + "drafts", value=self.drafts),
            SimpleNamespace(name=name + "draft_tokens", value=2 * self.drafts),
            SimpleNamespace(name=name + "accepted_tokens_per_pos", values=[taken, 0]),
        ]
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = importlib.util.spec_from_file_location("bench_vllm", EXAMPLES / "bench_vllm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys.modules["vllm_engine"], "PAUSE", 0.0)
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "vllm.py").write_text(VLLM, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm")
    target = make_tiny("llama", num_hidden_layers=4, eos_token_id=2)
    target.save_pretrained(folder / "target")
    make_byte_tokenizer().save_pretrained(folder / "target")
    make_eagle(target, KEPT).save_pretrained(folder / "draft")
    make_eagle(target).save_pretrained(folder / "wide")
    (folder / "data" / "sql").mkdir(parents=True)
    write_rows(folder / "data" / "sql" / "test.jsonl", "fox", 0, 4)
    write_rows(folder / "other.jsonl", "the lazy dog", 0, 4)
    return folder


def words(folder: Path, output: Path, *more: str) -> list[str]:
    files = ["--target", str(folder / "target"), "--data", str(folder / "data")]
    numbers = ["--prompts", "3", "--max-new-tokens", "6", "--draft-length", "2", "--rounds", "2"]
    ours = ["--vllm-python", sys.executable, "--output", str(output)]
    ours += ["--work", str(output / "work")]
    return [*ours, *files, "--draft", f"sql={folder / 'draft'}", *numbers, *more]


def text_of(output: Path) -> str:
    return (output / "report.md").read_text(encoding="utf-8")


def notes(tmp_path: Path, kind: str) -> list[Any]:
    lines = (tmp_path / "notes").read_text(encoding="utf-8").splitlines()
    return [note[1:] for note in map(json.loads, lines) if note[0] == kind]


def test_it_measures_and_writes(
    bench: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    bench.main(words(folder, output, "--concurrency", "1", "2"))
    found = json.loads((output / "figures.json").read_text(encoding="utf-8"))
    assert found["settings"]["concurrency"] == [1, 2]
    assert found["domains"]["sql"]["versions"]["python"]
    one = found["domains"]["sql"]
    assert one["head_rows"] == {"trimmed": len(KEPT), "full": 300}
    assert one["vocab_size"] == 300
    assert len(one["data_fingerprint"]) >= 64
    assert set(one["cells"]) == {"1", "2"}
    cell = one["cells"]["1"]
    assert cell["new_tokens"] == {"plain": 18, "trimmed": 18, "full": 18}
    assert cell["acceptance"]["trimmed"] == {
        "drafts": 12,  # of two rounds, and none of the warm-up's
        "drafted": 24,
        "accepted": 12,
        "length": 2.0,
        "by_position": [1.0, 0.0],
    }
    assert cell["acceptance"]["full"]["length"] == 1.5
    assert cell["same_texts"] == {"trimmed": 3, "full": 3}
    for way in ("trimmed", "full"):
        ratio = cell["over_plain"][way]
        assert len(ratio["rounds"]) == 2
        assert ratio["low"] == min(ratio["rounds"])
    # Three engines for each number of texts at a time, each made once.
    assert sorted(notes(tmp_path, "made"), key=str) == sorted(
        [[at_once, rows] for at_once in (1, 2) for rows in (None, len(KEPT), 300)], key=str
    )
    timed = [note[2] for note in notes(tmp_path, "asked") if note[0] == 3]
    assert timed == [None, len(KEPT), 300, len(KEPT), 300, None] * 2
    assert (output / "report.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in output.iterdir()} == {
        "figures.json",
        "report.md",
        "report.png",
        "work",
    }
    assert list((output / "work").iterdir()) == []
    text = (output / "report.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    for said in (
        "# Drafts served by vLLM",
        "1,024 tokens; greedy, at most 6 new tokens, 2 tokens drafted a round, bfloat16",
        "## 1 at a time",
        "## 2 at a time",
        f"| sql | the draft | {len(KEPT)} | ",
        "| 2.00 | 1.000 0.000 | 3 of 3 |",
        "| sql | vLLM alone | 300 | ",
        "    python examples/bench_vllm.py --vllm-python ",
        "3 prompts a domain, the first of its file that have at most 1,024 tokens",
        "the brackets hold the lowest and the highest ratio of the 2 rounds",
        "3 prompts, none before the last of them was longer than 1,024 tokens",
        f"exported with torch {one['exported_with']['torch']}, ",
    ):
        assert said in text, said


def test_both_exports_are_what_is_served(bench: Any, folder: Path, tmp_path: Path) -> None:
    domains = sys.modules["vllm_domains"]
    (domain,) = domains.domains_of([f"sql={folder / 'draft'}"], [str(folder / "data")])
    target = domains.NamedModel(str(folder / "target"))
    domains.prepare(domain, target, "float32", tmp_path)
    heads = {}
    for way in ("trimmed", "full"):
        with safe_open(tmp_path / way / "model.safetensors", "pt") as file:
            heads[way] = file.get_tensor("lm_head.weight")
            assert ("d2t" in file.keys()) == (way == "trimmed")  # noqa: SIM118
    assert heads["full"].shape[0] == 300
    assert heads["full"][list(KEPT)].equal(heads["trimmed"])


def test_it_goes_on_where_it_was_killed(
    bench: Any,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output, real = tmp_path / "out", bench.KeptRows.add

    def killed_at_fifth(self: Any, row: Any) -> None:
        if len(self.rows) == 4:
            raise KeyboardInterrupt
        real(self, row)

    monkeypatch.setattr(bench.KeptRows, "add", killed_at_fifth)
    with pytest.raises(KeyboardInterrupt):
        bench.main(words(folder, output))
    monkeypatch.setattr(bench.KeptRows, "add", real)
    first = json.loads(next(output.glob("work/*.rows.jsonl")).read_text("utf-8").splitlines()[0])
    bench.main(words(folder, output))
    assert "going on, 4 answers" in capsys.readouterr().out
    found = json.loads((output / "figures.json").read_text(encoding="utf-8"))
    cell = found["domains"]["sql"]["cells"]["1"]
    assert cell["tokens_per_second_of_rounds"]["plain"][0] == first["tokens"] / first["seconds"]
    assert len([note for note in notes(tmp_path, "asked") if note[0] == 3]) == 5 + 2

    before = (tmp_path / "notes").read_text(encoding="utf-8")
    bench.main(words(folder, output))
    assert "sql is measured already" in capsys.readouterr().out
    assert (tmp_path / "notes").read_text(encoding="utf-8") == before

    more = ["--draft", f"dogs={folder / 'draft'}", "--data", f"dogs={folder / 'other.jsonl'}"]
    bench.main(words(folder, output, *more))
    both = json.loads((output / "figures.json").read_text(encoding="utf-8"))["domains"]
    assert list(both) == ["sql", "dogs"]
    assert both["sql"] == found["domains"]["sql"]
    with pytest.raises(SystemExit, match="was measured with rounds 2, now it is 3"):
        bench.main([*words(folder, output), "--rounds", "3"])

    # What another release measured stays, and the report says so.
    monkeypatch.setattr(bench, "installed", lambda python: {"versions": {}, "environment": {}})
    capsys.readouterr()
    bench.main(words(folder, output, *more))
    assert "sql is measured already" in capsys.readouterr().out
    there = json.loads((output / "figures.json").read_text(encoding="utf-8"))
    there["domains"]["dogs"]["versions"]["torch"] = "0.1"
    report = importlib.import_module("vllm_report")
    several = "Not all of it was measured on one machine"
    assert several in report.markdown(there)
    assert several not in text_of(output)


def test_longer_prompts_are_passed_over_and_named(
    bench: Any, folder: Path, tmp_path: Path
) -> None:
    domains, report = sys.modules["vllm_domains"], importlib.import_module("vllm_report")
    with (tmp_path / "many.jsonl").open("w", encoding="utf-8") as file:
        for text in ("a", "long " * 90, "b", "long " * 80, "c", "long " * 70):
            turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "x"}]
            file.write(json.dumps({"messages": turns}) + "\n")
    named = ([f"sql={folder / 'draft'}"], [f"sql={tmp_path / 'many.jsonl'}"])
    (domain,) = domains.domains_of(*named)
    tokenizer = make_byte_tokenizer()
    every, none = domains.prompts_of(domain, tokenizer, 6, 4096)
    assert none == []
    found, longer = domains.prompts_of(domain, tokenizer, 3, 300)
    assert found == every[::2]
    assert longer == [2, 4]  # the last one comes after all that are asked
    told = report.passed_over({"longer": [2, 7]}, 1024)
    assert told == "and 2 of more than 1,024 tokens passed over: 2, 7"


def test_a_draft_of_another_target_is_refused_before_anything_is_served(
    bench: Any, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "draft", tmp_path / "other")
    config = json.loads((tmp_path / "other/config.json").read_text("utf-8"))
    config["target_num_hidden_layers"] = 28
    (tmp_path / "other/config.json").write_text(json.dumps(config), "utf-8")
    more = ["--draft", f"law={tmp_path / 'other'}", "--data", f"law={folder / 'other.jsonl'}"]
    with pytest.raises(SystemExit, match=r"other cannot draft for .*target: "):
        bench.main(words(folder, tmp_path / "out", *more))
    assert not (tmp_path / "notes").exists()


def test_the_committed_report_is_that_of_its_figures(bench: Any) -> None:
    folder = EXAMPLES / "evidence/vllm"
    found = json.loads((folder / "figures.json").read_text("utf-8"))
    assert bench.markdown(found) == (folder / "report.md").read_text("utf-8")


def test_it_ends_in_time(bench: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="the same command goes on"):
        bench.main(words(folder, tmp_path / "out", "--minutes", "0"))
    assert not (tmp_path / "notes").exists()


def test_engines_that_hang_are_ended_in_time(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, results = sys.modules["vllm_engine"], sys.modules["bench_results"]
    started: list[Any] = []

    class Noted(subprocess.Popen):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    monkeypatch.setattr(results, "AGAIN", 0.3)
    engines = engine.Engines(sys.executable, tmp_path / "logs")
    one = {"target": "t", "dtype": "float32", "at_once": 1, "longest": 9}

    def ask() -> None:
        with results.ended_after(0.05), engines:
            assert engines.answer(one, {"prompts": [[1]], "new": 2})["said"] == [[7, 7]]
            engines.answer({**one, "at_once": 2}, {"prompts": [[1]], "new": 99})

    start = time.monotonic()
    with pytest.raises(SystemExit, match=r"minutes are over .*: the same command goes on"):
        ask()
    assert time.monotonic() - start < engine.GOODBYE
    assert started
    assert all(process.returncode is not None for process in started)
    assert engines.running == {}


def test_a_draft_of_every_row_is_refused_before_anything_is_measured(
    bench: Any, folder: Path, tmp_path: Path
) -> None:
    more = ["--draft", f"wide={folder}/wide", "--data", f"wide={folder}/other.jsonl"]
    with pytest.raises(SystemExit, match=r"wide has every row already \(300\)"):
        bench.main(words(folder, tmp_path / "out", *more))
    assert not (tmp_path / "notes").exists()
    assert not (tmp_path / "out").exists()


def test_an_engine_that_ends_is_told_with_its_last_words(
    bench: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "1")
    with pytest.raises(SystemExit, match="no memory is left for the cache"):
        bench.main(words(folder, tmp_path / "out"))


def test_a_python_without_vllm_is_told(
    bench: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SystemExit, match="has no vLLM"):
        bench.main(words(folder, tmp_path / "out"))
    with pytest.raises(SystemExit, match="cannot be run"):
        bench.main([*words(folder, tmp_path / "out"), "--vllm-python", str(tmp_path / "no")])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--draft", "sql=again"], "two drafts named 'sql'"),
        (["--draft", "law="], "NAME=DRAFT or a folder of drafts"),
        (["--draft", "law"], "NAME=DRAFT or a folder of drafts, and holds none"),
        (["--draft", "law=x"], "no --data holds law/test.jsonl"),
        (["--prompts", "9"], "holds 4 prompts of at most 1024 tokens, asked for 9"),
        (["--max-prompt-tokens", "1"], "holds 0 prompts of at most 1 tokens"),
    ],
)
def test_refusals(bench: Any, folder: Path, tmp_path: Path, more: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        bench.main(words(folder, tmp_path / "out", *more))


@pytest.mark.parametrize("more", [["--rounds", "0"], ["--concurrency", "0"]])
def test_numbers_are_at_least_one(
    bench: Any, folder: Path, tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.main(words(folder, tmp_path / "out", *more))
    assert "at least 1" in capsys.readouterr().err


def row(way: str, number: int, tokens: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "way": way,
        "round": number,
        "tokens": tokens,
        "seconds": seconds,
        "said": ["a", "b"],
        "drafts": [],
        "drafted": [],
        "accepted": [],
        **more,
    }


def test_figures_are_those_of_the_rounds(bench: Any) -> None:
    drafting = {"drafts": [10], "drafted": [20], "accepted": [8, 2]}
    rows = [row("plain", number, 100, seconds) for number, seconds in enumerate((4.0, 5.0, 10.0))]
    rows += [
        row("trimmed", number, 100, 2.0, **drafting, said=["a", "b" if number else "c"])
        for number in (2, 1, 0)
    ]
    rows += [row("full", number, 90, 3.0, **drafting) for number in range(3)]
    found = bench.cell_of(rows)
    assert found["tokens_per_second"] == {"plain": 20.0, "trimmed": 50.0, "full": 30.0}
    ratio = found["over_plain"]["trimmed"]
    assert (ratio["ratio"], ratio["low"], ratio["high"]) == (2.5, 2.0, 5.0)
    assert found["trimmed_over_full"]["ratio"] == pytest.approx(50 / 30)
    taken = found["acceptance"]["trimmed"]
    assert taken["length"] == 2.0
    assert taken["by_position"] == [0.8, 0.2]
    assert found["same_texts"] == {"trimmed": 1, "full": 2}


def test_the_ways_take_turns(bench: Any) -> None:
    orders = [bench.turned(number) for number in range(4)]
    assert orders[0] == orders[3] == ("plain", "trimmed", "full")
    assert {order[0] for order in orders[:3]} == set(orders[0])
