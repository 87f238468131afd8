"""The real `huggingface_hub` client against a local hub, in each way that files can travel."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors.numpy import save_file

from hub_client import CHECKOUT, client_environment, point_client_at, run_client
from vtrim_hf.local_hub import Account, LocalHub
from vtrim_hf.local_hub.xet_store import hf_xet_is_installed

TOKENS = {
    "hf_write": Account("user", "write", ("team",)),
    "hf_read": Account("user", "read", ("team",)),
    "hf_bob": Account("bob"),
}
MODES: dict[str, dict[str, Any]] = {
    "lfs": {"xet": False},
    "lfs-multipart": {"xet": False, "multipart": True},
    "xet-regular": {"xet": True, "regular_only": True},
    "xet": {"xet": True},
}
REPO = "user/draft"
CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [vtrim, sql]
base_model: team/target
base_model_relation: finetune
---
# Card
"""
BIG_FLOATS = 1_500_000  # 6 MB: two parts


@dataclass
class Scene:
    """A hub, a client of it, and a folder to publish."""

    hub: LocalHub
    api: HfApi
    folder: Path
    large_files: bool

    def publish(self, **kwargs: Any) -> Any:
        return self.api.upload_folder(repo_id=REPO, folder_path=self.folder, **kwargs)

    def add(self, path: str, data: bytes, **kwargs: Any) -> Any:
        return self.api.upload_file(
            repo_id=REPO, path_or_fileobj=data, path_in_repo=path, **kwargs
        )


