"""What benchmarks share: where their data lie."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("bench_results")


def test_data_of_the_hub_lie_in_a_folder_that_tells_their_origin(
    results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(repo_id: str, *, repo_type: str, local_dir: Path) -> None:
        assert (repo_id, repo_type) == ("user/domains", "dataset")
        (local_dir / "ner").mkdir(parents=True)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    found = results.data_folder("user/domains")
    assert found == Path("runs/data/user--domains")
    assert (found / "ner").is_dir()


def test_a_folder_is_taken_before_the_hub(results: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be downloaded")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    Path("user/domains").mkdir(parents=True)
    for place in ("user/domains", "domains", "/no/such/folder", "./user/nothing"):
        assert results.data_folder(place) == Path(place)


def test_data_that_are_nowhere_are_refused_with_the_reason(
    results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: object, **__: object) -> None:
        raise OSError("no such data set")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(argparse.ArgumentTypeError, match=r"Hub id of a data set: .*no such data"):
        results.data_folder("user/domians")
