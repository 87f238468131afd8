"""What benchmarks share: arguments, where their data lie, what they read again, tables."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("bench_results")


@pytest.fixture
def arguments(results: Any) -> Any:
    return importlib.import_module("bench_arguments")


@pytest.fixture
def files(results: Any) -> Any:
    return importlib.import_module("bench_files")


def test_data_of_the_hub_lie_in_a_folder_that_tells_their_origin(
    arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(repo_id: str, *, repo_type: str, local_dir: Path) -> None:
        assert (repo_id, repo_type) == ("user/domains", "dataset")
        (local_dir / "ner").mkdir(parents=True)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    found = arguments.data_folder("user/domains")
    assert found == Path("runs/data/user--domains")
    assert (found / "ner").is_dir()


def test_a_folder_is_taken_before_the_hub(arguments: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be downloaded")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    Path("user/domains").mkdir(parents=True)
    for place in ("user/domains", "domains", "/no/such/folder", "./user/nothing"):
        assert arguments.data_folder(place) == Path(place)


def test_data_that_are_nowhere_are_refused_with_the_reason(
    arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: object, **__: object) -> None:
        raise OSError("no such data set")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(argparse.ArgumentTypeError, match=r"Hub id of a data set: .*no such data"):
        arguments.data_folder("user/domians")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--minutes", "nan"], "must be a number of minutes of at most 525,600, got nan"),
        (["--minutes", "inf"], "of at most 525,600, got inf"),
        (["--minutes", "1e300"], "of at most 525,600, got 1e300"),
        (["--minutes", "soon"], "of at most 525,600, got soon"),
        (["--output", "file"], "file must be a folder, and file is a file: name another place"),
        (["--output", "file/x"], "file/x must be a folder, and .*file is a file"),
        (["--work", "file"], "argument --work: file must be a folder"),
        (["--dtype", "float23"], "invalid choice: 'float23'"),
        (["--dtype", "device"], "invalid choice: 'device'"),
        (["--longest", "-1"], "must be a whole number of at least 1, got -1"),
        (["--longest", "0"], "must be a whole number of at least 1, got 0"),
    ],
)
def test_arguments_that_would_end_in_a_traceback_are_refused(
    arguments: Any, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    Path("file").write_text("", "utf-8")
    parser = argparse.ArgumentParser()
    arguments.add_places(parser, "x")
    arguments.add_dtype(parser, "of all")
    parser.add_argument("--longest", type=arguments.at_least_one)
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    assert re.search(told, capsys.readouterr().err)
    fine = ["--minutes", "0.5", "--output", "a/b", "--dtype", "float32", "--longest", "7"]
    found = parser.parse_args(fine)
    assert (found.minutes, found.output, found.longest) == (0.5, Path("a/b"), 7)
    assert not Path("a").exists()


DAMAGED = [
    b'{"sets": {"a": ',
    b"[]",
    b"\xff\xfe\x00",
    b"",
    b'{"sets": []}',
    b'{"settings": 3}',
    b'{"sets": {"a": 1}}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_figures_are_named(results: Any, content: bytes) -> None:
    Path("figures.json").write_bytes(content)
    with pytest.raises(SystemExit, match=r"figures.json is damaged: .*; delete it"):
        results.measured_before(Path(), {})


def test_rows_of_something_else_are_named(files: Any) -> None:
    kept = files.kept_rows(Path("out.json"), {"n": 1}, ["prompt"])
    kept.add({"prompt": 0})
    assert files.kept_rows(Path("out.json"), {"n": 1}, ["prompt"]).rows == [{"prompt": 0}]
    with kept.path.open("a", encoding="utf-8") as file:
        file.write('{"foreign": 1}\n')
    for read in (
        lambda: files.kept_rows(Path("out.json"), {"n": 1}, ["prompt"]),
        lambda: files.check_rows_file(kept.path, ["prompt"]),
    ):
        with pytest.raises(SystemExit, match=r"rows.jsonl:2 is no row of .* must have 'prompt'"):
            read()
    kept.path.write_text("3\n", "utf-8")
    with pytest.raises(SystemExit, match=r"rows.jsonl:1 is no row"):
        files.kept_rows(Path("out.json"), {"n": 1}, ["prompt"])


def test_a_cell_does_not_end_at_what_it_says(results: Any) -> None:
    assert results.table(["a|b", "c"], [["1 | 2", "3"]]) == [
        r"| a\|b | c |",
        "| --- | --- |",
        r"| 1 \| 2 | 3 |",
    ]
