"""`vtrim report`: what it prints, its exit codes, and its answers to mistakes."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from report_samples import figures, write_json
from vtrim_hf.cli import app


def run(*arguments: object, exit_code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["report", *(str(argument) for argument in arguments)])
    assert result.exit_code == exit_code, result.output + repr(result.exception)
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_json(tmp_path / "bench" / "figures.json", figures())
    return tmp_path / "bench"


def test_says_where_the_page_is(folder: Path, tmp_path: Path) -> None:
    result = run(folder)
    assert result.stdout == f"wrote {folder / 'report.html'}: 1 section\n"
    assert result.stderr == ""
    first = (folder / "report.html").read_bytes()
    run(folder, "-o", tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").read_bytes() == first


def test_json_and_remarks(folder: Path) -> None:
    (folder / "search.json").write_text("{")
    result = run(folder, "--json")
    told = json.loads(result.stdout)
    assert told["output"] == str(folder / "report.html")
    assert told["sections"] == ["A search result: search.json", "Figures: figures.json"]
    assert "search.json: This file could not be shown" in told["problems"][0]
    assert "search.json: This file could not be shown" in result.stderr
    assert run(folder, "--quiet").stderr == ""


@pytest.mark.parametrize("started", [True, False])
def test_open(folder: Path, monkeypatch: pytest.MonkeyPatch, started: bool) -> None:
    opened: list[str] = []

    def start(uri: str) -> bool:
        opened.append(uri)
        return started

    monkeypatch.setattr(webbrowser, "open", start)
    result = run(folder, "--open")
    assert opened == [(folder / "report.html").resolve().as_uri()]
    assert ("no browser could be started" in result.stderr) != started


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, said in (
        ((tmp_path / "nowhere",), "there is no folder"),
        ((folder / "figures.json",), "is a file: name the folder"),
        ((tmp_path / "empty",), "it is empty: name a folder that `vtrim run`"),
        ((folder, "-o", tmp_path), "--output must name a file"),
    ):
        result = run(*arguments, exit_code=2)
        assert said in result.stderr
        assert "Traceback" not in result.stderr
    assert not list(tmp_path.rglob("*.html"))


def test_help_shows_examples() -> None:
    told = run("--help").stdout
    assert "vtrim report runs/sql --open" in told
    assert "--output" in told