@pytest.fixture(params=MODES)
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    if request.param == "xet" and not hf_xet_is_installed():
        pytest.skip("hf_xet is not installed")
    folder = tmp_path / "draft"
    (folder / "vtrim").mkdir(parents=True)
    weights = np.random.default_rng(0).standard_normal(BIG_FLOATS).astype("float32")
    save_file({"w": weights}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "vtrim/coverage.json").write_text("{}")
    (folder / "empty.txt").write_text("")
    (folder / "README.md").write_text(CARD)
    mode = MODES[request.param]
    with LocalHub(tmp_path / "hub", tokens=TOKENS, **mode) as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        api = HfApi()
        assert api.create_repo(REPO).repo_id == REPO
        yield Scene(hub, api, folder, not mode.get("regular_only", False))


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Files by LFS, for what does not depend on how they travel."""
    with LocalHub(tmp_path / "hub", tokens=TOKENS, xet=False) as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        api = HfApi()
        api.create_repo(REPO)
        yield Scene(hub, api, tmp_path, True)


def sha256(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def status_of(error: pytest.ExceptionInfo[HfHubHTTPError]) -> int:
    return int(error.value.response.status_code)


class TestEveryMode:
    def test_a_folder_comes_back(self, scene: Scene, tmp_path: Path) -> None:
        api, folder = scene.api, scene.folder
        commit = scene.publish(commit_message="v1")
        assert len(commit.oid) == 40
        files = sorted(
            str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
        )
        assert sorted(api.list_repo_files(REPO)) == sorted([".gitattributes", *files])
        snapshot = snapshot_download(REPO, token="hf_read")
        assert {name: sha256(f"{snapshot}/{name}") for name in files} == {
            name: sha256(folder / name) for name in files
        }
        assert Path(snapshot).name == commit.oid
        assert sha256(hf_hub_download(REPO, "model.safetensors", revision=commit.oid)) == sha256(
            folder / "model.safetensors"
        )
        only = snapshot_download(REPO, local_dir=tmp_path / "only", allow_patterns=["*.json"])
        found = {str(path.relative_to(only)) for path in Path(only).rglob("*.json")}
        assert {name for name in found if not name.startswith(".cache")} == {
            "config.json", "vtrim/coverage.json",
        }  # fmt: skip

    def test_facts(self, scene: Scene) -> None:
        api = scene.api
        commit = scene.publish()
        info = api.model_info(REPO, files_metadata=True)
        assert info.sha == commit.oid
        assert {"vtrim", "license:apache-2.0", "base_model:finetune:team/target"} <= set(
            info.tags or ()
        )
        assert info.card_data.license == "apache-2.0"
        assert (info.pipeline_tag, info.library_name) == ("text-generation", "transformers")
        big = next(file for file in info.siblings if file.rfilename == "model.safetensors")
        digest, size = sha256(scene.folder / big.rfilename), 4 * BIG_FLOATS
        assert big.size == (scene.folder / big.rfilename).stat().st_size > size
        assert (big.lfs.sha256 if big.lfs else None) == (digest if scene.large_files else None)
        facts = get_hf_file_metadata(hf_hub_url(REPO, "model.safetensors"))
        assert (facts.commit_hash, facts.size) == (commit.oid, big.size)
        assert api.get_safetensors_metadata(REPO).parameter_count == {"F32": BIG_FLOATS}
        folders = [item.path for item in api.list_repo_tree(REPO) if not hasattr(item, "blob_id")]
        assert folders == ["vtrim"]
        assert [item.path for item in api.get_paths_info(REPO, ["config.json", "no"])] == [
            "config.json"
        ]
        assert api.file_exists(REPO, "config.json")
        assert not api.file_exists(REPO, "no")
        assert not api.revision_exists(REPO, "v9")
        assert not api.repo_exists("user/none")

    def test_a_card_of_great_length_is_a_file_like_others(self, scene: Scene) -> None:
        """Where it does not travel within the commit, only the store may have its text."""
        text = CARD.encode() + b"x" * (11 << 20)
        commit = scene.add("README.md", text)
        assert scene.api.model_info(REPO).sha == commit.oid
        assert scene.hub.read(REPO, "README.md") == text

    def test_only_what_changed_is_committed(self, scene: Scene) -> None:
        api = scene.api
        first = scene.publish(commit_message="v1")
        api.create_tag(REPO, tag="v1", tag_message="first")
        api.create_branch(REPO, branch="dev")
        api.create_branch(REPO, branch="dev", exist_ok=True)
        (scene.folder / "config.json").write_text('{"model_type": "llama", "n": 2}')
        scene.hub.clear_log()
        second = scene.publish(revision="dev", commit_message="v2")
        assert not scene.hub.log.matching("PUT", "/lfs-uploads/")
        assert scene.publish(revision="dev").oid == second.oid
        titles = [commit.title for commit in api.list_repo_commits(REPO, revision="dev")]
        assert titles == ["v2", "v1", "initial commit"]
        refs = api.list_repo_refs(REPO)
        assert {branch.name for branch in refs.branches} == {"main", "dev"}
        assert [(tag.name, tag.target_commit) for tag in refs.tags] == [("v1", first.oid)]
        for revision, text in (
            ("v1", "llama"),
            (first.oid, "llama"),
            ("main", "llama"),
            ("dev", "2"),
        ):
            path = hf_hub_download(REPO, "config.json", revision=revision)
            assert text in Path(path).read_text()
            assert ("2" in Path(path).read_text()) == (revision == "dev")

    def test_stale_weights_go_in_the_same_commit(self, scene: Scene) -> None:
        scene.add("model-00001-of-00002.safetensors", os.urandom(1000))
        scene.add("model.safetensors.index.json", b"{}")
        before = len(scene.api.list_repo_commits(REPO))
        scene.publish(delete_patterns=["*.safetensors", "*.safetensors.index.json"])
        assert not {"model-00001-of-00002.safetensors", "model.safetensors.index.json"} & set(
            scene.hub.files(REPO)
        )
        assert len(scene.api.list_repo_commits(REPO)) - before <= 2  # with Xet: two commits

    def test_pull_requests(self, scene: Scene) -> None:
        api, bob = scene.api, HfApi(token="hf_bob")
        scene.publish()
        first = bob.upload_file(
            repo_id=REPO, path_or_fileobj=b"bob's", path_in_repo="bob.txt", create_pr=True
        )
        assert (first.pr_num, first.pr_revision) == (1, "refs/pr/1")
        path = hf_hub_download(REPO, "bob.txt", revision="refs/pr/1")
        assert Path(path).read_text() == "bob's"
        assert not api.file_exists(REPO, "bob.txt")
        (scene.folder / "config.json").write_text("{}")
        second = scene.publish(create_pr=True, commit_message="folder")
        assert second.pr_num == 2
        scene.add("later.txt", b"in between")
        assert [pull.num for pull in api.get_repo_discussions(REPO)] == [2, 1]
        api.merge_pull_request(REPO, discussion_num=2)
        assert api.get_discussion_details(REPO, 2).status == "merged"
        assert scene.hub.read(REPO, "config.json") == b"{}"
        assert scene.hub.read(REPO, "later.txt") == b"in between"  # a merge, no overwriting
        api.comment_discussion(REPO, discussion_num=1, comment="no")
        api.change_discussion_status(REPO, discussion_num=1, new_status="closed")
        details = api.get_discussion_details(REPO, 1)
        assert (details.status, len(details.events)) == ("closed", 3)

    def test_the_folder_survives_a_restart(
        self, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit = scene.publish()
        scene.api.create_tag(REPO, tag="v1")
        scene.hub.stop()
        mode: dict[str, Any] = {"xet": scene.hub.xet, "regular_only": not scene.large_files}
        with LocalHub(tmp_path / "hub", tokens=TOKENS, **mode) as again:
            point_client_at(monkeypatch, again, tmp_path / "cache2")
            scene.api = HfApi()
            assert scene.api.model_info(REPO, revision="v1").sha == commit.oid
            path = hf_hub_download(REPO, "model.safetensors", revision="v1")
            assert sha256(path) == sha256(scene.folder / "model.safetensors")
            assert scene.publish().oid == commit.oid  # all is known to be there


class TestRefusals:
    def test_repositories(self, plain: Scene) -> None:
        api = plain.api
        with pytest.raises(HfHubHTTPError) as caught:
            api.create_repo(REPO)
        assert status_of(caught) == 409
        assert api.create_repo(REPO, exist_ok=True).repo_id == REPO
        with pytest.raises(HfHubHTTPError) as caught:
            api.create_repo("bob/x")
        assert status_of(caught) == 403
        with pytest.raises(RepositoryNotFoundError):
            hf_hub_download("user/none", "config.json")
        with pytest.raises(RevisionNotFoundError):
            hf_hub_download(REPO, ".gitattributes", revision="v9")
        with pytest.raises(EntryNotFoundError):
            hf_hub_download(REPO, "nope.json")
        with pytest.raises(RepositoryNotFoundError):
            hf_hub_download("gpt2", "config.json")

    def test_tokens(self, plain: Scene) -> None:
        assert plain.api.whoami()["auth"]["accessToken"]["role"] == "write"
        assert HfApi(token="hf_read").whoami()["name"] == "user"
        for token, status in (("hf_none", 401), ("hf_read", 403), ("hf_bob", 403)):
            with pytest.raises(HfHubHTTPError) as caught:
                HfApi(token=token).upload_file(
                    repo_id=REPO, path_or_fileobj=b"x", path_in_repo="x"
                )
            assert status_of(caught) == status
        with pytest.raises(HfHubHTTPError) as caught:
            HfApi(token="hf_none").whoami()
        assert status_of(caught) == 401

    def test_private_and_gated(self, plain: Scene, tmp_path: Path) -> None:
        api = plain.api
        api.create_repo("team/secret", private=True)
        api.upload_file(repo_id="team/secret", path_or_fileobj=b"s", path_in_repo="s.txt")

        def read(repo: str, file: str, token: Any) -> str:
            return hf_hub_download(repo, file, token=token, cache_dir=tmp_path / f"as-{token}")

        assert Path(read("team/secret", "s.txt", "hf_read")).read_text() == "s"
        for token in (False, "hf_bob"):
            with pytest.raises(RepositoryNotFoundError):
                read("team/secret", "s.txt", token)
        api.update_repo_settings(REPO, gated="manual")
        with pytest.raises(GatedRepoError):
            read(REPO, ".gitattributes", "hf_bob")
        with pytest.raises(GatedRepoError):
            api.auth_check(REPO, token="hf_bob")
        api.auth_check(REPO, token="hf_read")

    def test_commits(self, plain: Scene) -> None:
        api = plain.api
        first = plain.add("a/x.txt", b"x")
        api.create_commit(
            REPO,
            [CommitOperationAdd("new.txt", b"n"), CommitOperationDelete("a/")],
            commit_message="both",
            parent_commit=first.oid,
        )
        assert plain.hub.files(REPO) == [".gitattributes", "new.txt"]
        with pytest.raises(HfHubHTTPError) as caught:
            plain.add("z.txt", b"z", parent_commit=first.oid)
        assert status_of(caught) == 412
        api.create_tag(REPO, tag="v1")
        with pytest.raises(HfHubHTTPError) as caught:
            api.create_tag(REPO, tag="v1")
        assert status_of(caught) == 409
        with pytest.raises(ValueError, match="YAML"):
            plain.add("README.md", b"---\na: [\n---\n")
        with pytest.raises(HfHubHTTPError) as caught:
            plain.api.upload_file(
                repo_id=REPO, path_or_fileobj=b"x", path_in_repo="x", revision="no"
            )
        assert status_of(caught) == 404

    def test_what_is_deleted_is_gone(self, plain: Scene) -> None:
        api = plain.api
        api.create_branch(REPO, branch="dev")
        api.create_tag(REPO, tag="v1")
        api.delete_branch(REPO, branch="dev")
        api.delete_tag(REPO, tag="v1")
        assert not api.revision_exists(REPO, "dev")
        api.move_repo(REPO, "team/moved")
        assert api.repo_exists("team/moved")
        assert not api.repo_exists(REPO)
        api.delete_repo("team/moved")
        api.delete_repo("team/moved", missing_ok=True)
        assert not api.repo_exists("team/moved")

    def test_searches_and_data_sets(self, plain: Scene) -> None:
        api = plain.api
        plain.add("README.md", CARD.encode())
        api.create_repo("team/other")
        assert [model.id for model in api.list_models(filter=["vtrim", "sql"])] == [REPO]
        assert [model.id for model in api.list_models(author="team")] == ["team/other"]
        assert [model.id for model in api.list_models(search="oth")] == ["team/other"]
        (model,) = api.list_models(filter="base_model:team/target", full=True, cardData=True)
        assert model.card_data.license == "apache-2.0"
        api.create_repo("user/rows", repo_type="dataset")
        api.upload_file(
            repo_id="user/rows",
            repo_type="dataset",
            path_or_fileobj=b"{}",
            path_in_repo="d/a.jsonl",
        )
        assert api.dataset_info("user/rows").siblings[-1].rfilename == "d/a.jsonl"
        path = hf_hub_download("user/rows", "d/a.jsonl", repo_type="dataset")
        assert Path(path).read_text() == "{}"


class TestBadDays:
    def test_a_failed_commit_shows_nothing_and_may_be_sent_again(self, plain: Scene) -> None:
        plain.hub.faults.add("POST", "/commit/", status=503)
        operations = [CommitOperationAdd("model.safetensors", os.urandom(100_000))]
        with pytest.raises(HfHubHTTPError):
            plain.api.create_commit(REPO, operations, commit_message="m")
        assert "model.safetensors" not in plain.hub.files(REPO)
        plain.hub.clear_log()
        plain.api.create_commit(REPO, operations, commit_message="m")
        assert "model.safetensors" in plain.hub.files(REPO)
        assert not plain.hub.log.matching("PUT")  # the bytes had stayed

    def test_uploads_and_downloads_that_are_cut_go_on(
        self, plain: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
        data = os.urandom(300_000)
        cut = plain.hub.faults.add("PUT", "/lfs-uploads/", drop_upload_after=70_000)
        plain.add("model.safetensors", data)
        assert plain.hub.read(REPO, "model.safetensors") == data
        lost = plain.hub.faults.add("GET", "/resolve/", drop_after=100_000)
        path = hf_hub_download(REPO, "model.safetensors")
        assert Path(path).read_bytes() == data
        assert (cut.met, lost.met) == (1, 1)
        resumed = plain.hub.log.matching("GET", "/resolve/")[-1]
        assert (resumed.status, resumed.sent) == (206, 200_000)

    def test_an_upload_that_is_damaged_on_its_way_is_refused(self, plain: Scene) -> None:
        fault = plain.hub.faults.add("PUT", "/lfs-uploads/", corrupt_upload=True)
        with pytest.raises(RuntimeError, match="Error while uploading"):
            plain.add("model.safetensors", os.urandom(1000))
        assert (fault.met, plain.hub.files(REPO)) == (1, [".gitattributes"])
        assert not [*plain.hub.service.objects.incoming.iterdir()]

    def test_too_many_requests_are_waited_out(self, plain: Scene) -> None:
        limit = {"RateLimit": '"api";r=0;t=0', "RateLimit-Policy": '"fixed window";"api";q=9;w=9'}
        fault = plain.hub.faults.add("POST", "/preupload/", status=429, headers=limit)
        plain.add("a.txt", b"a")
        assert (fault.met, plain.hub.read(REPO, "a.txt")) == (1, b"a")

    def test_a_writer_that_comes_in_between_is_noticed(self, plain: Scene) -> None:
        parent = plain.api.model_info(REPO).sha
        other = HfApi(token="hf_write")
        plain.hub.faults.add(
            "POST",
            "/commit/",
            before=lambda: other.upload_file(
                repo_id=REPO, path_or_fileobj=b"theirs", path_in_repo="a.txt"
            ),
        )
        with pytest.raises(HfHubHTTPError) as caught:
            plain.add("a.txt", b"mine", parent_commit=parent)
        assert status_of(caught) == 412
        assert plain.hub.read(REPO, "a.txt") == b"theirs"

    def test_writers_side_by_side_lose_nothing(self, plain: Scene) -> None:
        def write(who: int) -> None:
            api = HfApi(token="hf_write")
            for n in range(4):
                api.upload_file(
                    repo_id=REPO,
                    path_or_fileobj=f"{who} {n}".encode(),
                    path_in_repo=f"{who}/{n}.txt",
                    commit_message=f"{who} {n}",
                )

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, range(2)))
        names = {f"{who}/{n}.txt" for who in range(2) for n in range(4)}
        assert set(plain.hub.files(REPO)) == {*names, ".gitattributes"}
        titles = {commit.title for commit in plain.api.list_repo_commits(REPO)}
        assert len(titles) == 9

    def test_of_two_with_the_same_parent_one_wins(self, plain: Scene) -> None:
        parent = plain.api.model_info(REPO).sha
        both = threading.Barrier(2)
        for _ in range(2):
            plain.hub.faults.add("POST", "/commit/", before=lambda: both.wait(60))

        def write(who: int) -> int:
            try:
                plain.add("a.txt", str(who).encode(), parent_commit=parent)
            except HfHubHTTPError as error:
                return int(error.response.status_code)
            return 200

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(write, range(2))) == [200, 412]

    def test_a_server_that_is_down(self, plain: Scene, tmp_path: Path) -> None:
        plain.add("a.txt", b"a")
        hf_hub_download(REPO, "a.txt")
        plain.hub.stop()
        cached = hf_hub_download(REPO, "a.txt")
        assert Path(cached).read_text() == "a"
        plain.hub.start()
        assert Path(hf_hub_download(REPO, "a.txt", cache_dir=tmp_path / "new")).read_text() == "a"


KILLED_SERVER = """
import os, signal, sys, types
package = types.ModuleType("vtrim_hf")  # the hub alone, without what the package loads
package.__path__ = [sys.argv[1]]
sys.modules["vtrim_hf"] = package
from vtrim_hf.local_hub import LocalHub
from vtrim_hf.local_hub.object_store import ObjectStore
hub = LocalHub(sys.argv[2]).start()
print(hub.endpoint, hub.token, flush=True)
name, left = sys.argv[3], int(sys.argv[4])
original = getattr(ObjectStore, name)
def deadly(*args, **kwargs):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
sys.stdin.readline()
setattr(ObjectStore, name, deadly)
print("armed", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(os.name != "posix", reason="kills with a signal")
@pytest.mark.parametrize(
    ("function", "call"),
    [("put", 1), ("put", 2), ("write_whole", 1), ("write_whole", 2)],
    ids=["first content", "second content", "before the commit", "before the branch"],
)
def test_a_killed_hub_shows_a_commit_wholly_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, call: int
) -> None:
    arguments = [str(CHECKOUT / "vtrim_hf"), str(tmp_path / "hub"), function, str(call)]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_SERVER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        endpoint, token = process.stdout.readline().split()
        api = HfApi(endpoint=endpoint, token=token)
        stand_in = LocalHub(tmp_path / "unused")
        stand_in.port = int(endpoint.rsplit(":", 1)[1])
        point_client_at(monkeypatch, stand_in, tmp_path / "cache", token=token)
        api.create_repo(REPO)
        operations = [CommitOperationAdd(name, name.encode()) for name in ("a.txt", "b.txt")]
        before = api.create_commit(REPO, operations, commit_message="kept").oid
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "armed\n"
        operations = [CommitOperationAdd(name, b"changed") for name in ("a.txt", "b.txt")]
        with pytest.raises(Exception):  # noqa: B017, PT011  the client's kind of it is not ours
            api.create_commit(REPO, operations, commit_message="killed")
        assert process.wait(60) == -signal.SIGKILL
    with LocalHub(tmp_path / "hub") as hub:
        assert hub.token == token
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        api = HfApi()
        assert api.model_info(REPO).sha == before
        assert {name: hub.read(REPO, name) for name in ("a.txt", "b.txt")} == {
            "a.txt": b"a.txt", "b.txt": b"b.txt",
        }  # fmt: skip
        assert list(hub.service.objects.incoming.iterdir()) == []
        api.create_commit(REPO, operations, commit_message="again")
        assert hub.read(REPO, "b.txt") == b"changed"
        titles = [commit.title for commit in api.list_repo_commits(REPO)]
        assert titles == ["again", "kept", "initial commit"]


@pytest.mark.newest
def test_transformers_in_this_process_and_in_a_fresh_one(plain: Scene, tmp_path: Path) -> None:
    from transformers import AutoConfig, LlamaConfig

    LlamaConfig(hidden_size=96).save_pretrained(tmp_path / "saved")
    plain.api.upload_folder(repo_id=REPO, folder_path=tmp_path / "saved")
    assert AutoConfig.from_pretrained(REPO).hidden_size == 96
    code = (
        "from transformers import AutoConfig\n"
        f"print(AutoConfig.from_pretrained('{REPO}').hidden_size)"
    )
    for xet in (False, True):
        plain.hub.xet = xet  # clients with Xet download plain files as well
        done = run_client(code, client_environment(plain.hub, tmp_path / f"cache-{xet}"))
        assert done.stdout == "96\n", done.stderr
    plain.api.update_repo_settings(REPO, private=True)
    environment = client_environment(plain.hub, tmp_path / "anonymous", token=None)
    done = run_client(code, environment)
    assert done.returncode == 1
    assert "is not a valid model identifier" in done.stderr or "not found" in done.stderr
