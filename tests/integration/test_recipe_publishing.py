"""A recipe whose models come from a Hub and whose draft goes there, on the local Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from transformers import AutoModelForCausalLM

from hub_client import point_client_at
from recipes import RECIPE, make_recipe_folder
from tiny_models import perturbed
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.local_hub import LocalHub
from vtrim_hf.recipe import load_recipe
from vtrim_hf.recipe_runner import RunReport, run_recipe

PUBLISH = """\
publish:
  repo_id: user/sql-draft
  license: apache-2.0
"""


def statuses(report: RunReport) -> dict[str, str]:
    return {piece.piece: piece.status for piece in report.pieces}


def test_a_recipe_on_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_recipe_folder(tmp_path)
    with LocalHub(tmp_path / "hub") as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        api = HfApi(endpoint=hub.endpoint, token=hub.token)
        for name in ("target", "small"):
            api.create_repo(f"user/{name}")
            api.upload_folder(repo_id=f"user/{name}", folder_path=tmp_path / name)
        text = RECIPE.replace("target: target", "target: user/target")
        text = text.replace("model: small", "model: user/small") + PUBLISH
        path = tmp_path / "hub.yaml"
        path.write_text(text, encoding="utf-8")

        def run(**options: Any) -> RunReport:
            return run_recipe(load_recipe(path), tmp_path / "run", progress=False, **options)

        # Nobody is logged in: said before any work.
        with monkeypatch.context() as without:
            without.delenv("HF_TOKEN")
            with pytest.raises(ValueError, match=r"hub\.yaml:\d+: publish: nobody is logged in"):
                run()
        assert not (tmp_path / "run" / "count").exists()

        assert set(statuses(run()).values()) == {"done"}
        assert "README.md" in api.list_repo_files("user/sql-draft")
        draft = TrimmedDraftForCausalLM.from_pretrained("user/sql-draft")
        facts = draft.coverage_metadata
        assert facts["target"]["id"] == "user/target"
        assert facts["draft"]["id"] == "user/small"
        assert facts["decoding"]
        assert set(statuses(run()).values()) == {"kept"}

        # A new commit of the target, with other weights: its answers and all after it are old.
        model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "target")
        perturbed(model, 0.2).save_pretrained(tmp_path / "target")
        api.upload_folder(repo_id="user/target", folder_path=tmp_path / "target")
        foreseen = run(dry_run=True)
        assert foreseen.pieces[0].reason == "changed: target"
        assert set(statuses(run()).values()) == {"done"}

        # A repository that somebody else filled is not written to.
        path.write_text(text.replace("user/sql-draft", "user/small"), encoding="utf-8")
        with pytest.raises(ValueError, match="exists already"):
            run()
