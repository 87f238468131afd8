"""What is found in a folder, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from report_samples import PNG, write_json
from vtrim_hf import report_files
from vtrim_hf.report_files import Found, Kind, look_through, read_json

pytestmark = pytest.mark.newest  # files of our own, no dependency is called


def kinds(folder: Path) -> dict[str, Kind]:
    return {one.name: one.kind for one in look_through(folder)}


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"{}")


def test_each_kind(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "search/search.json",
        "search/search.png",
        "draft/training_report.json",
        "draft/vtrim/coverage.json",
        "draft/config.json",
        "draft/report.md",
        "measure/decode_report.json",
        "measure/decode_report.png",
        "bench/figures.json",
        "bench/call.json",
        "bench/report.md",
        "bench/heat.svg",
        "hub/tokens.json",
        "alone.png",
    )
    assert kinds(tmp_path) == {
        "search/search.json": Kind.search,
        "search/search.png": Kind.drawn,
        "draft/training_report.json": Kind.training,
        "draft/vtrim/coverage.json": Kind.coverage,
        "draft/config.json": Kind.other,
        "draft/report.md": Kind.other,
        "measure/decode_report.json": Kind.measurement,
        "measure/decode_report.png": Kind.drawn,
        "bench/figures.json": Kind.figures,
        "bench/call.json": Kind.figures,
        "bench/report.md": Kind.words,
        "bench/heat.svg": Kind.picture,
        "hub/tokens.json": Kind.other,
        "alone.png": Kind.other,
    }


def test_a_run(tmp_path: Path) -> None:
    names = ("run.json", "report.json", "report.md", "recipe.yaml", "versions.json")
    touch(tmp_path, *names, "login.json", "deeper/report.json")
    assert kinds(tmp_path) == dict.fromkeys(names, Kind.run) | {
        "login.json": Kind.other,
        "deeper/report.json": Kind.other,
    }


def test_hidden_files_are_left_out_but_not_a_training_that_runs(tmp_path: Path) -> None:
    touch(
        tmp_path, ".secret.json", ".git/search.json", ".train.0a1b.training/training_report.json"
    )
    assert kinds(tmp_path) == {".train.0a1b.training/training_report.json": Kind.training}


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "run", tmp_path / "outside"
    touch(outside, "search.json")
    touch(inside, "real/decode_report.json")
    (inside / "search.json").symlink_to(outside / "search.json")
    (inside / "folder").symlink_to(outside, target_is_directory=True)
    (inside / "gone.json").symlink_to(inside / "nowhere")
    (inside / "decode_report.json").symlink_to(inside / "real" / "decode_report.json")
    found = {one.name: one for one in look_through(inside)}
    assert found["search.json"].kind is Kind.other
    assert "outside of the folder" in found["search.json"].why
    assert found["decode_report.json"].kind is Kind.measurement
    assert found["gone.json"].why == "it is no file, or a link to nothing"
    assert "folder/search.json" not in found


def test_ignored_files_are_not_listed(tmp_path: Path) -> None:
    touch(tmp_path, "search.json", "page.html")
    names = [one.name for one in look_through(tmp_path, [tmp_path / "page.html"])]
    assert names == ["search.json"]


def test_a_file_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_files, "_MOST_BYTES", 10)
    (tmp_path / "search.json").write_bytes(PNG)
    (one,) = look_through(tmp_path)
    assert one.kind is Kind.other
    assert "larger than" in one.why


def test_far_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_files, "_MOST_FILES", 2)
    touch(tmp_path, "a", "b")
    assert len(look_through(tmp_path)) == 2
    touch(tmp_path, "c")
    with pytest.raises(ValueError, match=r"holds more than 2 files: name the folder of one run"):
        look_through(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere: name one that"):
        look_through(tmp_path / "nowhere")
    touch(tmp_path, "search.json")
    with pytest.raises(ValueError, match=r"search\.json is a file: name the folder"):
        look_through(tmp_path / "search.json")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\xff"], ids=["cut", "deep", "latin"])
def test_no_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="this is no JSON"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("search.json", "Search"),
        ("search/search.json", "Search"),
        ("domains/sql/search/search.json", "Search: sql"),
        ("wide/search.json", "Search: wide"),
        ("a\u202eb/search.json", "Search: a\\u202eb"),
    ],
)
def test_titles(name: str, title: str) -> None:
    assert Found(Path(name), name, Kind.search).title("Search") == title


def test_json_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": [1]})
    assert read_json(tmp_path / "a.json") == {"a": [1]}
