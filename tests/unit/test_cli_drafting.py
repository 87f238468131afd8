"""`vtrim measure` of a published draft: a branch of its repository, an early end of one's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from typer.testing import CliRunner

from hub_client import point_client_at
from published_facts import make_pair
from vtrim_hf.cli import app
from vtrim_hf.local_hub import LocalHub

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A target, a prompt, and a draft that lies on the branch `sql` only."""
    pair = make_pair()
    pair.target.save_pretrained(tmp_path / "target")
    pair.tokenizer.save_pretrained(tmp_path / "target")
    pair.draft.save_pretrained(tmp_path / "draft")
    (tmp_path / "prompts.jsonl").write_text('{"messages": [{"role": "user", "content": "fox"}]}\n')
    with LocalHub(tmp_path / "hub", xet=False) as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        HfApi().create_repo("user/x")
        HfApi().create_branch("user/x", branch="sql")
        HfApi().upload_folder(repo_id="user/x", revision="sql", folder_path=tmp_path / "draft")
        yield tmp_path


def measure(place: Path, *options: object) -> Any:
    arguments = ("measure", place / "target", "user/x", place / "prompts.jsonl", *options)
    more = ("--limit", 1, "--max-new-tokens", 4, "--json", "--quiet")
    return CliRunner().invoke(app, [str(one) for one in (*arguments, *more)])


def test_a_draft_of_a_branch_with_a_threshold(place: Path) -> None:
    done = measure(place, "--revision", "sql", "--threshold", 0)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)["entries"]["draft"]["facts"]
    assert facts["assistant_confidence_threshold"] == 0
    assert facts["draft_vocab_size"] == make_pair().search.k


def test_a_branch_that_is_not_there_is_told_before_the_target_is_loaded(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtrim_hf.named_models.load_model", None)
    for revision in ("gone", "main"):
        done = measure(place, "--revision", revision)
        assert done.exit_code == 2
        assert "cannot load the config of user/x" in " ".join(done.stderr.split())


def test_help_names_both_options_in_an_example() -> None:
    shown = " ".join(CliRunner().invoke(app, ["measure", "--help"]).output.split())
    assert "--revision sql --threshold 0" in shown
