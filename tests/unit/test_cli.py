"""The `vtrim` command: its whole chain on a tiny target, and its answers to mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tiny_models import make_byte_tokenizer, make_tiny
from vtrim_hf import DraftVocabulary, TokenCounts, TrimmedDraftForCausalLM, __version__
from vtrim_hf.cli import app
from vtrim_hf.coverage_metadata import COVERAGE_JSON

QUESTIONS = (
    "Which city?",
    "What is the name?",
    "Who sleeps?",
    "Where is the fox?",
    "Add a and b.",
)


def run(*arguments: object, exit_code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + repr(result.exception)
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with its tokenizer, and chat data."""
    folder = tmp_path_factory.mktemp("cli")
    tokenizer = make_byte_tokenizer()
    target = make_tiny("llama", eos_token_id=2)
    target.save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    other = make_byte_tokenizer()
    other.add_tokens(["<other>"])
    target.save_pretrained(folder / "other")
    other.save_pretrained(folder / "other")
    with (folder / "chat.jsonl").open("w", encoding="utf-8") as file:
        for index in range(40):
            turns = [
                {"role": "user", "content": f"{QUESTIONS[index % 5]} {index}"},
                {"role": "assistant", "content": f"SELECT name FROM singers WHERE age = {index}"},
            ]
            file.write(json.dumps({"messages": turns}) + "\n")
        file.write("no JSON\n")
    return folder


@pytest.fixture(scope="module")
def chain(folder: Path) -> dict[str, Any]:
    """What each step of the chain printed as JSON."""
    target = folder / "target"
    count = run(
        "count", folder / "chat.jsonl", "--target", target, "-o", folder / "c.safetensors",
        "--json", "-q",
    )  # fmt: skip
    search = run(
        "search", folder / "c.safetensors", "--target", target, "-o", folder / "search",
        "--min-coverage", 0.9, "--keep", "fox", "--json", "-q",
    )  # fmt: skip
    trim = run(
        "trim", target, folder / "search", "--target", target, "-o", folder / "draft",
        "--dtype", "float32", "--draft-length", 3, "--json",
    )  # fmt: skip
    measure = run(
        "measure", target, folder / "draft", folder / "chat.jsonl", "--limit", 2,
        "--max-new-tokens", 8, "-o", folder / "report", "--json", "-q",
        "--compare", f"again={folder / 'draft'}", "--threshold", 0.25,
    )  # fmt: skip
    return {
        name: json.loads(result.stdout)
        for name, result in (
            ("count", count),
            ("search", search),
            ("trim", trim),
            ("measure", measure),
        )
    }


def test_count_writes_counts_and_says_what_it_skipped(folder: Path, chain: dict[str, Any]) -> None:
    counts = TokenCounts.load(folder / "c.safetensors")
    (row,) = chain["count"]["domains"]
    assert row["conversations"] == 40
    assert row["search_tokens"] == counts.total("search")
    assert row["shapes"] == {"messages": 40}
    assert chain["count"]["skipped_rows"] == 1
    result = run(
        "count", "--domain", f"a={folder / 'chat.jsonl'}", "--target", folder / "target",
        "-o", folder / "again.safetensors",
    )  # fmt: skip
    assert "chat.jsonl" in result.stderr
    assert "41" in result.stderr


def test_search_writes_result_vocabulary_and_plot(folder: Path, chain: dict[str, Any]) -> None:
    vocabulary = DraftVocabulary.load(folder / "search")
    assert chain["search"]["fingerprint"] == vocabulary.fingerprint
    assert chain["search"]["k"] == len(vocabulary)
    assert chain["search"]["coverage"] >= 0.9
    fox = make_byte_tokenizer().encode("fox", add_special_tokens=False)
    assert all(index in vocabulary for index in fox)
    assert (folder / "search" / "search.json").is_file()
    assert (folder / "search" / "search.png").is_file()


