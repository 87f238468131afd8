"""`vtrim run`: what it prints, its exit codes, and its answers to mistakes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from recipes import make_recipe_folder
from vtrim_hf.cli_running import run as command

app = typer.Typer(rich_markup_mode="markdown")
app.command()(command)


def run(*arguments: object, exit_code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + repr(result.exception)
    return result


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli_running")
    recipe = make_recipe_folder(folder)
    result = run(recipe, "--run-folder", folder / "run")
    assert "measure: done in" in result.stderr
    assert "skipped" not in result.stdout
    assert "report.md" in result.stdout
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_second_run_keeps_everything_and_says_so(finished: Path) -> None:
    result = run(finished / "recipe.yaml", "--run-folder", finished / "run", "--json", "-q")
    assert result.stderr == ""
    told = json.loads(result.stdout)
    assert {piece["status"] for piece in told["pieces"]} == {"kept"}
    assert told["goal_met"] is None
    assert told["report"]["drafts"][0]["k"] > 0


def test_the_default_folder_is_named_after_the_recipe(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = json.loads(run(finished / "recipe.yaml", "--dry-run", "--json").stdout)
    assert told["folder"] == str(Path("runs") / "recipe")
    assert {piece["status"] for piece in told["pieces"]} == {"will run"}
    assert told["report"] is None
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_why(folder: Path) -> None:
    recipe = folder / "recipe.yaml"
    text = recipe.read_text("utf-8").replace("min_coverage: 0.9", "min_coverage: 0.95")
    recipe.write_text(text, encoding="utf-8")
    result = run(recipe, "--run-folder", folder / "run", "--dry-run")
    lines = {line.split()[1]: line for line in result.stdout.splitlines() if line.startswith("│")}
    assert "kept" in lines["count"]
    assert "will run" in lines["search"]
    assert "min_coverage" in lines["search"]
    assert "may run" in lines["trim"]


def test_force_and_until(folder: Path) -> None:
    call = (folder / "recipe.yaml", "--run-folder", folder / "run", "--json", "-q")
    told = json.loads(run(*call, "--force", "search", "--until", "trim").stdout)
    assert [(piece["piece"], piece["status"]) for piece in told["pieces"]] == [
        ("count a", "kept"), ("count b", "kept"), ("search", "done"), ("trim", "kept")
    ]  # fmt: skip


def test_a_missed_goal_exits_with_1_after_everything_is_written(folder: Path) -> None:
    recipe = folder / "recipe.yaml"
    text = recipe.read_text("utf-8").replace("prompts: 2", "prompts: 2\n  min_speedup: 100")
    recipe.write_text(text, encoding="utf-8")
    result = run(recipe, "--run-folder", folder / "run", "--json", exit_code=1)
    assert json.loads(result.stdout)["goal_met"] is False
    assert "goal missed" in result.stderr
    assert "**missed**" in (folder / "run" / "report.md").read_text("utf-8")


def test_all_mistakes_are_shown_with_their_lines(folder: Path) -> None:
    recipe = folder / "recipe.yaml"
    text = recipe.read_text("utf-8").replace("draft_length: 2", "lenght: 2") + "measure: {}\n"
    recipe.write_text(text, encoding="utf-8")
    result = run(recipe, "--run-folder", folder / "run", exit_code=2)
    assert "recipe.yaml:5: draft has no field 'lenght'" in result.stderr
    assert "recipe.yaml:19: 'measure' stands twice" in result.stderr
    assert "Traceback" not in result.output
    assert "Traceback" in run(recipe, "--debug", exit_code=2).output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gone.yaml",), "no recipe at gone.yaml"),
        (("{recipe}", "--run-folder", "{recipe}"), "is a file"),
        (("{recipe}", "--run-folder", "{folder}"), "no run's folder"),
        (("{recipe}", "--until", "prune"), "--until"),
        (("{recipe}", "--until", "train"), "its draft is made by trim"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(
    finished: Path, arguments: tuple[str, ...], said: str
) -> None:
    places = {"recipe": finished / "recipe.yaml", "folder": finished}
    result = run(*(text.format_map(places) for text in arguments), exit_code=2)
    assert said in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.output


def test_ctrl_c(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vtrim_hf.recipe_work.search_counts", interrupted)
    call = (folder / "recipe.yaml", "--run-folder", folder / "run")
    result = run(*call, "--force", "search", exit_code=130)
    assert "interrupted" in result.stderr
    monkeypatch.undo()
    assert {p["status"] for p in json.loads(run(*call, "--json").stdout)["pieces"]} == {"kept"}


def test_help_has_an_example() -> None:
    assert "vtrim run " in run("--help").output
    assert "runs/NAME" in run("--help").output


def test_quiet_keeps_remarks(folder: Path) -> None:
    with (folder / "a.jsonl").open("a", encoding="utf-8") as file:
        file.write("no JSON\n")
    result = run(folder / "recipe.yaml", "--run-folder", folder / "run", "--until", "count", "-q")
    assert "skipped a.jsonl:31" in result.stderr
    assert "done in" not in result.stderr
    assert "count a:" not in result.stderr
