"""A recipe whose models come from a Hub and whose draft goes there, on the local Hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from transformers import AutoModelForCausalLM

from hub_client import point_client_at
from recipes import RECIPE, make_recipe_folder
from shelved_drafts import make_facts, shelve
from tiny_models import perturbed
from vtrim_hf import TrimmedDraftForCausalLM, find_drafts
from vtrim_hf.family_index import FAMILY_JSON, parse_family
from vtrim_hf.local_hub import LocalHub
from vtrim_hf.recipe import load_recipe
from vtrim_hf.recipe_publishing import check_publishing
from vtrim_hf.recipe_runner import RunReport, run_recipe
from vtrim_hf.run_folder import replaced_folder

PUBLISH = """\
publish:
  repo_id: user/sql-draft
  license: apache-2.0
"""


def made_then(killed: Callable[..., None]) -> Callable[[Path], Any]:
    """Return a `replaced_folder` that stops instead of writing what was published."""

    def replaced(path: Path) -> Any:
        return killed() if path.name == "publish" else replaced_folder(path)

    return replaced


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

        monkeypatch.setattr("vtrim_hf.hub.prove_it_loads", lambda draft, folder: None)
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


@pytest.mark.newest
def test_a_killed_publication_goes_on_and_other_hubs_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_recipe_folder(tmp_path)
    monkeypatch.setattr("vtrim_hf.hub.prove_it_loads", lambda draft, folder: None)
    path = tmp_path / "recipe.yaml"
    text = RECIPE[: RECIPE.index("measure:")] + "measure: false\n" + PUBLISH

    def write(more: str = "") -> None:
        path.write_text(text + more, encoding="utf-8")

    def run(**options: Any) -> RunReport:
        return run_recipe(load_recipe(path), tmp_path / "run", progress=False, **options)

    def killed(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    write()
    with LocalHub(tmp_path / "hub") as hub, LocalHub(tmp_path / "second") as second:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        api = HfApi(endpoint=hub.endpoint, token=hub.token)
        with monkeypatch.context() as patch:  # after the commit, before it is recorded
            patch.setattr("vtrim_hf.recipe_publishing.replaced_folder", made_then(killed))
            with pytest.raises(KeyboardInterrupt):
                run()
        assert "README.md" in api.list_repo_files("user/sql-draft")
        assert run(dry_run=True).pieces[-1].status == "will run"
        assert statuses(run())["publish"] == "done"
        assert set(statuses(run()).values()) == {"kept"}

        # The same name on another Hub is another repository, by recipe and by environment.
        other = HfApi(endpoint=second.endpoint, token=second.token)
        other.create_repo("user/sql-draft")
        other.upload_file(
            path_or_fileobj=b"mine", path_in_repo="theirs.txt", repo_id="user/sql-draft"
        )
        write(f"  endpoint: {second.endpoint}\n")
        monkeypatch.setenv("HF_TOKEN", second.token)
        for dry in (True, False):
            with pytest.raises(ValueError, match=r"recipe\.yaml:\d+: publish: .*exists already"):
                run(dry_run=dry)
        write()
        point_client_at(monkeypatch, second, tmp_path / "cache2")
        with pytest.raises(ValueError, match="exists already"):
            run()
        assert other.list_repo_files("user/sql-draft").count("README.md") == 0
        other.delete_repo("user/sql-draft")
        report = run()
        assert report.pieces[-1].reason == "changed: endpoint"
        assert statuses(report)["publish"] == "done"
        assert "README.md" in other.list_repo_files("user/sql-draft")


@pytest.mark.newest
def test_drafts_of_several_domains_are_published_with_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets its line once it is published, so the index is right wherever a run is cut."""
    make_recipe_folder(tmp_path)
    path = tmp_path / "recipe.yaml"
    text = RECIPE[: RECIPE.index("measure:")].replace(
        "domains:\n", "drafts: per_domain\ndomains:\n"
    )
    text += "measure: false\n" + PUBLISH.replace("sql-draft", "x-{domain}")
    path.write_text(text, encoding="utf-8")

    def run(**options: Any) -> RunReport:
        return run_recipe(load_recipe(path), tmp_path / "run", progress=False, **options)

    with LocalHub(tmp_path / "hub", xet=False) as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        monkeypatch.setattr("vtrim_hf.hub.prove_it_loads", lambda draft, folder: None)
        monkeypatch.setattr("vtrim_hf.hub_upload._PAUSE", 0.0)
        api = HfApi()
        # The index's name is somebody's: said before any work.
        api.create_repo("user/x-family")
        api.upload_file(
            repo_id="user/x-family", path_in_repo="theirs.txt", path_or_fileobj=b"mine"
        )
        with pytest.raises(ValueError, match=r"publish: user/x-family exists already"):
            run()
        assert not (tmp_path / "run" / "count").exists()
        api.delete_repo("user/x-family")

        # The second draft's line of the index is cut off.
        hub.faults.add("POST", "user/x-b/commit/main", status=503, times=None)
        with pytest.raises(OSError, match="uploading failed"):
            run()
        hub.faults.clear()
        listed = parse_family(hub.read("user/x-family", FAMILY_JSON))["drafts"]
        assert [entry["repo_id"] for entry in listed] == ["user/x-a"]
        report = run()
        assert statuses(report)["publish a"] == "kept"
        assert statuses(report)["publish b"] == "done"
        listed = parse_family(hub.read("user/x-family", FAMILY_JSON))["drafts"]
        assert {entry["domain"]: (entry["repo_id"], entry["commit"]) for entry in listed} == {
            name: (f"user/x-{name}", str(api.model_info(f"user/x-{name}").sha))
            for name in ("a", "b")
        }
        assert "`user/x-b`" in hub.read("user/x-family", "README.md").decode()
        assert report.summary is not None
        assert report.summary["drafts"][0]["published"]["index"] == "user/x-family"
        told = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
        assert "listed in user/x-family." in told
        assert {draft.repo_id for draft in find_drafts(domain="b")} == {"user/x-b"}
        assert set(statuses(run()).values()) == {"kept"}

        # Without an index nothing is made anew but what tells of it.
        path.write_text(text + "  index: false\n", encoding="utf-8")
        assert run(dry_run=True).pieces[-1].reason == "changed: index"