def test_trim_writes_a_draft_that_loads(folder: Path, chain: dict[str, Any]) -> None:
    draft = TrimmedDraftForCausalLM.from_pretrained(folder / "draft")
    assert draft.config.draft_vocab_size == chain["trim"]["k"] == chain["search"]["k"]
    assert draft.generation_config.num_assistant_tokens == 3
    assert draft.dtype == torch.float32
    assert (folder / "draft" / "tokenizer.json").is_file()


def test_trim_hands_on_what_the_search_found(folder: Path, chain: dict[str, Any]) -> None:
    facts = json.loads((folder / "draft" / "vtrim" / "coverage.json").read_text("utf-8"))
    assert facts["draft"]["k"] == chain["search"]["k"]
    assert facts["coverage"]["search"]["share"] == pytest.approx(chain["search"]["coverage"])


def test_a_vocabulary_without_a_search_makes_a_draft_without_facts(
    folder: Path, tmp_path: Path
) -> None:
    vocabulary = DraftVocabulary.from_ids(
        range(290), vocab_size=300, tokenizer=make_byte_tokenizer()
    )
    vocabulary.save(tmp_path / "vocabulary")
    run("trim", folder / "target", tmp_path / "vocabulary", "--target", folder / "target", "-o",
        tmp_path / "draft")  # fmt: skip
    assert not (tmp_path / "draft" / COVERAGE_JSON).exists()


