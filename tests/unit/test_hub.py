"""`publish` on the real client against a local hub: what is checked, what changes, what fails."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, hf_hub_download
from safetensors.torch import save_file

import vtrim_hf.hub
import vtrim_hf.hub_upload
from hub_client import point_client_at
from published_facts import Pair, make_pair
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.coverage_metadata import COVERAGE_JSON, make_metadata, read
from vtrim_hf.hub import PublishError, publish
from vtrim_hf.hub_account import NOT_LISTED
from vtrim_hf.local_hub import Account, LocalHub
from vtrim_hf.local_hub.xet_store import hf_xet_is_installed
from vtrim_hf.model_card import split_card

REPO = "user/sql-draft"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    tokens = {
        "hf_write": Account("user", "write", ("team",)),
        "hf_read": Account("user", "read"),
        "hf_other": Account("other", "write"),
    }
    with LocalHub(tmp_path / "hub", tokens=tokens, xet=False) as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache", token="hf_write")
        yield hub


@pytest.fixture
def pair() -> Pair:
    pair = make_pair()
    pair.draft.coverage_metadata = make_metadata(pair.draft, search=pair.search)
    return pair


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh process takes seconds; tests/integration starts them."""
    monkeypatch.setattr(vtrim_hf.hub, "prove_it_loads", lambda draft, folder: None)
    monkeypatch.setattr(vtrim_hf.hub_upload, "_PAUSE", 0.0)


def send(draft: Any, repo_id: str = REPO, **kwargs: Any) -> Any:
    return publish(draft, repo_id, **{"license": "mit", "progress": False, **kwargs})


def commits(repo_id: str = REPO, revision: str = "main") -> list[str]:
    return [commit.title for commit in HfApi().list_repo_commits(repo_id, revision=revision)]


def changes(hub: LocalHub) -> list[str]:
    """Requests that may have changed something, the check of a card left out."""
    return [
        str(row)
        for row in hub.log
        if row.method not in ("GET", "HEAD") and "validate-yaml" not in row.path
    ]


def card(repo_id: str = REPO, revision: str | None = None) -> str:
    return Path(hf_hub_download(repo_id, "README.md", revision=revision)).read_text()


# What is published


def test_everything_is_there_in_one_commit(hub: LocalHub, pair: Pair) -> None:
    done = send(
        pair.draft, tokenizer=pair.tokenizer, report=pair.report, commit_message="First one"
    )
    there = set(HfApi().list_repo_files(REPO)) - {".gitattributes"}
    assert there == set(done.files)
    assert {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "modeling_trimmed_draft.py",
        "draft_on_hub.py",
        "tokenizer.json",
        "tokenizer_config.json",
        COVERAGE_JSON,
    } <= there
    assert commits() == ["First one", "initial commit"]
    assert done.commit == HfApi().model_info(REPO).sha
    assert (done.repo_id, done.revision) == (REPO, "main")
    assert done.url == f"{hub.endpoint}/{REPO}"
    loaded = TrimmedDraftForCausalLM.from_pretrained(REPO)
    ids = torch.tensor([[1, 2, 40]])
    assert torch.equal(loaded(ids).logits, pair.draft(ids).logits)
    assert loaded.vocabulary == pair.draft.vocabulary
    assert loaded.coverage_metadata["decoding"]["prompts"] == 2
    assert loaded.coverage_metadata["search"] == pair.draft.coverage_metadata["search"]
    assert "decoding" not in pair.draft.coverage_metadata, "the draft in memory is as it was"


def test_a_folder_is_published_as_it_is_but_for_what_is_not_the_drafts(
    hub: LocalHub, pair: Pair, tmp_path: Path
) -> None:
    folder = tmp_path / "saved draft"
    draft: Any = pair.draft
    draft.to(torch.bfloat16).save_pretrained(folder)
    pair.tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text("# Mine\n\nMy words.\n")
    (folder / "optimizer.pt").write_bytes(b"x")
    (folder / ".env").write_text("SECRET=1")
    done = send(folder)
    assert not {"optimizer.pt", ".env"} & set(HfApi().list_repo_files(REPO))
    assert "tokenizer.json" in done.files
    assert "# Mine\n\nMy words.\n" in card()
    assert TrimmedDraftForCausalLM.from_pretrained(REPO).dtype == torch.bfloat16
    assert {p.name for p in folder.iterdir()} >= {"optimizer.pt", ".env"}


