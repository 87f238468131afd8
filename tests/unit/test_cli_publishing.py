"""`vtrim publish`, and folders of drafts that are written whole."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from huggingface_hub import HfApi, hf_hub_download
from typer.testing import CliRunner

import vtrim_hf.hub
from hub_client import point_client_at
from published_facts import Pair, make_pair
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.cli_publishing import OPTIONS, as_options, publish
from vtrim_hf.cli_shared import folder_written_whole
from vtrim_hf.coverage_metadata import COVERAGE_JSON, make_metadata, read
from vtrim_hf.local_hub import LocalHub
from vtrim_hf.model_card import split_card

app = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False)
app.command()(publish)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    monkeypatch.setattr(vtrim_hf.hub, "prove_it_loads", lambda draft, folder: None)
    with LocalHub(tmp_path / "hub") as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        yield hub


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_pair()


@pytest.fixture
def folder(pair: Pair, tmp_path: Path) -> Path:
    pair.draft.save_pretrained(tmp_path / "draft")
    pair.tokenizer.save_pretrained(tmp_path / "draft")
    return tmp_path / "draft"


def run(*arguments: object, exit_code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + repr(result.exception)
    return result


def test_everything_that_is_known_is_published(
    hub: LocalHub, pair: Pair, folder: Path, tmp_path: Path
) -> None:
    pair.search.save(tmp_path / "search.json")
    pair.counts.save(tmp_path / "counts.safetensors")
    pair.report.save(tmp_path / "decode_report.json")
    result = run(
        folder,
        "user/x",
        *("--license", "mit", "--search", tmp_path / "search.json"),
        *("--counts", tmp_path / "counts.safetensors"),
        *("--report", tmp_path / "decode_report.json"),
        *("--target", "me/target", "--source", "me/small", "--dataset", "me/data"),
        *("--language", "en", "--private", "--tag", "v1", "--message", "Mine"),
        *("--json", "--quiet"),
    )
    told = json.loads(result.stdout)
    info = HfApi().model_info("user/x", revision="v1")
    assert told["commit"] == info.sha
    assert told["output"] == f"{hub.endpoint}/user/x"
    assert info.private
    facts = TrimmedDraftForCausalLM.from_pretrained("user/x").coverage_metadata
    assert {"search", "coverage", "most_missed_tokens", "decoding", "datasets"} <= set(facts)
    assert facts["draft"]["id"] == "me/small"
    assert HfApi().list_repo_commits("user/x")[0].title == "Mine"


def test_a_dry_run_tells_and_changes_nothing(hub: LocalHub, folder: Path) -> None:
    result = run(folder, "user/x", "--license", "mit", "--dry-run", "--quiet")
    assert "create the repository user/x" in result.stdout
    assert not HfApi().repo_exists("user/x")
    told = json.loads(
        run(folder, "user/x", "--license", "mit", "--dry-run", "--quiet", "--json").stdout
    )
    assert told["dry_run"] is True
    assert told["commit"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-namespace", "--license", "mit"], "NAMESPACE/NAME"),
        (["user/x"], "pass --license, an identifier"),
        (["user/x", "--license", "apache2"], "did you mean 'apache-2.0'? --license other with"),
        (["user/x", "--license", "other"], "--license other needs --license-name"),
        (["user/x", "--license", "mit", "--tag", "v 1"], "tag must be a name that git takes"),
        (["user/x", "--license", "mit", "--revision", "bad branch"], "'bad branch'"),
        (["user/x", "--license", "mit", "--create-pr"], "leave out --create-pr to create it"),
        (["someone/x", "--license", "mit"], "may not write to the namespace"),
        (["user/x", "--license", "mit", "--search", "missing.json"], "missing.json"),
        (["user/x", "--license", "mit", "--target", "x/y/z"], "--target must be the target's id"),
        (["user/x", "--license", "mit", "--max-shard-size", "0"], "--max-shard-size must be a"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(
    hub: LocalHub, folder: Path, arguments: list[str], said: str
) -> None:
    result = run(folder, *arguments, "--quiet", exit_code=2)
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert not HfApi().repo_exists("user/x")


def test_an_existing_repository_and_one_without_changes(hub: LocalHub, folder: Path) -> None:
    arguments = (folder, "user/x", "--license", "mit", "--quiet")
    run(*arguments)
    text = " ".join(run(*arguments, exit_code=2).stderr.split())
    assert "pass --exist-ok to add a commit to it" in text
    again = run(*arguments, "--exist-ok")
    assert "nothing changed" in again.stdout
    assert "wrote" not in again.stdout
    pull = json.loads(run(*arguments, "--create-pr", "--json").stdout)
    assert (pull["changed"], pull["revision"]) == (False, "main")
    assert pull["commit"] == HfApi().model_info("user/x").sha


def test_an_embedded_target_is_named_by_its_id(
    hub: LocalHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(draft: Any, repo_id: str, **options: Any) -> Any:
        raise ValueError(f"{options['target_id']} and {options['draft_id']}")

    monkeypatch.setattr(vtrim_hf.hub, "publish", told)
    names = ("--target", "smollm2", "--source", "me/small")
    shown = run(folder, "user/x", "--license", "mit", *names, exit_code=2).stderr
    assert "/SmolLM2-" in shown
    assert "and me/small" in " ".join(shown.split())


def test_a_licence_of_ones_own(hub: LocalHub, folder: Path) -> None:
    own = ("--license-name", "my-licence", "--license-link", "https://example.org/licence")
    run(folder, "user/x", "--license", "other", *own, "--quiet")
    text = Path(hf_hub_download("user/x", "README.md")).read_text()
    front, _ = split_card(text)
    assert (front["license"], front["license_name"]) == ("other", "my-licence")
    assert front["license_link"] == "https://example.org/licence"


def test_no_mistake_names_what_only_python_has() -> None:
    """Arguments in the texts of all modules behind the command have their option, which exists."""
    package = Path(vtrim_hf.hub.__file__).parent
    named: set[str] = set()
    behind = {*package.glob("hub*.py"), package / "model_card.py"}
    behind.remove(package / "hub_evaluation.py")  # no command asks for it
    for place in behind:
        for node in ast.walk(ast.parse(place.read_text(encoding="utf-8"))):
            raised = isinstance(node, ast.Raise) or place.name == "hub_errors.py"
            texts = [one for one in ast.walk(node) if raised and isinstance(one, ast.Constant)]
            for text in texts:
                if isinstance(text.value, str):
                    named |= {*re.findall(r"\b[a-z_]+=(?:True|False)?", as_options(text.value))}
    named.discard("t=")  # of a header, which is read
    assert not named, f"give these an option in OPTIONS: {named}"
    shown = run("--help").stdout
    for option in OPTIONS.values():
        assert option.split()[0].removesuffix("...")[:18] in shown, option


def test_help_has_an_example() -> None:
    assert "Example: " in run("--help").stdout


def test_a_folder_of_a_draft_is_written_whole_and_keeps_no_old_facts(
    pair: Pair, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    draft = make_pair().draft
    draft.coverage_metadata = make_metadata(draft, search=pair.search)
    with folder_written_whole(output) as place:
        draft.save_pretrained(place)
    assert read(output) == draft.coverage_metadata
    draft.coverage_metadata = None
    with folder_written_whole(output) as place:
        draft.save_pretrained(place)
    assert not (output / COVERAGE_JSON).exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    draft.coverage_metadata = make_metadata(draft)
    with contextlib.suppress(InterruptedError), folder_written_whole(output) as place:
        draft.save_pretrained(place)
        raise InterruptedError
    assert not (output / COVERAGE_JSON).exists()


def test_nothing_of_another_draft_stays_in_its_folder(pair: Pair, tmp_path: Path) -> None:
    """[another training's report passes for the draft's, a chat template for its tokenizer's]"""
    output = tmp_path / "out"
    theirs = (
        "training_report.json",
        "chat_template.jinja",
        "additional_chat_templates/tool.jinja",
    )
    mine = ("README.md", "notes.txt")
    for name in (*theirs, *mine):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text("{}")
    with folder_written_whole(output) as place:
        pair.draft.save_pretrained(place)
    assert [name for name in theirs if (output / name).exists()] == []
    assert [name for name in mine if (output / name).exists()] == [*mine]
    with folder_written_whole(output) as place:
        (place / "training_report.json").write_text("[]")
    assert (output / "training_report.json").read_text() == "[]", "its own stays"
