"""The benchmark of drafts in and out of their domain, on tiny models: ways, figures, going on."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drafting import make_eagle
from recipes import write_rows
from tiny_models import make_byte_tokenizer, make_tiny
from vtrim_hf import (
    DecodeReport,
    LatencyModel,
    TokenCounts,
    measuring_step,
    required_token_ids,
    search_vocabulary,
)
from vtrim_hf.named_models import NamedModel

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KEPT = range(0, 300, 2)
FIXED = 280


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = importlib.util.spec_from_file_location("bench_decoding", EXAMPLES / "bench_decoding.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding")
    target = make_tiny("llama", num_hidden_layers=4, eos_token_id=2)
    for name in ("target", "small"):
        target.save_pretrained(folder / name)
        make_byte_tokenizer().save_pretrained(folder / name)
    for name, subject in (("ner", "dog"), ("general", "fox")):
        draft = make_eagle(target, KEPT)
        # Of a schedule that goes its own way nothing may be left: n is the same for all.
        draft.generation_config.num_assistant_tokens_schedule = "adaptive"
        draft.save_pretrained(folder / "drafts" / name)
        (folder / "data" / name).mkdir(parents=True)
        write_rows(folder / "data" / name / "test.jsonl", name, 0, 6)
        write_rows(folder / "data" / name / "train.jsonl", subject, 0, 8)
    make_eagle(target).save_pretrained(folder / "wide")
    (folder / "data/ood").mkdir()
    write_rows(folder / "data/ood/gsm8k.jsonl", "train", 0, 6)
    with (folder / "data/ood/gsm8k.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"messages": [{"role": "us')
    return folder


def words(folder: Path, output: Path, *more: str) -> list[str]:
    named = {"target": folder / "target", "data": folder / "data"}
    named |= {"output": output, "work": output / "work"}
    files = [word for name, path in named.items() for word in (f"--{name}", str(path))]
    numbers = ["--prompts", "2", "--max-new-tokens", "6", "--draft-length", "2"]
    return [*files, *numbers, "--fixed", str(FIXED), "1000", *more]


def best_size(counts: TokenCounts, target: Path) -> int:
    named = NamedModel(str(target))
    required = required_token_ids(named.tokenizer, named.generation_config, vocab_size=300)
    return search_vocabulary(counts, LatencyModel.eagle3(named.config), required=required).k


def assistant_counts(folder: Path, name: str) -> TokenCounts:
    rows = str(folder / "data" / name / "train.jsonl")
    return TokenCounts.from_dataset(rows, make_byte_tokenizer(), vocab_size=300, progress=False)


def figures(output: Path) -> Any:
    return json.loads((output / "figures.json").read_text("utf-8"))


def test_it_measures_every_way_on_every_set(
    bench: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = ["--trained-full", f"ner={folder / 'wide'}", "--assistant", str(folder / "small")]
    bench.main([*words(folder, tmp_path), "--draft", str(folder / "drafts"), *full])
    found = figures(tmp_path)
    # A fixed size that no head of this target can have is left out.
    rows: dict[str, Any] = {"trimmed": len(KEPT), "full": 300, f"fixed_{FIXED}": FIXED}
    rows |= {"lookup": None, "assistant": 300}
    ner, general = (
        rows | {"optimised": best_size(assistant_counts(folder, name), folder / "target")}
        for name in ("ner", "general")
    )
    more = {"trained_full": 300, "retrimmed": len(KEPT)}
    expected = {
        "general_on_general": general,
        "ner_on_ner": ner | more,
        "general_on_gsm8k": general,
    }
    assert set(found["sets"]) == set(expected)
    assert found["not_yet_measured"] == []
    for name, one in found["sets"].items():
        assert {n: way["head_rows"] for n, way in one["ways"].items()} == expected[name]
        report = DecodeReport.load(tmp_path / "work" / name / "decode_report.json")
        assert len(report.rows) == one["prompts"] == 2
        assert report.settings["plain_dtypes"] == ["float32", "bfloat16"]
        assert one["baseline"] == report.baseline
        for way, entry in report.entries.items():
            if entry.facts["kind"] == "assistant":
                assert entry.facts["num_assistant_tokens"] == 2
                assert entry.facts["num_assistant_tokens_schedule"] == "constant"
                assert entry.facts["assistant_confidence_threshold"] == 0.0
                assert entry.drafted_outside_vocabulary == 0
            if entry.facts["kind"] != "plain":
                told = one["ways"]["trimmed" if way == "draft" else way]
                assert told["over_plain"]["median"] == entry.speedup.median
                assert told["trimmed_over"]["median"] == report.ratio("draft", way).median
                best = report.ratio("optimised", way).median
                assert told["optimised_over"]["median"] == best
                assert told["draft_ms"] == entry.draft_step_ms
        there = DecodeReport.load(tmp_path / "work" / name / "float32" / "decode_report.json")
        assert there.draft.facts["dtype"] == "float32"
        assert one["identical_in_float32"] == [2, 2]
        assert one["out_of_distribution"] == (name == "general_on_gsm8k")
        assert one["unreadable"] == (name == "general_on_gsm8k")  # its last line is torn
        assert one["optimised"]["k"] == expected[name]["optimised"]
        assert one["optimised"]["counted"].endswith(f"data/{one['draft']}/train.jsonl")
    assert report.entries["lookup"].facts["arguments"] == {"prompt_lookup_num_tokens": "2"}
    assert {path.name for path in tmp_path.iterdir()} == {
        "figures.json",
        "report.md",
        "report.png",
        "work",
    }
    text, said = (tmp_path / "report.md").read_text("utf-8"), capsys.readouterr().out
    assert text in said
    assert "gsm8k.jsonl: 1 rows have no prompt that can be read and are passed over, the" in said
    assert "are passed over: general_on_gsm8k 1.\n" in text
    assert "python examples/bench_decoding.py --target " in text
    assert f"- `optimised`: k* = {ner['optimised']:,} of " in text
    assert f"- `trimmed`: as it was trained, {len(KEPT)} rows" in text


def test_the_report_is_made_of_the_json(bench: Any, folder: Path, tmp_path: Path) -> None:
    bench.main([*words(folder, tmp_path), "--draft", f"ner={folder / 'drafts/ner'}"])
    text, found = (tmp_path / "report.md").read_text("utf-8"), figures(tmp_path)
    assert bench.markdown(found) == text
    one = found["sets"]["ner_on_ner"]
    one["ways"]["full"]["trimmed_over"] |= {"median": 1.196, "low": 1.1, "high": 1.3}
    one["ways"]["full"]["seconds_of_trimmed_over"] |= {"median": 0.836, "low": 0.7, "high": 0.9}
    found["beside_the_paper"] = bench.beside_the_paper(found["sets"])
    told = bench.markdown(found)
    ours = f"| 6,521 | `trimmed`, k = {len(KEPT)} |"
    assert f"| ner: throughput | +19.6 % {ours} +19.6 % (+10.0 to +30.0) |" in told
    assert f"| ner: latency | -16.4 % {ours} -16.4 % (-30.0 to -10.0) |" in told
    assert f"| ner: latency | -16.4 % | 6,521 | `optimised`, k = {one['optimised']['k']} |" in told
    assert "| 1.20 (1.10 to 1.30) |" in told
    missing = "not measured: `make bench-decoding DRAFTS="
    far = "| out of distribution, gsm8k: throughput | +2.2 % to +6.7 % | 13,264 |"
    assert f"{far} {missing}general=FOLDER` measures it |" in told
    assert f"| function_calling: throughput | +10.0 % | 4,380 | {missing}function_calling=" in told


def test_without_any_of_our_own_the_paper_still_has_a_column_for_them(bench: Any) -> None:
    report = importlib.import_module("decoding_report")
    rows = bench.beside_the_paper({})
    lines = report._claims({"beside_the_paper": rows})
    assert lines[0] == "| trimming | the paper | its k | ours |"
    assert "not measured: `make bench-decoding DRAFTS=ner=FOLDER` measures it" in lines[2]
    one = {"set": "law", "draft": "general", "out_of_distribution": True, "ways": {}}
    (extra,) = (row for row in bench.beside_the_paper({"x": one}) if "law" in row["claim"])
    assert (extra["paper"], extra["paper_k"]) == (None, None)


def test_each_draft_has_a_row_of_its_own_on_a_set_outside(bench: Any) -> None:
    """Drafts of two runs in one folder: neither stands for the other."""
    sets = {
        f"{draft}_on_gsm8k": {
            "draft": draft,
            "set": "gsm8k",
            "out_of_distribution": True,
            "ways": {
                "trimmed": {"head_rows": rows},
                "full": {"trimmed_over": {"median": 1 + rows / 100, "low": 1.0, "high": 2.0}},
            },
        }
        for draft, rows in (("general", 5), ("sql", 7))
    }
    rows = [row for row in bench.beside_the_paper(sets) if "gsm8k" in row["claim"]]
    assert [(row["draft"], row["ours"]["trimmed"]["k"]) for row in rows] == [
        ("general", 5),
        ("sql", 7),
    ]
    report = importlib.import_module("decoding_report")
    lines = report._claims({"beside_the_paper": rows})
    for line, (draft, k) in zip(lines[2:], (("general", 5), ("sql", 7)), strict=True):
        assert f"gsm8k: throughput (draft `{draft}`) | " in line
        assert f"`trimmed`, k = {k} | +{k}.0 %" in line


def test_the_committed_report_is_that_of_its_figures(bench: Any) -> None:
    folder = EXAMPLES / "evidence/decoding"
    text = bench.markdown(figures(folder))
    assert text == (folder / "report.md").read_text("utf-8")
    for name, one in figures(folder)["sets"].items():
        assert f"## {name}\n" in text
        assert f"{one['data']} ({one['data_sha256'][:16]}), " in text


def test_a_file_is_named_by_all_of_its_hash(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert bench.file_hash(tmp_path / "a") == expected


def test_a_lookup_has_no_acceptance_length(bench: Any) -> None:
    """Rounds that found nothing count: 5 tokens in 4 forwards of which one read the prompt."""

    def cell(tokens: int, forwards: int, rounds: int, accepted: int) -> dict[str, Any]:
        none = {"difference": None, "drafted_outside": 0, "step_seconds": 0.0, "step_tokens": 0}
        return none | {
            "tokens": tokens,
            "seconds": 1.0 if rounds else 2.0,
            "parts": {"draft_head": 1.0},
            "target_forwards": forwards,
            "verified_drafts": rounds,
            "drafted": [rounds] if rounds else [],
            "accepted": [accepted] if rounds else [],
            "missing": [],
            "identical": True,
        }

    cells = {"plain float32": cell(5, 5, 0, 0), "draft": cell(5, 4, 3, 1)}
    cells["lookup"] = cell(5, 4, 1, 1)
    row = {"prompt": 0, "digest": "", "prompt_tokens": 3, "plain_tokens": 5, "entries": cells}
    facts: dict[str, Any] = {"plain float32": {"kind": "plain"}}
    facts |= {"lookup": {"kind": "generate_kwargs"}}
    facts["draft"] = {"kind": "assistant", "draft_vocab_size": 5, "vocab_size": 9, "dtype": "x"}
    machine: dict[str, Any] = {"versions": {}}
    settings = {"identity_dtype": "float32", "repeats": 1, "do_sample": False}
    report = DecodeReport.from_rows([row], facts, settings=settings, machine=machine)
    assert report.entries["lookup"].acceptance_length == 2
    ways = bench.figures_of(report, report)["ways"]
    assert ways["lookup"]["acceptance_length"] is None
    assert ways["lookup"]["acceptance_length_of_trimmed_over"] is None
    assert ways["trimmed"]["acceptance_length"] == pytest.approx(4 / 3)
    assert ways["trimmed"]["tokens_a_forward"] == ways["lookup"]["tokens_a_forward"]
    assert ways["lookup"]["tokens_a_forward"] == pytest.approx(4 / 3)


def test_what_is_finished_stays_and_is_not_measured_again(
    bench: Any,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = importlib.import_module("bench_trained_draft")
    asked: list[str] = []

    def killed_at_third(*args: Any, **how: Any) -> Any:
        asked.append(how["output"].parent.name)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return measuring_step.measure_draft(*args, **how, progress=False)

    call = [*words(folder, tmp_path), "--draft", str(folder / "drafts"), "--ood-draft", ""]
    monkeypatch.setattr(trained, "measure_draft", killed_at_third)
    with pytest.raises(KeyboardInterrupt):
        bench.main(call)
    first = figures(tmp_path)
    assert [*first["sets"]] == ["general_on_general"]
    assert first["not_yet_measured"] == ["ner_on_ner"]
    assert "Not measured yet: ner_on_ner." in (tmp_path / "report.md").read_text("utf-8")
    bench.main(call)
    assert len(asked) == 5  # the third again, and the fourth
    assert "general_on_general is of this call already" in capsys.readouterr().out
    second = figures(tmp_path)
    assert second["sets"]["general_on_general"] == first["sets"]["general_on_general"]
    assert second["not_yet_measured"] == []
    asked.clear()
    with pytest.raises(SystemExit, match=r"0 minutes are over .*: the same command goes on"):
        bench.main([*call, "--minutes", "0"])
    bench.main(call)
    assert asked == []
    assert figures(tmp_path) == second

    # Another draft joins what is there; one that is measured again takes its own place.
    again = ["--draft", f"ner={folder / 'drafts/ner'}", "--assistant", str(folder / "small")]
    bench.main([*words(folder, tmp_path), *again])
    third = figures(tmp_path)
    assert [*third["sets"]] == ["general_on_general", "ner_on_ner"]
    assert third["sets"]["general_on_general"] == first["sets"]["general_on_general"]
    assert "assistant" in third["sets"]["ner_on_ner"]["ways"]
    assert third["sets"]["ner_on_ner"]["command"] != second["sets"]["ner_on_ner"]["command"]
    text = (tmp_path / "report.md").read_text("utf-8")
    assert text.count("    python examples/bench_decoding.py ") == 2
    before = (tmp_path / "figures.json").read_bytes()
    with pytest.raises(
        SystemExit, match=r"was measured with draft_length 2, now it is 3: name an"
    ):
        bench.main([*words(folder, tmp_path), *again, "--draft-length", "3"])
    assert (tmp_path / "figures.json").read_bytes() == before


def test_a_draft_of_the_ids_that_the_search_chooses_is_measured_once(
    bench: Any, folder: Path, tmp_path: Path
) -> None:
    target = NamedModel(str(folder / "target"))
    counts = assistant_counts(folder, "ner")
    counts.save(tmp_path / "counts.safetensors")
    parser = ["--draft", "x=y", "--counts", f"ner={tmp_path / 'counts.safetensors'}"]
    args = bench.arguments([*words(folder, tmp_path), *parser])
    chosen = bench.chosen_for(target, ["ner"], args)
    assert chosen["ner"].counted == str(tmp_path / "counts.safetensors")
    own = make_eagle(target.model("float32"), chosen["ner"].ids.tolist())
    own.save_pretrained(tmp_path / "own")
    ways = bench.Ways(target, {"ner": NamedModel(str(tmp_path / "own"))}, {}, {}, chosen, {})
    answering, expected = ways.of("ner")
    assert [*answering] == [*expected] == ["draft", "full"]
    assert expected["draft"] == ways.optimised("ner")["k"] == chosen["ner"].ids.size
    assert ways.optimised("ner")["as_trained"]
    report = importlib.import_module("decoding_report")
    assert "chooses the same ids" in report._optimised(ways.optimised("ner"))


def test_sets_of_several_machines_are_told_apart(bench: Any) -> None:
    results = importlib.import_module("bench_results")
    here: dict[str, Any] = {"gpu": None, "cpu": "A", "threads": 2, "cores": 2, "python": "3"}
    here["versions"] = {}
    (told,) = results.machines_of([here, here])
    assert told["versions"]["vtrim-hf"]
    assert results.machine_lines({"a": [told], "b": [told]}) == [results.machine_line(told)]
    newer = told | {"versions": told["versions"] | {"torch": "9.9"}}
    lines = results.machine_lines({"a": [told], "b": [newer], "c": [told]})
    assert lines[0].startswith("Not all of it was measured on one machine")
    assert lines[1].startswith("- a, c: A, 2 threads")
    assert lines[2].startswith("- b: A, ")
    assert "torch 9.9" in lines[2]


def test_a_run_ends_in_time(bench: Any) -> None:
    results = importlib.import_module("bench_results")

    def work_on() -> None:
        with results.ended_after(0.001):
            while True:
                pass

    with pytest.raises(SystemExit, match=r"0\.001 minutes are over"):
        work_on()
    with results.ended_after(60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_fixed_vocabulary_has_the_most_frequent_tokens_and_the_required_ones(
    bench: Any, folder: Path
) -> None:
    parts = importlib.import_module("bench_parts")
    target, draft = NamedModel(str(folder / "target")), NamedModel(str(folder / "drafts/ner"))
    counts = parts.counts_of(target, None, folder / "data/general/train.jsonl", heldout=0.0)
    required = set(parts.required_ids(target))
    order = parts.by_need(counts.array("all"), required)
    assert sorted(order.tolist()) == list(range(300))
    assert set(order[: len(required)].tolist()) == required
    behind = counts.array("all")[order[len(required) :]]
    assert (np.diff(behind) <= 0).all()
    assert set(parts.by_need(counts.array("all"), required, KEPT)[:150].tolist()) == set(KEPT)

    wider = parts.OtherRows(draft, target, order[:FIXED])
    made, trained, big = wider.model("float32"), draft.model("auto"), target.model("float32")
    assert made.vocabulary.ids.tolist() == sorted(order[:FIXED].tolist())
    for row, token in enumerate(made.vocabulary.ids.tolist()):
        own = KEPT.index(token) if token in KEPT else None
        source = trained.body if own is not None else big
        weight = source.get_output_embeddings().weight[token if own is None else own]
        assert torch.equal(made.body.get_output_embeddings().weight[row], weight.float()), token
    cut = parts.OtherRows(draft, target, np.array([8, 4, 20]))
    assert cut.model("float32").vocabulary.ids.tolist() == [4, 8, 20]
    assert cut.identity != wider.identity
    assert cut.identity != parts.OtherRows(draft, target, np.array([8, 4, 22])).identity


def test_other_rows_than_were_asked_for_are_noticed(
    bench: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head of another size under a name that says a size is never told as that size's."""
    parts = importlib.import_module("bench_parts")
    right = parts.OtherRows.model

    def one_short(self: Any, dtype: str) -> Any:
        few = parts.OtherRows(self._draft, self._target, self.ids[:-1])
        return right(few if self.ids.size == FIXED else self, dtype)

    monkeypatch.setattr(parts.OtherRows, "model", one_short)
    with pytest.raises(ValueError, match=f"fixed_{FIXED} must have {FIXED} rows and was .* 279"):
        bench.main([*words(folder, tmp_path), "--draft", f"ner={folder / 'drafts/ner'}"])
    assert not (tmp_path / "figures.json").exists()


