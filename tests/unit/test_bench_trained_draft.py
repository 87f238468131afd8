"""The benchmark of a trained draft, on tiny models: what it writes, its figures, going on."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from drafting import make_eagle
from recipes import write_rows
from tiny_models import make_byte_tokenizer, make_tiny
from vtrim_hf import DecodeReport, measuring_step

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "bench_trained_draft.py"
KEPT = range(0, 300, 2)


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        spec = importlib.util.spec_from_file_location("bench_trained_draft", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    target = make_tiny("llama", num_hidden_layers=4, eos_token_id=2)
    target.save_pretrained(folder / "target")
    make_byte_tokenizer().save_pretrained(folder / "target")
    make_eagle(target, KEPT).save_pretrained(folder / "draft")
    make_eagle(target).save_pretrained(folder / "wide")
    write_rows(folder / "test.jsonl", "fox", 0, 4)
    return folder


def words(folder: Path, output: Path, *more: str) -> list[str]:
    files = {"target": "target", "draft": "draft", "data": "test.jsonl"}
    named = [word for name, file in files.items() for word in (f"--{name}", str(folder / file))]
    numbers = ["--prompts", "3", "--max-new-tokens", "6", "--draft-length", "2"]
    return [*named, *numbers, "--output", str(output), *more]


def test_it_measures_and_writes(
    bench: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    bench.main(words(folder, output, "--trained-full", str(folder / "wide"), "--threshold", "0"))
    found = json.loads((output / "figures.json").read_text(encoding="utf-8"))
    report = DecodeReport.load(output / "decode_report.json")
    drafts = {"draft": len(KEPT), "full": 300, "trained_full": 300}
    for name, size in drafts.items():
        facts = report.entries[name].facts
        assert (facts["draft_vocab_size"], facts["dtype"]) == (size, "bfloat16")
        assert facts["num_assistant_tokens"] == 2
        assert facts["assistant_confidence_threshold"] == 0.0
    assert report.settings["plain_dtypes"] == ["float32", "bfloat16"]
    assert found["baseline"] == report.baseline
    assert set(found["over_plain"]) == {"trimmed", "full", "trained_full"}
    assert found["head_rows"] == {"trimmed": len(KEPT), "full": 300, "trained_full": 300}
    assert set(found["tokens_per_second"]) == {"plain", *found["head_rows"]}
    assert set(found["trimmed_over"]) == {"full", "trained_full"}
    assert found["trimmed_over"]["full"]["median"] == report.ratio("draft", "full").median
    for name, entry in (("trimmed", "draft"), ("full", "full")):
        assert found["draft_ms_a_token"][name] == report.entries[entry].draft_step_ms > 0
    weights = (folder / "draft" / "model.safetensors").read_bytes()
    assert found["draft_weights"] == hashlib.sha256(weights).hexdigest()
    there = DecodeReport.load(output / "float32" / "decode_report.json")
    assert there.draft.facts["dtype"] == there.plain.facts["dtype"] == "float32"
    assert found["identical_in_float32"] == [3, 3]
    assert len(found["data_fingerprint"]) >= 64
    assert (output / "report.png").stat().st_size > 0
    text = (output / "report.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    for said in (
        "n = 2 for all",
        report.table(),
        f"- trimmed / {report.baseline}: ",
        "- trimmed / full, speed: ",
        "- acceptance length, trimmed / full: ",
        "- acceptance by position, trained_full: ",
        "- head's share of the time, trimmed: ",
        "- texts in float32 that are the target's own: 3 of 3",
        "    python examples/bench_trained_draft.py --target ",
    ):
        assert said in text, said


def test_what_is_finished_is_not_measured_again(
    bench: Any,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "out"
    asked: list[str] = []

    def killed_at_last(*args: Any, **how: Any) -> Any:
        asked.append(how["dtype"])
        if how["dtype"] == "float32":
            raise KeyboardInterrupt
        return measuring_step.measure_draft(*args, **how, progress=False)

    monkeypatch.setattr(bench, "measure_draft", killed_at_last)
    with pytest.raises(KeyboardInterrupt):
        bench.main(words(folder, output))
    first = (output / "decode_report.json").read_bytes()
    monkeypatch.setattr(bench, "measure_draft", measuring_step.measure_draft)
    bench.main(words(folder, output))
    assert asked == ["bfloat16", "float32"]
    assert (output / "decode_report.json").read_bytes() == first
    assert "is of this call already" in capsys.readouterr().out
    other = words(folder, output)
    other[other.index("--draft-length") + 1] = "3"
    bench.main(other)
    report = DecodeReport.load(output / "decode_report.json")
    assert report.draft.facts["num_assistant_tokens"] == 3


def test_a_draft_of_fewer_rows_is_no_full_vocabulary(
    bench: Any, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="has 150 rows, the target's vocabulary 300"):
        bench.main(words(folder, tmp_path / "out", "--trained-full", str(folder / "draft")))
    assert not (tmp_path / "out").exists()


def test_the_ratio_of_lengths_is_that_of_all_prompts(bench: Any) -> None:
    def row(ours: tuple[int, int], theirs: tuple[int, int]) -> dict[str, Any]:
        cells = {"draft": ours, "full": theirs}
        return {
            "entries": {
                name: {"accepted": [accepted], "verified_drafts": verified}
                for name, (accepted, verified) in cells.items()
            }
        }

    class Rows:
        rows = (row((10, 10), (10, 10)), row((0, 10), (30, 10)))

    found = bench.length_ratio(Rows, "draft", "full")
    assert found["ratio"] == pytest.approx((1 + 10 / 20) / (1 + 40 / 20))
    assert found["low"] == pytest.approx((1 + 0) / (1 + 3))  # the second prompt twice
    assert found["high"] == pytest.approx(1.0)  # the first one twice


@pytest.mark.parametrize("name", ["call.json", "decode_report.json"])
def test_what_is_damaged_is_measured_anew(
    bench: Any, folder: Path, tmp_path: Path, name: str
) -> None:
    bench.main(words(folder, tmp_path))
    whole = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
    for torn in (b'{"rows": ', b"[]", b"{}", b"\xff"):
        (tmp_path / name).write_bytes(torn)
        bench.main(words(folder, tmp_path))
        assert DecodeReport.load(tmp_path / "decode_report.json").rows
        assert (tmp_path / "call.json").read_bytes() == whole[tmp_path / "call.json"]


def test_rows_of_something_else_are_named(bench: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "decode_report.0123456789ab.rows.jsonl").write_text('{"a": 1}\n', "utf-8")
    with pytest.raises(SystemExit, match=r"ab.rows.jsonl:1 is no row .* must have 'prompt'"):
        bench.main(words(folder, tmp_path))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--data", "{0}/no.jsonl"], "--data .*no.jsonl cannot be read"),
        (["--target", "{0}/no"], "--target must be .*no"),
        (["--draft", "{0}/no"], "no must be the folder or Hub id of a draft"),
        (["--trained-full", "{0}/target"], "target is no draft of this package"),
    ],
)
def test_what_is_not_there_is_said(
    bench: Any, folder: Path, tmp_path: Path, more: list[str], told: str
) -> None:
    with pytest.raises(SystemExit, match=told):
        bench.main([*words(folder, tmp_path), *(word.format(folder) for word in more)])


def test_a_file_is_no_folder_of_results(
    bench: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(SystemExit):
        bench.main(words(folder, tmp_path / "file"))
    assert "file must be a folder, and" in capsys.readouterr().err


def test_too_few_prompts_are_said(bench: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds 4 prompts, asked for 9"):
        bench.main([*words(folder, tmp_path), "--prompts", "9"])
