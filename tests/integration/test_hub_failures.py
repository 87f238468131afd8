"""What goes wrong between a draft and a Hub: on the real client, with Xet and without.

A publisher learns what happened, what was already done, and what to do; a reader gets a sound
draft or a clear refusal, and nothing that a repository holds is run.
"""

from __future__ import annotations

import json
import pickle
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, constants, snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import vtrim_hf.hub
import vtrim_hf.hub_upload
from hub_client import point_client_at
from published_facts import Pair, make_pair
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.coverage_metadata import COVERAGE_JSON, make_metadata
from vtrim_hf.hub import PublishError, publish
from vtrim_hf.hub_account import NOT_LISTED
from vtrim_hf.local_hub import Account, LocalHub
from vtrim_hf.local_hub.xet_store import hf_xet_is_installed

# What the client's own HTTP library says of the client; each test begins with fresh filters.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

REPO = "user/sql-draft"
TOKENS = {
    "hf_write": Account("user", "write", ("team",)),
    "hf_read": Account("user", "read"),
    "hf_other": Account("other", "write"),
}
IDS = torch.tensor([[1, 40, 50]])


@pytest.fixture(params=[False, True], ids=["lfs", "xet"])
def hub(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalHub]:
    if request.param and not hf_xet_is_installed():
        pytest.skip("hf_xet is not installed")
    with LocalHub(tmp_path / "hub", tokens=TOKENS, xet=request.param) as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache", token="hf_write")
        yield hub


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh process and the client's patience take seconds."""
    monkeypatch.setattr(vtrim_hf.hub, "prove_it_loads", lambda draft, folder: None)
    monkeypatch.setattr(vtrim_hf.hub_upload, "_PAUSE", 0.0)
    no_sleep = types.SimpleNamespace(time=time.time, sleep=lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.utils._http.time", no_sleep)


@pytest.fixture
def pair() -> Pair:
    pair = make_pair()
    pair.draft.coverage_metadata = make_metadata(pair.draft, search=pair.search)
    return pair


def send(draft: Any, repo_id: str = REPO, **kwargs: Any) -> Any:
    return publish(draft, repo_id, **{"license": "mit", "progress": False, **kwargs})


def load(cache: Path | None = None, **kwargs: Any) -> Any:
    return TrimmedDraftForCausalLM.from_pretrained(REPO, cache_dir=cache, **kwargs)


def says(draft: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = draft(IDS).logits
    return logits


def commits(revision: str = "main") -> list[str]:
    return [commit.title for commit in HfApi().list_repo_commits(REPO, revision=revision)]


def put(name: str, content: bytes | Path) -> None:
    HfApi().upload_file(repo_id=REPO, path_or_fileobj=content, path_in_repo=name)


# Who publishes, and where to


@pytest.mark.parametrize(
    ("token", "said", "remedy"),
    [
        pytest.param(False, "nobody is logged in to http", "hf auth login", id="no token"),
        pytest.param("hf_wrong", r"token is not valid there \(401", "hf auth login", id="bad"),
        pytest.param("hf_read", "of user may only read", "role write", id="read only"),
        pytest.param("hf_other", "may not write to .*'user'", "publish under other", id="foreign"),
    ],
)
def test_who_may_not_publish_changes_nothing(
    hub: LocalHub, pair: Pair, token: Any, said: str, remedy: str
) -> None:
    with pytest.raises(PublishError, match=said) as caught:
        send(pair.draft, token=token)
    assert remedy in caught.value.remedy
    assert caught.value.done == ()
    assert not HfApi().repo_exists(REPO)


def test_what_is_there_decides(hub: LocalHub, pair: Pair) -> None:
    """Exists, missing, hidden, other visibility, a revision that is a tag."""
    with pytest.raises(PublishError, match=f"{REPO} does not exist"):
        send(pair.draft, create_pr=True)
    first = send(pair.draft, private=True, tag="v1")
    other = make_pair(seed=1).draft
    with pytest.raises(PublishError, match=r"exists already .*exist_ok=True"):
        send(other)
    with pytest.raises(PublishError, match="or this token may not see it"):
        send(other, create_pr=True, token="hf_other")
    with pytest.raises(PublishError, match="is private, and private=False holds for a new"):
        send(other, exist_ok=True, private=False)
    with pytest.raises(ValueError, match="'v1' is a tag of"):
        send(other, exist_ok=True, revision="v1")
    assert HfApi().model_info(REPO).sha == first.commit
    assert commits() == ["Publish a draft of 24 kept ids", "initial commit"]


# The network and the Hub


def test_nothing_answers(hub: LocalHub, pair: Pair) -> None:
    hub.stop()
    with pytest.raises(PublishError, match=r"cannot be reached .*nothing was changed"):
        send(pair.draft)


def test_it_stops_answering_before_the_commit(hub: LocalHub, pair: Pair) -> None:
    """What was done is told, what cannot be found out as well; the same call goes on."""
    hub.faults.add("POST", "/commit/", drop_upload_after=1)
    hub.faults.add("*", f"/api/models/{REPO}", skip=4, times=None, drop_upload_after=0)
    with pytest.raises(PublishError, match="cannot be reached") as caught:
        send(pair.draft)
    assert caught.value.done == (
        f"{REPO} was created",
        "it is not known whether all files were committed",
    )
    assert "nothing was changed" not in str(caught.value)
    hub.faults.clear()
    assert send(pair.draft).changed
    assert torch.equal(says(load()), says(pair.draft))


@pytest.mark.parametrize(("step", "done"), [("/repos/create", 0), ("/commit/", 1)])
def test_too_many_requests(hub: LocalHub, pair: Pair, step: str, done: int) -> None:
    limit = {"RateLimit": '"api";r=0;t=55', "RateLimit-Policy": '"fixed window";"api";q=9;w=300'}
    fault = hub.faults.add("POST", step, status=429, headers=limit)
    with pytest.raises(PublishError, match="too many requests") as caught:
        send(pair.draft)
    assert "wait 55 seconds, then run it again" in caught.value.remedy
    assert (len(caught.value.done), fault.met) == (done, 1)
    assert send(pair.draft).changed


LOST: dict[str, dict[str, Any]] = {
    "refused once": {"status": 503},
    "answer lost": {"status": 502, "after_work": True},
    "answer cut": {"drop_after": 0},
}
lost_or_refused = pytest.mark.parametrize("fault", LOST.values(), ids=LOST)


@lost_or_refused
@pytest.mark.parametrize("step", ["/repos/create", "/branch/", "/commit/", "/tag/"])
def test_each_step_is_done_once(
    hub: LocalHub, pair: Pair, step: str, fault: dict[str, Any]
) -> None:
    met = hub.faults.add("POST", step, **fault)
    done = send(pair.draft, revision="sql", tag="v1", private=True)
    assert met.met == 1
    assert done.changed
    info = HfApi().model_info(REPO, revision="sql")
    assert (info.sha, info.private) == (done.commit, True)
    assert commits("sql") == ["Publish a draft of 24 kept ids", "initial commit"]
    (tag,) = HfApi().list_repo_refs(REPO).tags
    assert tag.target_commit == done.commit
    assert done.steps == (
        f"{REPO} was created",
        "the branch sql was created",
        f"all files were committed as {done.commit[:12]}",
        "the commit was tagged v1",
        NOT_LISTED,
    )


@lost_or_refused
def test_stale_shards_go_once(hub: LocalHub, pair: Pair, fault: dict[str, Any]) -> None:
    """A second try would ask to remove what is gone, from a commit that is not the newest."""
    send(pair.draft, max_shard_size="20KB")
    hub.faults.add("POST", "/commit/", **fault)
    newer = make_pair(seed=1).draft
    done = send(newer, exist_ok=True, commit_message="Second")
    assert len(done.removed) > 2
    assert commits() == ["Second", "Publish a draft of 24 kept ids", "initial commit"]
    assert (done.commit, done.changed) == (HfApi().model_info(REPO).sha, True)
    assert torch.equal(says(load()), says(newer))


@lost_or_refused
def test_a_pull_request_is_opened_once(hub: LocalHub, pair: Pair, fault: dict[str, Any]) -> None:
    send(pair.draft)
    hub.faults.add("POST", "/commit/", **fault)
    newer = make_pair(seed=1).draft
    done = send(newer, create_pr=True, token="hf_other")
    (request,) = HfApi().get_repo_discussions(REPO)
    assert done.revision == request.git_reference == "refs/pr/1"
    assert done.url == f"{hub.endpoint}/{REPO}/discussions/1"
    assert torch.equal(says(load(revision="refs/pr/1")), says(newer))


def test_a_hub_that_stays_broken(hub: LocalHub, pair: Pair) -> None:
    hub.faults.add("POST", "/commit/", status=503)
    hub.faults.add("POST", "/commit/", status=500, times=None)
    with pytest.raises(PublishError, match="answers 503") as caught:
        send(pair.draft)
    assert caught.value.done == (f"{REPO} was created",)
    assert getattr(caught.value.__cause__, "response", None).status_code == 503
    assert HfApi().list_repo_files(REPO) == [".gitattributes"], "main is as it was"
    hub.faults.clear()
    hub.log.clear()
    send(pair.draft)
    assert not hub.log.matching("PUT"), "the weights were there already"
    assert len(commits()) == 2


def test_a_hub_that_does_and_never_says(hub: LocalHub, pair: Pair) -> None:
    hub.faults.add("POST", "/repos/create", status=504, after_work=True)
    hub.faults.add("GET", f"/api/models/{REPO}$", status=503, skip=1, times=None)
    with pytest.raises(PublishError, match=r"creating .* answers 504") as caught:
        send(pair.draft)
    assert caught.value.done == (f"it is not known whether {REPO} was created",)
    hub.faults.clear()
    assert send(pair.draft).changed


# Files on their way there


def test_an_upload_that_is_cut_goes_on(hub: LocalHub, pair: Pair) -> None:
    if hub.xet:
        cut = hub.faults.add("GET", "/xet-write-token/", drop_upload_after=0)
    else:
        cut = hub.faults.add("PUT", "", drop_upload_after=20_000)
    send(pair.draft, max_shard_size="20KB")
    assert cut.met == 1
    assert torch.equal(says(load()), says(pair.draft))


def test_an_upload_that_is_refused_leaves_main(hub: LocalHub, pair: Pair) -> None:
    send(pair.draft)
    newer = make_pair(seed=1).draft
    step = ("GET", "/xet-write-token/") if hub.xet else ("PUT", "")
    hub.faults.add(*step, status=403, times=None)
    with pytest.raises(PublishError, match="uploading failed") as caught:
        send(newer, exist_ok=True)
    assert caught.value.done == ()
    assert not hub.log.matching("POST", "/commit/")[1:]
    hub.faults.clear()
    send(newer, exist_ok=True, commit_message="Second")
    assert commits()[0] == "Second"
    assert len(commits()) == 3


def test_weights_with_a_wrong_checksum_are_not_committed(hub: LocalHub, pair: Pair) -> None:
    send(pair.draft)
    newer = make_pair(seed=1).draft
    if hub.xet:
        # What was written is gone or damaged before the commit names it.
        store = hub.folder / "xet"
        hub.faults.add("POST", "/commit/", before=lambda: spoil_index(store))
        said = "LFS object not found"
    else:
        hub.faults.add("PUT", "", corrupt_upload=True)
        said = "does not match its announced SHA-256"
    with pytest.raises(PublishError, match=f"answers 400: .*{said}") as caught:
        send(newer, exist_ok=True)
    assert caught.value.done == ()
    assert len(commits()) == 2
    assert torch.equal(says(load()), says(pair.draft))


def spoil_index(store: Path) -> None:
    newest = max((store / "xet/xorbs/shards").glob("*.mdb"), key=lambda p: p.stat().st_mtime_ns)
    newest.write_bytes(b"\0" * newest.stat().st_size)


def test_a_card_that_is_refused_at_the_commit(hub: LocalHub, pair: Pair) -> None:
    """It was taken when it was checked before."""
    error = {"errors": [{"message": "no such language"}], "warnings": []}
    fault = hub.faults.add("POST", "validate-yaml", status=400, body=error, skip=1)
    with pytest.raises(PublishError, match=r"refuses the card: .*no such language") as caught:
        send(pair.draft)
    assert fault.met == 1
    assert caught.value.done == (f"{REPO} was created",)
    assert send(pair.draft).changed


# Others who publish


def test_a_licence_that_cannot_be_read_is_no_missing_one(hub: LocalHub, pair: Pair) -> None:
    api = HfApi()
    api.create_repo("user/base")
    card = b"---\nlicense: apache-2.0\n---\n"
    api.upload_file(repo_id="user/base", path_or_fileobj=card, path_in_repo="README.md")
    down = hub.faults.add("*", "/user/base/resolve", status=503, times=None)
    with pytest.raises(PublishError, match="reading the licence of user/base failed"):
        send(pair.draft, license=None, draft_id="user/base")
    assert down.met
    assert not api.repo_exists(REPO)
    hub.faults.clear()
    send(pair.draft, license=None, draft_id="user/base")
    assert api.model_info(REPO).card_data["license"] == "apache-2.0"


def test_a_card_that_is_no_text_is_not_published_over(
    hub: LocalHub, pair: Pair, tmp_path: Path
) -> None:
    pair.draft.save_pretrained(tmp_path / "draft")
    (tmp_path / "draft" / "README.md").write_bytes(b"caf\xe9")
    with pytest.raises(PublishError, match="no UTF-8 text") as caught:
        send(tmp_path / "draft")
    assert "save it as UTF-8" in caught.value.remedy
    assert not HfApi().repo_exists(REPO)


def test_a_stale_parent(hub: LocalHub, pair: Pair) -> None:
    send(pair.draft)
    api = HfApi(token="hf_write")
    hub.faults.add(
        "POST",
        "/commit/",
        before=lambda: api.create_commit(REPO, [_theirs()], commit_message="Theirs"),
    )
    with pytest.raises(PublishError, match="somebody else published meanwhile") as caught:
        send(make_pair(seed=1).draft, exist_ok=True)
    assert "run it again with exist_ok=True" in caught.value.remedy
    assert caught.value.done == ()
    assert commits()[0] == "Theirs"


def _theirs() -> Any:
    from huggingface_hub import CommitOperationAdd

    return CommitOperationAdd("theirs.txt", b"x")


@pytest.mark.parametrize("there", [False, True])
def test_of_two_who_publish_at_once_one_wins(hub: LocalHub, pair: Pair, there: bool) -> None:
    """The other one is told, and main is wholly of the first."""
    if there:
        send(pair.draft)
    both = threading.Barrier(2)
    step = "/commit/" if there else "/repos/create"
    for _ in range(2):
        hub.faults.add("POST", step, before=lambda: both.wait(120))
    drafts = [make_pair(seed=1).draft, make_pair(seed=2).draft]

    def one(draft: Any) -> Any:
        try:
            return send(draft, exist_ok=there)
        except PublishError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(one, drafts))
    won = [n for n, end in enumerate(ends) if not isinstance(end, PublishError)]
    assert len(won) == 1, ends
    lost = ends[1 - won[0]]
    assert ("published meanwhile" if there else "exists already") in str(lost)
    assert lost.done == ()
    assert HfApi().model_info(REPO).sha == ends[won[0]].commit
    assert torch.equal(says(load()), says(drafts[won[0]]))


def test_a_new_repository_that_is_not_ours(hub: LocalHub, pair: Pair) -> None:
    """The answer to `create` is lost, and there is a repository, but somebody else's."""
    api = HfApi(token="hf_write")

    def meanwhile() -> None:
        api.create_repo(REPO)
        api.create_commit(REPO, [_theirs()], commit_message="Theirs")

    hub.faults.add("POST", "/repos/create", before=meanwhile, status=503)
    with pytest.raises(PublishError, match=f"somebody else created {REPO} meanwhile") as caught:
        send(pair.draft)
    assert caught.value.done == ()
    assert commits() == ["Theirs", "initial commit"]


def test_a_tag_that_somebody_took(hub: LocalHub, pair: Pair) -> None:
    api = HfApi(token="hf_write")
    hub.faults.add(
        "POST", "/tag/", before=lambda: api.create_tag(REPO, tag="v1", revision=first())
    )

    def first() -> str:
        return api.list_repo_commits(REPO)[-1].commit_id

    with pytest.raises(PublishError, match="got the tag 'v1' meanwhile") as caught:
        send(pair.draft, tag="v1")
    assert "another name" in caught.value.remedy
    assert caught.value.done[-1].startswith("all files were committed")
    again = send(pair.draft, tag="v2", exist_ok=True)
    assert not again.changed


# Readers


@pytest.mark.parametrize(
    ("repo_id", "kwargs", "said"),
    [
        pytest.param("user/none", {}, "not a valid model identifier", id="missing"),
        pytest.param(
            "user/none", {"token": False}, "not a valid model identifier", id="anonymous"
        ),
        pytest.param(REPO, {"token": False}, "not a valid model identifier", id="private"),
        pytest.param(REPO, {"token": "hf_other"}, "not a valid model", id="private to others"),
        pytest.param(REPO, {"token": "hf_wrong"}, "401|Invalid credentials", id="bad token"),
        pytest.param(REPO, {"revision": "v9"}, "v9 is not a valid git identifier", id="revision"),
        pytest.param("team/gated", {"token": "hf_other"}, "gated repo", id="gated"),
        pytest.param("team/gated", {"token": False}, "gated repo", id="gated, anonymous"),
    ],
)
def test_what_may_not_be_read_is_said(
    hub: LocalHub, tmp_path: Path, repo_id: str, kwargs: dict[str, Any], said: str
) -> None:
    draft = make_pair().draft
    if repo_id == REPO:
        send(draft, private=True)
        assert torch.equal(says(load(token="hf_read")), says(draft))
    elif repo_id != "user/none":
        send(draft, repo_id)
        HfApi().update_repo_settings(repo_id, gated="manual")
    with pytest.raises(OSError, match=said):
        TrimmedDraftForCausalLM.from_pretrained(repo_id, cache_dir=tmp_path / "new", **kwargs)


@pytest.mark.parametrize("way", ["stopped", "answers 503", "offline"])
def test_without_a_hub_what_is_cached_loads(
    hub: LocalHub, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    send(pair.draft, max_shard_size="20KB", tag="v1")
    for revision in ("main", "v1"):
        load(tmp_path / "warm", revision=revision)
    if way == "stopped":
        hub.stop()
    elif way == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        hub.faults.add("*", "", status=503, times=None)
    hub.log.clear()
    for revision in ("main", "v1"):
        loaded = load(tmp_path / "warm", revision=revision)
        assert torch.equal(says(loaded), says(pair.draft))
        assert loaded.coverage_metadata == pair.draft.coverage_metadata
    if way == "offline":
        assert not [*hub.log]
    with pytest.raises(OSError, match=r"couldn't connect|cached|503"):
        load(tmp_path / "cold")


def test_facts_that_do_not_come_are_missed_aloud(
    hub: LocalHub, pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(pair.draft)
    hub.faults.add("*", "/resolve/.*coverage.json", status=503, times=None)
    with caplog.at_level("WARNING"):
        loaded = load(tmp_path)
    assert loaded.coverage_metadata is None
    assert torch.equal(says(loaded), says(pair.draft))
    assert "loaded without its facts: vtrim/coverage.json" in caplog.text


def test_a_download_that_is_cut_goes_on(
    hub: LocalHub, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    send(pair.draft)
    if hub.xet:  # the bytes come from the store, the way there from the Hub
        cut = hub.faults.add("GET", "/xet-read-token/", drop_after=0)
    else:
        cut = hub.faults.add("GET", "/resolve/.*safetensors", drop_after=30_000)
    loaded = load(tmp_path)
    assert cut.met == 1
    assert torch.equal(says(loaded), says(pair.draft))
    assert not [*tmp_path.rglob("*.incomplete")]


def test_a_download_that_stays_broken_is_said(hub: LocalHub, pair: Pair, tmp_path: Path) -> None:
    send(pair.draft)
    path = "/xet-read-token/" if hub.xet else "/resolve/.*safetensors"
    hub.faults.add("GET", path, status=503, times=None)
    with pytest.raises(OSError, match="connection error when trying to load"):
        load(tmp_path)
    hub.faults.clear()
    assert torch.equal(says(load(tmp_path)), says(pair.draft)), "and it goes on where it was"


def test_a_damaged_download_is_found(hub: LocalHub, pair: Pair, tmp_path: Path) -> None:
    """`hf cache verify` knows the checksums; a map or a header that is damaged is refused."""
    send(pair.draft)
    sound = b""
    if hub.xet:
        store = hub.folder / "xet/xet/xorbs/xorbs"
        place = max(store.iterdir(), key=lambda file: file.stat().st_size)
        sound = place.read_bytes()
        middle = len(sound) // 2
        place.write_bytes(sound[:middle] + bytes([sound[middle] ^ 0xFF]) + sound[middle + 1 :])
    else:
        hub.faults.add("GET", "/resolve/.*safetensors", corrupt=True)
    snapshot_download(REPO, cache_dir=tmp_path)
    found = HfApi().verify_repo_checksums(REPO, cache_dir=tmp_path)
    assert ["model.safetensors" in str(damaged) for damaged in found.mismatches] == [True]
    if hub.xet:
        place.write_bytes(sound)
    else:
        with pytest.raises(SafetensorError, match="header"):
            load(tmp_path)
    loaded = load(tmp_path, force_download=True)
    assert torch.equal(says(loaded), says(pair.draft))
    assert not HfApi().verify_repo_checksums(REPO, cache_dir=tmp_path).mismatches


def test_one_load_is_of_one_commit(hub: LocalHub, pair: Pair, tmp_path: Path) -> None:
    """Shards, map and facts, while main moves on to other files."""
    old = send(pair.draft, max_shard_size="20KB")
    newer = make_pair(seed=1)
    newer.draft.coverage_metadata = make_metadata(newer.draft, report=newer.report)
    fault = hub.faults.add(
        "*", r"resolve/.*\.safetensors", before=lambda: send(newer.draft, exist_ok=True)
    )
    loaded = load(tmp_path)
    assert fault.met == 1
    assert HfApi().model_info(REPO).sha != old.commit
    assert torch.equal(says(loaded), says(pair.draft))
    assert loaded.coverage_metadata == pair.draft.coverage_metadata
    assert torch.equal(says(load(tmp_path)), says(newer.draft))


# Hostile repositories

EVIL = "from pathlib import Path\nPath({!r}).touch()\n"


class Bomb:
    """A pickle that leaves a trace when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return (Path.touch, (self.trace,))


@pytest.fixture
def saved(pair: Pair, tmp_path: Path) -> Path:
    pair.draft.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def upload(folder: Path) -> None:
    api = HfApi()
    api.create_repo(REPO, exist_ok=True)
    api.upload_folder(repo_id=REPO, folder_path=folder)


# What torch says of pickles that it takes for weights.
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_pickle_is_not_run(hub: LocalHub, pair: Pair, saved: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    bomb = pickle.dumps(Bomb(trace))
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (saved / name).write_bytes(bomb)
    upload(saved)
    assert torch.equal(says(load()), says(pair.draft)), "the safetensors are taken"
    HfApi().delete_file("model.safetensors", REPO)
    with pytest.raises(OSError, match=r"model\.safetensors"):
        load()
    assert not trace.exists()
    pickle.loads(bomb)
    assert trace.exists(), "it would have left one"


def test_code_of_a_repository_is_not_run_where_the_package_is(
    hub: LocalHub, pair: Pair, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the draft, not what its config names for the body, and nobody is asked."""
    trace = tmp_path / "trace"
    for place in saved.glob("*.py"):
        place.write_text(EVIL.format(str(trace)) + place.read_text())
    (saved / "custom_generate").mkdir()
    (saved / "custom_generate" / "generate.py").write_text(EVIL.format(str(trace)))
    config = json.loads((saved / "config.json").read_text())
    names = ("AutoConfig", "AutoModelForCausalLM")
    config["body_config"]["auto_map"] = dict.fromkeys(names, "modeling_trimmed_draft.Evil")
    (saved / "config.json").write_text(json.dumps(config))
    upload(saved)

    def ask(*_: object) -> str:
        raise AssertionError("asked about remote code")

    monkeypatch.setattr("builtins.input", ask)
    for kind in (TrimmedDraftForCausalLM, AutoModelForCausalLM):
        loaded = kind.from_pretrained(REPO)
        assert type(loaded) is TrimmedDraftForCausalLM
        assert torch.equal(says(loaded), says(pair.draft))
    assert not trace.exists()


def test_a_hostile_table_of_ids_is_refused(hub: LocalHub, saved: Path) -> None:
    place = saved / "model.safetensors"
    sound = load_file(place)
    kept = sound.pop("kept_ids")
    tables = {
        "oversized": torch.arange(1_000_000),
        "huge ids": kept + (1 << 40),
        "negative ids": kept - 5,
        "twice the same": kept.clone().fill_(7),
        "two dimensions": kept[None].contiguous(),
        "empty": kept[:0],
        "missing": None,
        "another": kept.flip(0),
    }
    for table in tables.values():
        more = {} if table is None else {"kept_ids": table}
        save_file({**sound, **more}, place, metadata={"format": "pt"})
        upload(saved)
        with pytest.raises(ValueError, match="kept_ids"):
            load()


def test_a_hostile_config_is_refused(hub: LocalHub, saved: Path) -> None:
    place = saved / "config.json"
    sound = json.loads(place.read_text())
    changes: dict[str, dict[str, Any]] = {
        "vocab_size must be at most": {"vocab_size": 10**12, "draft_vocab_size": 10**12},
        r"draft_vocab_size must lie in \[1": {"draft_vocab_size": -1},
        "draft_vocab_size must be a whole": {"draft_vocab_size": "24"},
        "have the shapes that the config says": {"draft_vocab_size": 25},
        "belong to different vocabularies": {"vocab_size": 301},
        "body must be one of": {"body": "../../evil"},
        "upgrade with": {"format_version": 99},
    }
    for said, change in changes.items():
        place.write_text(json.dumps({**sound, **change}))
        upload(saved)
        with pytest.raises(ValueError, match=said):
            load()


def test_an_index_cannot_lead_out_of_the_repository(
    hub: LocalHub, saved: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.safetensors"
    (saved / "model.safetensors").rename(outside)
    names = load_file(outside)
    for path in (
        str(outside),
        "../../../../../outside.safetensors",
        "a/../../outside.safetensors",
    ):
        index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, path)}
        (saved / "model.safetensors.index.json").write_text(json.dumps(index))
        upload(saved)
        with pytest.raises((OSError, ValueError)):
            load(tmp_path / "new" / "cache")
        assert [*(tmp_path / "new").iterdir()] == [tmp_path / "new" / "cache"]


PATHS = (
    "/etc/passwd", "../../up", "~/.ssh/id", "C:\\x", "a/../../b", "file:///etc/passwd", "a/b/c",
)  # fmt: skip


def test_paths_and_other_formats_in_facts_are_not_followed(
    hub: LocalHub, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    send(pair.draft)
    told: dict[str, Any] = pair.draft.coverage_metadata or {}
    hostile: list[Any] = [{**told, "draft": {**told["draft"], "id": path}} for path in PATHS]
    hostile += [{**told, "target": {**told["target"], "id": path}} for path in PATHS]
    hostile += [{**told, "extra": "../x"}, {**told, "coverage": "all"}, [], None, {"draft": 1}]
    for facts in hostile:
        put(COVERAGE_JSON, json.dumps(facts).encode())
        caplog.clear()
        loaded = load()
        assert loaded.coverage_metadata is None, facts
        assert "loaded without its facts" in caplog.text
        assert torch.equal(says(loaded), says(pair.draft))
    hub.log.clear()
    assert send(loaded, exist_ok=True).changed
    asked = [row.path for row in hub.log if REPO not in row.path]
    assert not [path for path in asked if "resolve" in path], "no card of a model named by them"


BOMB = "---\na: &a [1, 1, 1, 1]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
) + "---\n"  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(BOMB, "card", id="aliases"),
        pytest.param("---\n!!python/object/apply:os.getcwd []\n---\n", "YAML|front", id="python"),
    ],
)
def test_a_hostile_card_is_not_followed(hub: LocalHub, pair: Pair, text: str, said: str) -> None:
    send(pair.draft)
    there: dict[str, list[str]] = {"errors": [], "warnings": []}
    hub.faults.add("POST", "validate-yaml", status=200, body=there)
    put("README.md", text.encode())
    started = time.monotonic()
    with pytest.raises(PublishError, match=said) as caught:
        send(make_pair(seed=1).draft, exist_ok=True)
    assert time.monotonic() - started < 60
    assert caught.value.done == ()
    assert len(str(caught.value)) < 1000