def test_prompts_are_from_all_over_a_file_and_long_ones_can_be_left_out(
    bench: Any, folder: Path, tmp_path: Path
) -> None:
    prompts = importlib.import_module("bench_prompts")
    tokenizer = make_byte_tokenizer()
    with (tmp_path / "many.jsonl").open("w", encoding="utf-8") as file:
        for number in range(9):
            turn: Any = {"role": "user", "content": f"{number}" * (50 if number == 3 else 1)}
            if number == 5:  # short in its parts, however long these are to write down
                turn["content"] = [{"type": "text", "text": text} for text in ("5", "", "")]
            file.write(json.dumps({"messages": [turn, {"role": "assistant", "content": "a"}]}))
            file.write("\n")

    def said(number: int, longest: int | None = None) -> tuple[list[str], int]:
        found = prompts.spread_prompts(tmp_path / "many.jsonl", tokenizer, number, longest)
        assert found.unreadable == 0
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in found.prompts]
        digits = [next(letter for letter in text if letter.isdigit()) for text in texts]
        return digits, found.left_out

    assert said(3) == (["0", "3", "6"], 0)
    assert said(4, 49) == (["0", "2", "5", "7"], 1)
    with pytest.raises(SystemExit, match=r"8 prompts \(1 longer ones are left out\), asked for 9"):
        said(9, 49)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (["--draft", "ner={0}/drafts/none"], "drafts/none"),
        (["--draft", "{0}/data"], "must be NAME=DRAFT or a folder of drafts"),
        (["--draft", "{0}/drafts", "--draft", "ner=x"], "two drafts named 'ner'"),
        (["--draft", "sql={0}/drafts/ner"], "there is no .*sql/test.jsonl"),
        (["--draft", "ner={0}/target"], "no draft of this package"),
        (["--draft", "ner={0}/drafts/ner", "--ood-draft", "ner", "--prompts", "9"], "asked for 9"),
        (["--draft", "ner={0}/drafts/ner", "--ood-draft", "sql"], "no --draft of this name"),
        (["--draft", "ner={0}/drafts/ner", "--fixed", "3"], "no room for .* required ids"),
        (["--draft", "ner={0}/drafts/ner", "--trained-full", "sql=x"], "no --draft of this name"),
        (["--draft", "ner={0}/drafts/ner", "--counts", "sql=x"], "no --draft of this name"),
        (["--draft", "ner={0}/drafts/ner", "--counts", "x"], "--counts x must be NAME=FILE"),
        (["--draft", "ner={0}/drafts/ner", "--counts", "ner={0}/no"], "no must be what `vtrim"),
        (
            ["--draft", "ner={0}/drafts/ner", "--general-counts", "{0}/data/ner/train.jsonl"],
            r"train.jsonl must be what `vtrim count` wrote",
        ),
        (["--draft", "ner={0}/drafts/ner", "--target", "{0}/no"], "--target must be .*, got .*no"),
        (["--draft", "ner={0}/drafts/ner", "--assistant", "{0}/no"], "--assistant must be .*no"),
        (
            ["--draft", "ner={0}/drafts/ner", "--trained-full", "ner={0}/drafts/ner"],
            "not the whole vocabulary",
        ),
    ],
)
def test_wrong_arguments_are_said(
    bench: Any, folder: Path, tmp_path: Path, changed: list[str], told: str
) -> None:
    with pytest.raises(SystemExit, match=told):
        bench.main([*words(folder, tmp_path), *(word.format(folder) for word in changed)])
    assert not (tmp_path / "figures.json").exists()


