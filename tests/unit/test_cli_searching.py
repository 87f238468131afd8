"""`vtrim search --objective throughput`: from a report or from shares, and on to the draft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from published_facts import make_report
from tiny_models import make_byte_tokenizer, make_tiny
from vtrim_hf.cli_counting import search
from vtrim_hf.named_models import NamedModel
from vtrim_hf.search_result import SearchResult
from vtrim_hf.steps import trim_draft
from vtrim_hf.token_counts import TokenCounts
from vtrim_hf.vocabulary import tokenizer_fingerprint

app = typer.Typer()
app.command()(search)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, counts of its tokens, and the report of a draft."""
    folder = tmp_path_factory.mktemp("searching")
    tokenizer = make_byte_tokenizer()
    make_tiny("llama", eos_token_id=2).save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    here = np.random.default_rng(0).integers(1, 90, size=300)
    here[60:] = 0
    there = here.copy()
    there[60:63] = 1
    counts = TokenCounts.from_counts(
        here, heldout=there, tokenizer_hash=tokenizer_fingerprint(tokenizer)
    )
    counts.save(folder / "counts.safetensors")
    report = json.loads(make_report(24).to_json())
    report["entries"]["draft"]["facts"]["assistant_confidence_threshold"] = 0.0
    (folder / "decode_report.json").write_text(json.dumps(report))
    return folder


def run(folder: Path, *arguments: object, code: int = 0) -> Any:
    call = [folder / "counts.safetensors", "--target", folder / "target", "-q", *arguments]
    result = CliRunner().invoke(app, [str(argument) for argument in call])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


@pytest.mark.parametrize("cost", ["flops", "bytes"])
def test_by_a_report(folder: Path, tmp_path: Path, cost: str) -> None:
    found = run(
        folder, "--objective", "throughput", "--report", folder / "decode_report.json",
        "--cost", cost, "-o", tmp_path / "search", "--json",
    )  # fmt: skip
    facts = json.loads(found.stdout)
    result = SearchResult.load(tmp_path / "search" / "search.json")
    assert (facts["k"], facts["draft_length"]) == (result.k, result.draft_length)
    assert result.expected is not None
    assert facts["advice"] == result.expected["advice"]
    assert facts["judged_on"] == "heldout"
    assert facts["utility"] == result.utility
    assert facts["speedup"] == result.expected["chosen"]["heldout"]["speedup"]
    assert facts["speedup_whole_head"] == result.expected["full"]["heldout"]["speedup"]
    assert result.settings["decoding"]["settings"]["made_by"] == "DecodingModel.from_report"
    assert (tmp_path / "search" / "search.png").is_file()


def test_a_study_that_stays_behind_is_told(folder: Path, tmp_path: Path) -> None:
    found = run(
        folder, "--objective", "throughput", "--report", folder, "--cost", "flops", "--method",
        "tpe", "--trials", "1", "-o", tmp_path / "search", "--json",
    )  # fmt: skip
    result = SearchResult.load(tmp_path / "search" / "search.json")
    assert result.gap_to_exact > 0
    assert result.expected is not None
    best = result.expected["trimmed"]
    said = " ".join(found.stderr.split())
    assert f"of the 1 trials the best is k={result.k:,}" in said
    assert f"the best cut head has k={best['k']:,} and drafts {best['draft_length']}" in said


def test_by_the_folder_of_a_report_and_as_a_table(folder: Path, tmp_path: Path) -> None:
    found = run(
        folder, "--objective", "throughput", "--report", folder, "--cost", "flops", "-o",
        tmp_path / "search",
    )  # fmt: skip
    for word in ("advice", "draft_length", "speedup_whole_head"):
        assert word in found.stdout


def test_by_shares_the_target_is_timed(folder: Path, tmp_path: Path) -> None:
    found = run(
        folder, "--objective", "throughput", "--acceptance", "0.9,0.8", "-o", tmp_path / "search",
        "--json",
    )  # fmt: skip
    assert "timing" in found.stderr
    longer = json.loads(found.stdout)["draft_length"] > 2
    assert ("measure longer drafts" in found.stderr.replace("\n", " ")) == longer
    result = SearchResult.load(tmp_path / "search" / "search.json")
    decoding = result.settings["decoding"]
    assert decoding["acceptance"] == [0.9, 0.8]
    assert [tokens for tokens, _ in decoding["forward"]] == [1, 2, 3, 5, 9, 17]
    assert result.settings["latency"]["kind"] == "measured"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--objective", "throughput"), "--report decode_report.json"),
        (("--acceptance", "0.8"), "add it"),
        (("--report", "{report}"), "add it"),
        (
            ("--objective", "throughput", "--acceptance", "0.8", "--report", "{report}"),
            "or else --acceptance",
        ),
        (("--objective", "throughput", "--acceptance", "much"), "with commas between"),
        (("--objective", "throughput", "--acceptance", "80"), "no percentages"),
        (("--objective", "throughput", "--acceptance", "nan"), "finite"),
        (("--objective", "throughput", "--report", "gone.json"), "gone.json"),
        (("--objective", "throughput", "--report", "{counts}"), "tensors is no decode report"),
        (("--objective", "throughput", "--report", "{report}", "--alpha", "0.7"), "alpha"),
        (("--objective", "throughput", "--report", "{report}", "--paper"), "paper"),
        (
            ("--objective", "throughput", "--acceptance", "0.8", "--cost", "flops"),
            "LatencyModel.measured",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[2:]),
)
def test_mistakes_are_answered_in_a_sentence(
    folder: Path, arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    places = {"report": folder / "decode_report.json", "counts": folder / "counts.safetensors"}
    given = [text.format_map(places) for text in arguments]
    result = run(folder, *given, "-o", tmp_path / "search", code=2)
    assert said in result.stderr.replace("\n", " ")
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize(
    ("found", "given", "kept"), [(6, None, 6), (6, 3, 3), (0, None, 4), (None, None, 4)]
)
def test_a_draft_gets_the_length_that_was_found(
    folder: Path, found: int | None, given: int | None, kept: int, tmp_path: Path
) -> None:
    """Zero says not to draft, which the user decides: the draft keeps the usual number."""
    options: list[Any] = ["--objective", "throughput", "--report", folder, "--cost", "flops"]
    run(folder, *(options if found is not None else ()), "-o", tmp_path / "search")
    file = tmp_path / "search" / "search.json"
    if found is not None:
        data = json.loads(file.read_text())
        data["draft_length"] = data["expected"]["chosen"]["draft_length"] = found
        file.write_text(json.dumps(data))
    target = NamedModel(str(folder / "target"))
    made = trim_draft(target, tmp_path / "search", target, draft_length=given)
    assert made.generation_config.num_assistant_tokens == kept
