"""A recipe that trains its draft, from models on a Hub to a draft on it with its card."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import HfApi

from hub_client import point_client_at
from recipes import TRAINED, make_recipe_folder
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.local_hub import LocalHub
from vtrim_hf.recipe import load_recipe
from vtrim_hf.recipe_runner import RunReport, run_recipe

pytestmark = pytest.mark.newest  # test_training.py and test_publishing.py, one after the other


def test_a_trained_draft_goes_to_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_recipe_folder(tmp_path)
    monkeypatch.setattr("vtrim_hf.recipe_work.Workshop.plot", lambda *_: None)
    with LocalHub(tmp_path / "hub") as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        api = HfApi(endpoint=hub.endpoint, token=hub.token)
        api.create_repo("user/target")
        api.upload_folder(repo_id="user/target", folder_path=tmp_path / "target")
        text = TRAINED.replace("target: target", "target: user/target")
        text = text.replace("epochs: 3", "epochs: 1")
        text += "publish:\n  repo_id: user/sql-draft\n  license: apache-2.0\n"
        path = tmp_path / "hub.yaml"
        path.write_text(text, encoding="utf-8")

        def run() -> RunReport:
            return run_recipe(load_recipe(path), tmp_path / "run", progress=False)

        pieces = run().pieces
        assert [piece.status for piece in pieces] == ["done"] * 6
        assert [piece.step for piece in pieces][3:] == ["train", "measure", "publish"]
        assert {piece.status for piece in run().pieces} == {"kept"}
        files = api.list_repo_files("user/sql-draft")
        assert "eagle_body.py" in files
        card = Path(api.hf_hub_download("user/sql-draft", "README.md")).read_text("utf-8")
        assert "license: apache-2.0" in card
        assert "base_model: user/target" in card.replace("\n- ", " ")
        assert "EAGLE-3" in card
        draft = TrimmedDraftForCausalLM.from_pretrained("user/sql-draft")
        assert draft.config.target_name == "user/target"
        assert draft.coverage_metadata["draft"]["body"] == "eagle3"
        assert draft.coverage_metadata["target"]["id"] == "user/target"
        assert draft.coverage_metadata["decoding"]