def test_measure_goes_on_after_a_kill(
    folder: Path, chain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the prompts that were not measured are measured; nothing is left in the end."""
    from vtrim_hf.decoding_runs import DecodingRuns

    asked: list[int] = []
    measured = DecodingRuns.row

    def row(self: DecodingRuns, index: int, *others: Any) -> dict[str, Any]:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(index)
        return measured(self, index, *others)

    monkeypatch.setattr(DecodingRuns, "row", row)
    call = (
        "measure", folder / "target", folder / "draft", folder / "chat.jsonl", "--limit", 3,
        "--max-new-tokens", 4, "-o", tmp_path / "report", "-q",
    )  # fmt: skip
    run(*call, exit_code=130)
    (rows,) = (tmp_path / "report").iterdir()
    assert len(rows.read_text("utf-8").splitlines()) == 2
    with rows.open("a", encoding="utf-8") as file:
        file.write('{"prompt": 2, "entr')  # what a kill leaves

    def noted(self: DecodingRuns, index: int, *others: Any) -> dict[str, Any]:
        asked.append(index)
        return measured(self, index, *others)

    monkeypatch.setattr(DecodingRuns, "row", noted)
    result = run(*call, "--json")
    assert asked == [0, 1, 2]
    assert "2 prompts" in result.stderr
    assert len(json.loads(result.stdout)["rows"]) == 3
    assert not list((tmp_path / "report").glob("*.jsonl"))
    assert (tmp_path / "report" / "decode_report.json").is_file()


def test_rows_of_another_call_are_not_taken(
    folder: Path, chain: dict[str, Any], tmp_path: Path
) -> None:
    import shutil

    from vtrim_hf.kept_rows import KeptRows

    call = (
        "measure", folder / "target", "DRAFT", folder / "chat.jsonl", "--limit", 1,
        "--max-new-tokens", 4, "-o", tmp_path / "report", "-q",
    )  # fmt: skip
    names: list[str] = []
    remove = KeptRows.remove

    def noted(self: KeptRows) -> None:
        names.append(self.path.name)
        remove(self)

    shutil.copytree(folder / "draft", tmp_path / "draft")
    settings = tmp_path / "draft" / "generation_config.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptRows, "remove", noted)
        run(*(tmp_path / "draft" if part == "DRAFT" else part for part in call))
        run(*(tmp_path / "draft" if part == "DRAFT" else part for part in call))
        run(*(tmp_path / "draft" if part == "DRAFT" else part for part in call), "--limit", 2)
        changed = json.loads(settings.read_text("utf-8")) | {"num_assistant_tokens": 2}
        settings.write_text(json.dumps(changed), encoding="utf-8")
        run(*(tmp_path / "draft" if part == "DRAFT" else part for part in call))
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_measure_writes_report_and_plot(folder: Path, chain: dict[str, Any]) -> None:
    assert {"draft", "again"} <= set(chain["measure"]["entries"])
    for name in ("draft", "again"):
        facts = chain["measure"]["entries"][name]["facts"]
        assert facts["assistant_confidence_threshold"] == 0.25
    assert (folder / "report" / "decode_report.json").is_file()
    assert (folder / "report" / "decode_report.png").is_file()


def test_a_goal_that_is_missed_exits_with_1(folder: Path, chain: dict[str, Any]) -> None:
    result = run(
        "measure", folder / "target", folder / "draft", folder / "chat.jsonl", "--limit", 1,
        "--max-new-tokens", 4, "--min-speedup", 100, "-q", exit_code=1,
    )  # fmt: skip
    assert "goal missed" in result.stderr


@pytest.mark.parametrize(
    "command", ["run", "count", "search", "trim", "measure", "publish", "hub serve"]
)
def test_help_has_an_example(command: str) -> None:
    assert f"vtrim {command} " in run(*command.split(), "--help").output


def test_version() -> None:
    assert run("--version").output.strip() == __version__


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("count",), "no data given"),
        (("count", "gone.jsonl", "--target", "{target}"), "gone.jsonl"),
        (("count", "--domain", "sql", "--target", "{target}"), "NAME=DATA"),
        (("search", "gone.safetensors", "--target", "{target}"), "gone.safetensors"),
        (("search", "{counts}", "--target", "{target}", "--floor", "default=much"), "share"),
        (("search", "{counts}", "--target", "{target}", "--min-coverage", "2"), "min_coverage"),
        (("search", "{counts}", "--target", "{target}", "--body", "standalone"), "--draft"),
        (("trim", "{target}", "{folder}", "--target", "{target}"), "vocabulary"),
        (("measure", "{target}", "gone", "{data}"), "gone"),
        (("measure", "{target}", "{draft}", "{data}", "--compare", "x"), "NAME=FOLDER"),
        (("measure", "{target}", "{draft}", "{data}", "--threshold", "1.5"), "0 to 1, got 1.5"),
        (("measure", "{target}", "{draft}", "{data}", "--threshold", "-1"), "0 to 1, got -1.0"),
        (("measure", "{target}", "{draft}", "{data}", "--threshold", "nan"), "got nan: 0 never"),
        (
            ("measure", "{target}", "{draft}", "{data}", "--revision", "sql"),
            "of a draft on the Hub",
        ),
        (("measure", "{target}", "smollm2", "{data}", "--revision", "sql"), "leave it out for"),
        (("measure", "{target}", "me/x", "{data}", "--revision", " "), "got ' ' for me/x"),
        (("trim", "{target}", "{search}", "--target", "{target}", "--layers", "9"), "layers"),
        (("trim", "{target}", "{search}", "--target", "{target}", "-o", "{data}"), "--output"),
        (("trim", "{target}", "{search}", "--draft-length", "0"), "--draft-length"),
        (("count", "{data}", "--target", "{target}", "-o", "{folder}"), "--output"),
        (("search", "{counts}", "--target", "{target}", "-o", "{data}"), "--output"),
        (("search", "{counts}", "--target", "{target}", "--paper", "--alpha", ".9"), "alpha"),
        (("search", "{counts}", "--target", "{target}", "--paper", "--keep", "x"), "required"),
        (("search", "{counts}", "--target", "{target}", "--layers", "1"), "--draft"),
        (
            ("search", "{counts}", "--target", "{target}", "--draft", "x", "--mlp-width", "8"),
            "--mlp-width",
        ),
        (("search", "{counts}", "--target", "{other}"), "count again"),
        (("measure", "{target}", "{draft}", "{data}", "-o", "{data}"), "--output"),
        (
            ("measure", "{target}", "{draft}", "{data}", "--compare", "a=x", "--compare", "a=y"),
            "twice",
        ),
        (
            ("count", "{data}", "--target", "{target}", "--from-target", "--text-column", "x"),
            "--text-column",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_mistakes_are_answered_in_a_sentence(
    folder: Path, chain: dict[str, Any], arguments: tuple[str, ...], said: str
) -> None:
    places = {
        "target": folder / "target",
        "counts": folder / "c.safetensors",
        "search": folder / "search",
        "draft": folder / "draft",
        "data": folder / "chat.jsonl",
        "folder": folder,
        "other": folder / "other",
    }
    result = run(*(text.format_map(places) for text in arguments), exit_code=2)
    assert said in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.output


def test_debug_shows_the_traceback(folder: Path) -> None:
    result = run("count", "gone.jsonl", "--target", folder / "target", "--debug", exit_code=2)
    assert "Traceback" in result.output


def test_another_tokenizer_is_refused(folder: Path, chain: dict[str, Any], tmp_path: Path) -> None:
    result = run(
        "trim", folder / "other", folder / "search", "--target", folder / "target", "-o",
        tmp_path / "draft", exit_code=2,
    )  # fmt: skip
    assert "share one tokenizer" in result.stderr.replace("\n", " ")
    assert not (tmp_path / "draft").exists()


def test_only_the_answers_to_the_prompts_asked_for_are_counted(
    folder: Path, tmp_path: Path
) -> None:
    def conversations(*data: object, limit: int) -> int:
        result = run(
            "count", *data, "--target", folder / "target", "-o", tmp_path / "c.safetensors",
            "--from-target", "--limit", limit, "--max-new-tokens", 4, "--json", "-q",
        )  # fmt: skip
        return int(json.loads(result.stdout)["domains"][0]["conversations"])

    rows = (folder / "chat.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "a.jsonl").write_text("\n".join(rows[:10]), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("\n".join(rows[10:20]), encoding="utf-8")
    assert conversations(tmp_path / "a.jsonl", tmp_path / "b.jsonl", limit=5) == 10
    assert conversations(tmp_path / "a.jsonl", limit=3) == 3
    assert conversations(tmp_path / "b.jsonl", limit=5) == 5


def test_a_fault_of_ours_is_no_missed_goal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise KeyError("no such thing")

    monkeypatch.setattr(TokenCounts, "from_dataset", broken)
    result = run(
        "count", folder / "chat.jsonl", "--target", folder / "target", "-o",
        folder / "broken.safetensors", exit_code=3,
    )  # fmt: skip
    assert "unexpected KeyError" in result.stderr


def test_weights_of_an_earlier_save_do_not_stay(
    folder: Path, chain: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "model-00001-of-00002.safetensors").write_bytes(b"old")
    (tmp_path / "draft" / "notes.md").write_text("mine", encoding="utf-8")
    run("trim", folder / "target", folder / "search", "--target", folder / "target", "-o",
        tmp_path / "draft")  # fmt: skip
    assert not (tmp_path / "draft" / "model-00001-of-00002.safetensors").exists()
    assert (tmp_path / "draft" / "notes.md").is_file()


def test_ctrl_c_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TokenCounts, "from_dataset", interrupted)
    output = folder / "interrupted.safetensors"
    run(
        "count", folder / "chat.jsonl", "--target", folder / "target", "-o", output,
        exit_code=130,
    )  # fmt: skip
    assert not output.exists()


def test_a_killed_save_leaves_the_old_draft(
    folder: Path, chain: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run("trim", folder / "target", folder / "search", "--target", folder / "target", "-o",
        tmp_path / "draft")  # fmt: skip

    def files() -> dict[str, bytes]:
        found = (path for path in (tmp_path / "draft").rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in found}

    before = files()
    saved = TrimmedDraftForCausalLM.save_pretrained

    def killed(self: TrimmedDraftForCausalLM, where: Path) -> None:
        saved(self, where)
        raise KeyboardInterrupt

    monkeypatch.setattr(TrimmedDraftForCausalLM, "save_pretrained", killed)
    run("trim", folder / "target", folder / "search", "--target", folder / "target", "-o",
        tmp_path / "draft", "--dtype", "float32", exit_code=130)  # fmt: skip
    assert files() == before
    assert [path.name for path in tmp_path.iterdir()] == ["draft"]