def test_a_draft_of_another_target_is_refused_before_anything_is_measured(
    bench: Any, folder: Path, tmp_path: Path
) -> None:
    """It has the target's width, and is not the first one."""
    shutil.copytree(folder / "drafts/ner", tmp_path / "other")
    config = json.loads((tmp_path / "other/config.json").read_text("utf-8"))
    config["target_num_hidden_layers"] = 28
    (tmp_path / "other/config.json").write_text(json.dumps(config), "utf-8")
    drafts = [f"ner={folder / 'drafts/ner'}", f"general={tmp_path / 'other'}"]
    call = [*words(folder, tmp_path), "--draft", drafts[0], "--draft", drafts[1]]
    with pytest.raises(SystemExit, match=r"other cannot draft for .*target: .*28"):
        bench.main([*call, "--ood-draft", ""])
    assert not (tmp_path / "work").exists()


def test_numbers_below_one_are_refused(
    bench: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench.main([*words(folder, tmp_path), "--draft", str(folder / "drafts"), "--prompts", "0"])
    assert "must be at least 1" in capsys.readouterr().err


def test_out_of_distribution_sets_must_be_there(bench: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "general").mkdir()
    with pytest.raises(SystemExit, match=r"build_domains\.py DATA --only ood writes them"):
        bench.cases_of(["general"], "general", tmp_path)


def test_a_set_outside_is_not_named_like_the_draft_itself(bench: Any, tmp_path: Path) -> None:
    for place in ("general/test.jsonl", "ood/general.jsonl"):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).touch()
    with pytest.raises(SystemExit, match=r"ood/general\.jsonl must not be named .*: rename"):
        bench.cases_of(["general"], "general", tmp_path)


def test_counts_of_another_tokenizer_or_width_are_refused(
    bench: Any, folder: Path, tmp_path: Path
) -> None:
    parts = importlib.import_module("bench_parts")
    target = NamedModel(str(folder / "target"))
    ones = np.ones(300, dtype=np.int64)
    for counts, told in (
        (TokenCounts.from_counts(ones, tokenizer_hash="ab" * 32), "another tokenizer"),
        (TokenCounts.from_counts(ones[:200]), "holds 200 tokens"),
    ):
        counts.save(tmp_path / "counts.safetensors")
        with pytest.raises(SystemExit, match=told):
            parts.counts_of(target, tmp_path / "counts.safetensors", folder, heldout=0.0)