def test_no_path_of_this_machine_is_published(
    hub: LocalHub, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """speculators' cards and configs have leaked them."""
    pair.target.save_pretrained(tmp_path / "target")
    pair.tokenizer.save_pretrained(tmp_path / "target")
    draft = TrimmedDraftForCausalLM.from_draft_model(tmp_path / "target", pair.search.vocabulary)
    draft.config.vocabulary_provenance["source"] = str(tmp_path / "data.jsonl")
    draft.config.name_or_path = draft.config.body_config.name_or_path = str(tmp_path / "target")
    draft.save_pretrained(tmp_path / "draft")
    monkeypatch.chdir(tmp_path)
    done = send(
        "draft",
        tokenizer=tmp_path / "target",
        report=pair.report,
        datasets=[str(tmp_path / "data.jsonl"), "me/data"],
    )
    for name in done.files:
        if not name.endswith(".safetensors"):
            text = Path(hf_hub_download(REPO, name)).read_text()
            assert str(tmp_path) not in text, name
            assert "/home/me" not in text, name
    config = json.loads(Path(hf_hub_download(REPO, "config.json")).read_text())
    assert "source" not in config["vocabulary_provenance"]
    assert config["vocabulary_provenance"]["made_by"] == "search_vocabulary"
    told = json.loads(Path(hf_hub_download(REPO, "tokenizer_config.json")).read_text())
    assert not {"is_local", "local_files_only", "name_or_path"} & set(told)
    assert told["eos_token"] == "<|im_end|>"
    front, text = split_card(card())
    assert "base_model" not in front
    assert front["datasets"] == ["me/data"]
    assert "any model of the tokenizer that this repository holds" in text


def test_a_path_that_would_be_published_is_refused(hub: LocalHub, pair: Pair) -> None:
    pair.draft.config.notes = "/home/me/notes"
    with pytest.raises(
        PublishError, match=r"config\.json would publish a path .* '/home/me/notes"
    ):
        send(pair.draft)
    assert not changes(hub)


@pytest.mark.parametrize("first", ["20KB", None])
def test_stale_weights_are_removed_in_the_same_commit(
    hub: LocalHub, pair: Pair, first: str | None
) -> None:
    """Old shards beside a new single file, and the other way round."""
    send(pair.draft, max_shard_size=first)
    api = HfApi()
    for name in ("pytorch_model.bin", "other/model.safetensors", "notes.txt"):
        api.upload_file(repo_id=REPO, path_or_fileobj=b"x", path_in_repo=name)
    before = set(api.list_repo_files(REPO))
    newer = make_pair(seed=1).draft
    second = None if first else "20KB"
    done = send(newer, max_shard_size=second, exist_ok=True, commit_message="Second")
    there = set(api.list_repo_files(REPO))
    assert commits()[0] == "Second"
    assert {*done.removed} == before - there
    assert "pytorch_model.bin" in done.removed
    assert {"other/model.safetensors", "notes.txt"} <= there
    weights = {name for name in there if name.startswith("model.") or "-of-" in name}
    if first:
        assert weights == {"model.safetensors"}
    else:
        assert "model.safetensors" not in weights
        assert "model.safetensors.index.json" in weights
    loaded = TrimmedDraftForCausalLM.from_pretrained(REPO)
    ids = torch.tensor([[1, 2]])
    assert torch.equal(loaded(ids).logits, newer(ids).logits)


def test_renewing_keeps_the_users_text(hub: LocalHub, pair: Pair) -> None:
    send(pair.draft)
    mine = card().replace("# sql-draft\n", "# My title\n\nMy text.\n")
    mine = mine.replace("license: mit", "license: apache-2.0\nthanks: all")
    HfApi().upload_file(repo_id=REPO, path_or_fileobj=mine.encode(), path_in_repo="README.md")
    send(pair.draft, exist_ok=True, report=pair.report, license=None)
    front, body = split_card(card())
    assert "# My title\n\nMy text.\n" in body
    assert "Test CPU" in body
    assert front["license"] == "apache-2.0"
    assert front["thanks"] == "all"


def test_publishing_the_same_again_changes_nothing(hub: LocalHub, pair: Pair) -> None:
    first = send(pair.draft)
    again = send(pair.draft, exist_ok=True)
    assert again.commit == first.commit
    assert len(commits()) == 2
    assert (first.changed, again.changed) == (True, False)
    (step,) = again.steps
    assert step == f"nothing changed: {str(first.commit)[:12]} has all files already"


def test_a_pull_request_without_changes_is_none(hub: LocalHub, pair: Pair) -> None:
    first = send(pair.draft)
    again = send(pair.draft, create_pr=True)
    assert (again.changed, again.commit) == (False, first.commit)
    assert again.steps[-1].endswith("so no pull request was opened")
    assert (again.revision, again.url) == ("main", f"{hub.endpoint}/{REPO}")
    assert not [*HfApi().get_repo_discussions(REPO)]


# Where to


def test_a_branch_is_made_and_main_stays(hub: LocalHub, pair: Pair) -> None:
    first = send(pair.draft)
    done = send(make_pair(seed=1).draft, revision="wide", exist_ok=True)
    assert HfApi().model_info(REPO).sha == first.commit
    assert done.url == f"{hub.endpoint}/{REPO}/tree/wide"
    assert HfApi().model_info(REPO, revision="wide").sha == done.commit
    once_more = send(make_pair(seed=2).draft, revision="wide", exist_ok=True)
    assert len(commits(revision="wide")) == 3, "main's commits are not the branch's"
    ids = torch.tensor([[1, 2]])
    expected = make_pair(seed=2).draft(ids).logits
    for revision in ("wide", once_more.commit):
        loaded = TrimmedDraftForCausalLM.from_pretrained(REPO, revision=revision)
        assert torch.equal(loaded(ids).logits, expected)


def test_a_branch_that_no_catalogue_lists_is_told(hub: LocalHub, pair: Pair) -> None:
    """Main has neither a draft's tags nor an index, so nobody would find it."""
    plan = send(pair.draft, revision="v#1", dry_run=True)
    assert plan.steps[-1] == NOT_LISTED
    assert plan.url == f"{hub.endpoint}/{REPO}/tree/v%231"
    assert NOT_LISTED not in send(pair.draft, dry_run=True).steps
    done = send(pair.draft, revision="v#1")
    assert (done.steps[-1], done.url) == (NOT_LISTED, plan.url)


def test_a_branch_without_room_beside_another_is_told_before(hub: LocalHub, pair: Pair) -> None:
    HfApi().create_repo(REPO)
    HfApi().create_branch(REPO, branch="a/b")
    for name in ("a", "a/b/c", "main/x"):
        with pytest.raises(ValueError, match="has no room beside"):
            send(pair.draft, revision=name, exist_ok=True, dry_run=True)
    send(pair.draft, revision="a/c", exist_ok=True, dry_run=True)


def test_the_odd_card_of_a_source_says_no_licence(
    hub: LocalHub, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = HfApi()
    api.create_repo("user/odd")
    monkeypatch.setattr(HfApi, "_validate_yaml", lambda self, *args, **kwargs: None)
    text = b"---\nlicense: mit\nw: !!bool zz\n---\n"
    api.upload_file(repo_id="user/odd", path_or_fileobj=text, path_in_repo="README.md")
    with pytest.raises(PublishError, match="the licence of the weights is not known"):
        send(pair.draft, license=None, draft_id="user/odd", dry_run=True)


def test_a_new_branch_starts_from_nothing_and_that_is_what_is_checked(
    hub: LocalHub, pair: Pair
) -> None:
    """Main's files, card and licence are another draft's: nothing is made before that is known."""
    send(pair.draft, max_shard_size="20KB")
    other = make_pair(seed=1).draft
    hub.clear_log()
    for dry in (True, False):
        with pytest.raises(PublishError, match=r"wide starts without main's card \(nothing was"):
            send(other, revision="wide", exist_ok=True, license=None, dry_run=dry)
        with pytest.raises(PublishError, match="exists already"):
            send(other, revision="wide", dry_run=dry)
    assert not changes(hub)
    plan = send(other, revision="wide", exist_ok=True, license="apache-2.0", dry_run=True)
    assert plan.removed == ()
    done = send(other, revision="wide", exist_ok=True, license="apache-2.0")
    assert done.removed == ()
    assert set(HfApi().list_repo_files(REPO, revision="wide")) == {*done.files, ".gitattributes"}
    assert split_card(card(revision="wide"))[0]["license"] == "apache-2.0"
    assert split_card(card())[0]["license"] == "mit"


def test_a_branch_that_somebody_else_makes_meanwhile(hub: LocalHub, pair: Pair) -> None:
    send(pair.draft)
    hub.faults.add(
        "POST", "/branch/wide", before=lambda: HfApi().create_branch(REPO, branch="wide")
    )
    with pytest.raises(PublishError, match="somebody else created the branch wide meanwhile"):
        send(pair.draft, revision="wide", exist_ok=True)
    assert len(commits(revision="wide")) == 2, "main's, and none of ours"


def test_results_of_a_branch_link_to_it(hub: LocalHub, pair: Pair) -> None:
    asked = [{"dataset": "me/bench", "task": "sql", "figure": "speedup"}]
    send(pair.draft, report=pair.report, eval_results=asked, revision="v/2")
    path = hf_hub_download(REPO, ".eval_results/vtrim.yaml", revision="v/2")
    assert f"{hub.endpoint}/{REPO}/blob/v%2F2/vtrim/coverage.json" in Path(path).read_text()


def test_a_branch_of_a_new_repository(hub: LocalHub, pair: Pair) -> None:
    done = send(pair.draft, revision="sql", private=True)
    info = HfApi().model_info(REPO, revision="sql")
    assert info.sha == done.commit
    assert info.private
    assert HfApi().list_repo_files(REPO) == [".gitattributes"]


def test_others_propose_a_pull_request(hub: LocalHub, pair: Pair) -> None:
    first = send(pair.draft)
    newer = make_pair(seed=1).draft
    done = send(newer, create_pr=True, token="hf_other")
    assert done.revision == "refs/pr/1"
    assert "/discussions/1" in done.url
    assert HfApi().model_info(REPO).sha == first.commit
    ids = torch.tensor([[1, 2]])
    loaded = TrimmedDraftForCausalLM.from_pretrained(REPO, revision="refs/pr/1")
    assert torch.equal(loaded(ids).logits, newer(ids).logits)


def test_a_tag_comes_last(hub: LocalHub, pair: Pair) -> None:
    done = send(pair.draft, tag="v1")
    assert "/tag/" in hub.log[-1].path
    (tag,) = HfApi().list_repo_refs(REPO).tags
    assert (tag.name, tag.target_commit) == ("v1", done.commit)
    with pytest.raises(PublishError, match=r"has the tag 'v1' already \(nothing was changed"):
        send(pair.draft, tag="v1", exist_ok=True)


def test_an_organization_of_ones_own(hub: LocalHub, pair: Pair) -> None:
    assert send(pair.draft, "team/draft").repo_id == "team/draft"


def test_a_dry_run_changes_nothing_and_says_what_it_would(hub: LocalHub, pair: Pair) -> None:
    done = send(pair.draft, dry_run=True, tag="v1", revision="sql", private=True)
    assert not changes(hub)
    assert done.dry_run
    assert done.commit is None
    assert done.steps == (
        f"create the private repository {REPO}",
        "create the branch sql",
        f"commit {len(done.files)} files to sql",
        "tag that commit v1",
        NOT_LISTED,
    )
    assert not HfApi().repo_exists(REPO)
    real = send(pair.draft)
    assert real.files == done.files
    hub.log.clear()
    pull = send(pair.draft, dry_run=True, create_pr=True, max_shard_size="20KB")
    assert pull.steps == (f"propose {len(pull.files)} files to main, removing model.safetensors",)
    assert not changes(hub)


def test_push_to_hub_takes_what_transformers_takes(
    hub: LocalHub, pair: Pair, tmp_path: Path
) -> None:
    done = pair.draft.push_to_hub(
        REPO,
        commit_message="Pushed",
        commit_description="More words",
        private=True,
        token="hf_write",
        revision="main",
        create_pr=False,
        max_shard_size="20KB",
        tags="mine",
        license="mit",
        progress=False,
    )
    assert commits()[0] == "Pushed"
    assert "model.safetensors.index.json" in done.files
    assert "mine" in split_card(card())[0]["tags"]
    pair.draft.save_pretrained(
        tmp_path / "saved",
        push_to_hub=True,
        repo_id=REPO,
        revision="other",
        license="mit",
        commit_description="x",
        exist_ok=True,
        progress=False,
    )
    assert (tmp_path / "saved" / "model.safetensors").is_file()
    assert (tmp_path / "saved" / COVERAGE_JSON).is_file()
    assert "model.safetensors" in HfApi().list_repo_files(REPO, revision="other")


@pytest.mark.parametrize("way", ["lfs", "xet", "regular"])
def test_the_weights_travel_in_every_way(
    way: str, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By LFS, through a Xet store, and within the commit, as clients with Xet do without one."""
    if way == "xet" and not hf_xet_is_installed():
        pytest.skip("hf_xet is not installed")
    with LocalHub(tmp_path / "hub", xet=way != "lfs", regular_only=way == "regular") as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        send(pair.draft, max_shard_size="20KB")
        assert bool(hub.log.matching("PUT")) == (way == "lfs")
        assert bool(hub.log.matching("GET", "xet-write-token")) == (way == "xet")
        send(make_pair(seed=1).draft, exist_ok=True, commit_message="Second")
        assert commits() == ["Second", "Publish a draft of 24 kept ids", "initial commit"]
        weights = [name for name in HfApi().list_repo_files(REPO) if name.startswith("model.")]
        assert weights == ["model.safetensors"]
        ids = torch.tensor([[1, 2]])
        loaded = TrimmedDraftForCausalLM.from_pretrained(REPO)
        assert torch.equal(loaded(ids).logits, make_pair(seed=1).draft(ids).logits)


# What is refused before anything is changed


@pytest.mark.parametrize(
    "name", ["draft", "", "user/", "/draft", "a/b/c", "user/a b", "user/a--b", "user/x.git", None]
)
def test_wrong_names_are_refused_before_any_request(hub: LocalHub, pair: Pair, name: Any) -> None:
    with pytest.raises(ValueError, match="NAMESPACE/NAME"):
        send(pair.draft, name)
    assert not [*hub.log]


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"create_pr": True, "revision": "x"}, "leave out revision= and tag="),
        ({"create_pr": True, "tag": "x"}, "leave out revision= and tag="),
        ({"revision": "refs/pr/1"}, "must be the name of a branch"),
        ({"revision": "0" * 40}, "must be the name of a branch"),
        ({"revision": "bad branch"}, "revision must be a name that git takes .* 'bad branch'"),
        ({"tag": "v 1"}, "tag must be a name that git takes for a tag: .* 'v 1'"),
        ({"tag": "refs/tags/v1"}, "tag must be the name of a tag"),
        ({"tag": "sql", "revision": "sql"}, "called as the branch"),
        ({"tag": "main"}, "called as the branch"),
        ({"license": "foo"}, "the Hub knows no licence 'foo'"),
        ({"license": "other"}, "needs license_name="),
    ],
)
def test_arguments_that_contradict_are_refused(
    hub: LocalHub, pair: Pair, kwargs: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        send(pair.draft, **kwargs)
    assert not [*hub.log], "before any request"


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"token": 5}, "token must be a text, .* got a int"),
        ({"token": b"hf_secret"}, "token must be a text, .* got a bytes"),
        ({"token": ""}, "token must be .* is empty or holds"),
        ({"token": "hf_secret\n"}, "token must be .* strip it"),
        ({"endpoint": "localhost"}, "endpoint must begin with http"),
        ({"endpoint": 5}, "endpoint must be the URL of a Hub, got 5"),
        ({"private": "yes"}, "private must be True or False, or None, got 'yes'"),
        ({"exist_ok": 1}, "exist_ok must be True or False, got 1"),
        ({"create_pr": None}, "create_pr must be True or False, got None"),
        ({"dry_run": "no"}, "dry_run must be True or False"),
        ({"language": 5}, "language must be a text or a list of texts, got 5"),
        ({"tags": {"a": 1}}, "tags must be a text or a list of texts"),
        ({"datasets": [b"me/x"]}, "datasets must be a text or a list of texts"),
        ({"target_id": 5}, "target_id must be a text, got 5"),
        ({"commit_message": " "}, "commit_message must be a text"),
        ({"target_id": "smollm2"}, "target_id must be the target's id on the Hub, .*'smollm2'"),
        ({"target_id": "x/y/z"}, "target_id must be the target's id on the Hub"),
        ({"target_id": "/home/me/target"}, "target_id must be the target's id on the Hub"),
        ({"target_id": "a b/c"}, "the target must be named by its id on the Hub"),
        ({"draft_id": "small"}, "draft_id must be the source's id on the Hub"),
        ({"max_shard_size": 0}, "max_shard_size must be a number of bytes"),
        ({"max_shard_size": -1}, "max_shard_size must be a number of bytes"),
        ({"max_shard_size": True}, "max_shard_size must be a number of bytes"),
        ({"max_shard_size": "-1GB"}, "max_shard_size must be .* got '-1GB'"),
        ({"max_shard_size": "large"}, "max_shard_size must be .* got 'large'"),
        ({"search": "search.json"}, "search must be what search_vocabulary or SearchResult.load"),
        ({"report": {}}, "report must be what measure_decoding"),
        ({"counts": {}}, "counts must be what TokenCounts"),
        ({"tokenizer": 5}, "tokenizer must be the target's"),
    ],
)
def test_arguments_of_another_kind_are_refused_before_any_request(
    hub: LocalHub, pair: Pair, kwargs: dict[str, Any], named: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=named) as caught:
        send(pair.draft, **kwargs)
    assert "secret" not in str(caught.value), "a token is nobody's to read"
    assert not [*hub.log]


@pytest.mark.parametrize("draft", [None, 5, {"a": 1}, "no/such/folder"])
def test_other_things_are_no_draft(hub: LocalHub, draft: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"cut one with|save one with"):
        send(draft)
    assert not [*hub.log]


def test_one_data_set_may_be_a_text(hub: LocalHub, pair: Pair) -> None:
    send(pair.draft, datasets="me/data")
    assert split_card(card())[0]["datasets"] == ["me/data"]


def test_a_tag_is_no_branch(hub: LocalHub, pair: Pair) -> None:
    send(pair.draft, tag="v1")
    with pytest.raises(ValueError, match="'v1' is a tag of"):
        send(pair.draft, revision="v1", exist_ok=True)


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        pytest.param({"token": False}, "nobody is logged in to http", id="no token"),
        pytest.param(
            {"token": "hf_wrong"}, "the token passed failed: the token is not valid", id="bad"
        ),
        pytest.param({"token": "hf_read"}, "of user may only read", id="read only"),
        pytest.param({"token": "hf_other"}, "other may not write to .*'user'", id="foreign"),
        pytest.param({"create_pr": True}, "leave out create_pr=True to create", id="no repo"),
        pytest.param({"license": None}, "licence of the weights is not known", id="no licence"),
        pytest.param({"language": "klingonese"}, "the Hub refuses the card", id="card refused"),
    ],
)
def test_what_cannot_be_published_changes_nothing(
    hub: LocalHub, pair: Pair, kwargs: dict[str, Any], named: str
) -> None:
    if "language" in kwargs:
        error = {"errors": [{"message": "no such language"}], "warnings": []}
        hub.faults.add("POST", "validate-yaml", status=400, body=error)
    with pytest.raises(PublishError, match=named) as caught:
        send(pair.draft, **kwargs)
    assert "nothing was changed on the Hub" in str(caught.value)
    assert caught.value.done == ()
    assert caught.value.remedy
    assert not changes(hub)


def test_without_a_saved_token_nobody_is_logged_in(
    hub: LocalHub, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PublishError, match=r"hf auth login"):
        send(pair.draft)


def test_a_repository_that_exists_is_not_changed_unasked(hub: LocalHub, pair: Pair) -> None:
    first = send(pair.draft)
    hub.log.clear()
    with pytest.raises(PublishError, match=r"exists already .* pass exist_ok=True"):
        send(make_pair(seed=1).draft)
    with pytest.raises(PublishError, match="is public, and private=True holds for a new"):
        send(make_pair(seed=1).draft, private=True, exist_ok=True)
    assert not changes(hub)
    assert HfApi().model_info(REPO).sha == first.commit


def test_an_invalid_generation_config_is_named(hub: LocalHub, pair: Pair) -> None:
    """transformers#29988: it would fail after the repository was created."""
    pair.draft.generation_config.temperature = 0.5
    pair.draft.generation_config.do_sample = False
    with pytest.raises(PublishError, match=r"generation config is not valid: .*temperature"):
        send(pair.draft)
    assert not changes(hub)


def test_a_draft_that_does_not_come_back_is_not_published(
    hub: LocalHub, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(draft: Any, folder: Path) -> None:
        raise ValueError("it says something else")

    monkeypatch.setattr(vtrim_hf.hub, "prove_it_loads", fail)
    with pytest.raises(PublishError, match=r"does not come back .* it says something else"):
        send(pair.draft)
    assert not changes(hub)


def test_a_broken_card_is_not_overwritten(hub: LocalHub, pair: Pair) -> None:
    send(pair.draft)
    broken = card().replace("<!-- vtrim:end use -->\n", "")
    HfApi().upload_file(repo_id=REPO, path_or_fileobj=broken.encode(), path_in_repo="README.md")
    with pytest.raises(PublishError, match=r"the card cannot be written: .* do not pair up"):
        send(pair.draft, exist_ok=True)
    assert card() == broken


def test_other_things_than_drafts_are_refused(hub: LocalHub, pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="publish takes a TrimmedDraftForCausalLM or its folder"):
        send(pair.target)
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        send(tmp_path)
    other = make_pair().tokenizer
    other.add_tokens(["<other>"])
    with pytest.raises(ValueError, match="give the target's own"):
        send(pair.draft, tokenizer=other)
    with pytest.raises(TypeError, match="license must be an identifier"):
        send(pair.draft, license=3)
    with pytest.raises(PublishError, match="facts do not fit: the decode report is about"):
        send(pair.draft, report=make_report_of_another())
    assert not changes(hub)


def make_report_of_another() -> Any:
    from published_facts import make_report

    return make_report(7)


def test_the_licence_of_the_source_is_taken_from_its_card(hub: LocalHub, pair: Pair) -> None:
    api = HfApi()
    api.create_repo("user/small")
    with pytest.raises(PublishError, match="licence"):
        send(pair.draft, license=None, draft_id="user/small")
    text = b"---\nlicense: other\nlicense_name: mine\nlicense_link: LICENSE\n---\n# Small\n"
    api.upload_file(repo_id="user/small", path_or_fileobj=text, path_in_repo="README.md")
    send(pair.draft, license=None, draft_id="user/small")
    front, _ = split_card(card())
    assert (front["license"], front["license_name"]) == ("other", "mine")
    assert front["base_model"] == "user/small"
    # Facts of a new source do not outweigh what the published card says.
    send(pair.draft, license=None, exist_ok=True, draft_id="user/none")
    assert split_card(card())[0]["license"] == "other"


# When the network or the Hub fails


def test_a_commit_that_fails_once_is_tried_again(hub: LocalHub, pair: Pair) -> None:
    fault = hub.faults.add("POST", "/commit/", status=503)
    done = send(pair.draft)
    assert fault.met == 1
    assert len(commits()) == 2
    assert done.commit == HfApi().model_info(REPO).sha


def test_a_commit_whose_answer_is_lost_is_made_once(hub: LocalHub, pair: Pair) -> None:
    hub.faults.add("POST", "/commit/", status=502, after_work=True)
    done = send(pair.draft)
    assert len(commits()) == 2
    assert done.commit == HfApi().model_info(REPO).sha


def test_a_commit_that_fails_twice_says_what_was_done(hub: LocalHub, pair: Pair) -> None:
    hub.faults.add("POST", "/commit/", status=503, times=None)
    with pytest.raises(PublishError, match="answers 503") as caught:
        send(pair.draft, tag="v1")
    error = caught.value
    assert error.done == (f"{REPO} was created",)
    assert "run it again" in error.remedy
    assert getattr(error.__cause__, "response", None).status_code == 503
    assert HfApi().list_repo_files(REPO) == [".gitattributes"], "main is as it was"
    hub.faults.clear()
    hub.log.clear()
    send(pair.draft, tag="v1")
    assert not hub.log.matching("PUT"), "the weights were there already"
    assert len(commits()) == 2


def test_the_first_error_is_the_one_that_is_told(hub: LocalHub, pair: Pair) -> None:
    hub.faults.add("POST", "/commit/", status=503)
    hub.faults.add("POST", "/commit/", status=500)
    with pytest.raises(PublishError, match="answers 503"):
        send(pair.draft)


def test_an_upload_that_was_cut_is_resumed(hub: LocalHub, pair: Pair) -> None:
    hub.faults.add("PUT", "", status=403, times=None)  # at 5xx the client waits long
    with pytest.raises(PublishError, match="uploading failed") as caught:
        send(pair.draft)
    assert caught.value.done == (f"{REPO} was created",)
    assert not hub.log.matching("POST", "/commit/")
    hub.faults.clear()
    send(pair.draft)
    assert len(commits()) == 2


def test_somebody_who_publishes_meanwhile_is_not_overwritten(hub: LocalHub, pair: Pair) -> None:
    send(pair.draft)

    def meanwhile() -> None:
        api = HfApi(token="hf_write")
        api.upload_file(repo_id=REPO, path_or_fileobj=b"x", path_in_repo="theirs.txt")

    hub.faults.add("POST", "/preupload/", before=meanwhile)
    with pytest.raises(PublishError, match="somebody else published meanwhile"):
        send(make_pair(seed=1).draft, exist_ok=True)
    assert len(commits()) == 3


def test_a_tag_that_fails_tells_that_the_draft_is_there(hub: LocalHub, pair: Pair) -> None:
    hub.faults.add("POST", "/tag/", status=403)
    with pytest.raises(PublishError, match="tagging") as caught:
        send(pair.draft, tag="v1")
    commit = str(HfApi().model_info(REPO).sha)
    assert caught.value.done[-1] == f"all files were committed as {commit[:12]}"
    assert "run it again with exist_ok=True" in caught.value.remedy
    again = send(pair.draft, tag="v1", exist_ok=True)
    assert again.commit == commit, "the remedy is true: only the tag was missing"
    (tag,) = HfApi().list_repo_refs(REPO).tags
    assert (tag.name, tag.target_commit) == ("v1", commit)


def test_the_reason_of_the_hub_is_told(hub: LocalHub, pair: Pair) -> None:
    """Not the number of the request, which is all that the client's first line has."""
    refused = {"error": "tags are closed on Sundays"}
    told = {"X-Error-Message": refused["error"]}
    hub.faults.add("POST", "/tag/", status=400, body=refused, headers=told)
    with pytest.raises(PublishError, match=r"answers 400: tags are closed on Sundays \("):
        send(pair.draft, tag="v1")


@pytest.mark.parametrize("name", ["v@1", "é", "v1.0+cpu", "a/b", "v#1%20"])
def test_names_that_git_takes_are_taken(hub: LocalHub, pair: Pair, name: str) -> None:
    done = send(pair.draft, tag=name)
    (tag,) = HfApi().list_repo_refs(REPO).tags
    assert (tag.name, tag.target_commit) == (name, done.commit)


def test_creating_what_somebody_else_just_created(hub: LocalHub, pair: Pair) -> None:
    code = {"X-Error-Code": "RepoNotFound"}
    hub.faults.add("GET", f"/api/models/{REPO}$", status=404, headers=code)
    HfApi(token="hf_write").create_repo(REPO)
    with pytest.raises(PublishError, match="it exists already"):
        send(pair.draft)


def test_too_many_requests(hub: LocalHub, pair: Pair) -> None:
    hub.faults.add("POST", "/repos/create", status=429, headers={"Retry-After": "55"})
    with pytest.raises(PublishError, match="too many requests"):
        send(pair.draft)


def test_a_hub_that_is_not_there(hub: LocalHub, pair: Pair) -> None:
    hub.stop()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(PublishError, match="cannot be reached"):
            send(pair.draft)


def test_offline_is_said_at_once(
    hub: LocalHub, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PublishError, match="HF_HUB_OFFLINE is set"):
        send(pair.draft)


# What comes back


def test_facts_are_of_the_commit_that_is_asked_for(
    hub: LocalHub, pair: Pair, tmp_path: Path
) -> None:
    first = send(pair.draft, tag="v1")
    send(pair.draft, exist_ok=True, report=pair.report)
    for revision in ("v1", first.commit):
        old = TrimmedDraftForCausalLM.from_pretrained(REPO, revision=revision)
        assert "decoding" not in old.coverage_metadata
    new = TrimmedDraftForCausalLM.from_pretrained(REPO)
    assert "decoding" in new.coverage_metadata
    new.save_pretrained(tmp_path / "again")
    assert read(tmp_path / "again") == new.coverage_metadata


def test_a_repository_without_facts_loads(hub: LocalHub, pair: Pair, tmp_path: Path) -> None:
    pair.draft.coverage_metadata = None
    pair.draft.save_pretrained(tmp_path / "plain")
    api = HfApi()
    api.create_repo(REPO)
    api.upload_folder(repo_id=REPO, folder_path=tmp_path / "plain")
    loaded = TrimmedDraftForCausalLM.from_pretrained(REPO)
    assert loaded.coverage_metadata is None


def test_hostile_facts_on_the_hub_do_not_stop_a_sound_draft(
    hub: LocalHub, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    send(pair.draft)
    api = HfApi()
    for content in (b"x" * (2 << 20), b"[]", b'{"draft": []}'):
        api.upload_file(repo_id=REPO, path_or_fileobj=content, path_in_repo=COVERAGE_JSON)
        loaded = TrimmedDraftForCausalLM.from_pretrained(REPO)
        assert loaded.coverage_metadata is None
        assert "loaded without its facts" in caplog.text
        caplog.clear()


def test_weights_of_another_draft_on_the_hub_are_refused(
    hub: LocalHub, pair: Pair, tmp_path: Path
) -> None:
    send(pair.draft)
    state = {n: t.contiguous() for n, t in pair.draft.state_dict().items()}
    state["kept_ids"] = torch.arange(24)
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    HfApi().upload_file(
        repo_id=REPO,
        path_or_fileobj=tmp_path / "model.safetensors",
        path_in_repo="model.safetensors",
    )
    with pytest.raises(ValueError, match="different vocabularies"):
        TrimmedDraftForCausalLM.from_pretrained(REPO)