def test_what_an_index_cannot_list_is_told_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_recipe_folder(tmp_path)
    path = tmp_path / "recipe.yaml"
    text = RECIPE[: RECIPE.index("measure:")].replace(
        "domains:\n", "drafts: per_domain\ndomains:\n"
    )
    text = text.replace("target: target", "target: user/target") + "measure: false\n"

    def check(more: str, name: str = "x-{domain}") -> None:
        path.write_text(text + PUBLISH.replace("sql-draft", name) + more, encoding="utf-8")
        check_publishing(load_recipe(path), ["a", "b"], lambda endpoint, name: False)

    with LocalHub(tmp_path / "hub", xet=False) as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        check("  revision: c++\n")  # what git takes can be listed
        shelve("user/old", make_facts(target="team/other", domains={"a": 0.9}))
        entry = {
            "domain": "a",
            "repo_id": "user/old",
            "commit": HfApi().model_info("user/old").sha,
        }
        index = {"format_version": 1, "drafts": [entry]}
        shelve("user/x-family", more={FAMILY_JSON: json.dumps(index).encode()})
        with pytest.raises(ValueError, match=r"publish: the index user/x-family lists user/old"):
            check("  exist_ok: true\n")
        shelve("user/z-a", more={FAMILY_JSON: json.dumps(index).encode()})
        with pytest.raises(ValueError, match=r"publish: the main of user/z-a holds a family's"):
            check("  exist_ok: true\n", "z-{domain}")
