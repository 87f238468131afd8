"""What a local hub keeps on disk: content, commits, references, tokens, and the folder itself."""

from __future__ import annotations

import hashlib
import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vtrim_hf.local_hub import LocalHub
from vtrim_hf.local_hub.accounts import Account, load_tokens
from vtrim_hf.local_hub.commit_changes import Change, apply_change
from vtrim_hf.local_hub.object_store import ObjectStore, git_blob_id, pieces_of
from vtrim_hf.local_hub.refusals import RefusedError
from vtrim_hf.local_hub.repository import Entry, Repository, check_tree, store_small
from vtrim_hf.local_hub.repository_shelf import RepositoryShelf
from vtrim_hf.local_hub.revisions import (
    create_branch,
    create_tag,
    delete_branch,
    delete_tag,
    resolve_revision,
)
from vtrim_hf.local_hub.xet_store import read_shard

pytestmark = pytest.mark.newest  # a server of the standard library


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    return ObjectStore(tmp_path)


@pytest.fixture
def shelf(tmp_path: Path, objects: ObjectStore) -> RepositoryShelf:
    return RepositoryShelf(tmp_path / "repositories", objects)


@pytest.fixture
def repository(shelf: RepositoryShelf) -> Repository:
    return shelf.create("model", "user/x", author="user")


def scraps(objects: ObjectStore) -> list[Path]:
    return list(objects.incoming.iterdir())


class TestObjects:
    def test_content_is_found_by_its_hash(self, objects: ObjectStore) -> None:
        sha256, size = objects.put([b"ab", b"c"])
        assert (sha256, size) == (hashlib.sha256(b"abc").hexdigest(), 3)
        assert objects.has(sha256)
        assert objects.read(sha256) == b"abc"
        assert b"".join(pieces_of(objects.path(sha256), 1, 1)) == b"b"
        assert scraps(objects) == []

    def test_wrong_content_is_not_kept(self, objects: ObjectStore) -> None:
        with pytest.raises(ValueError, match="does not match"):
            objects.put([b"abc"], sha256="0" * 64)
        assert not objects.has("0" * 64)
        assert not objects.has(hashlib.sha256(b"abc").hexdigest())
        assert scraps(objects) == []

    def test_a_broken_stream_leaves_nothing(self, objects: ObjectStore) -> None:
        def stream() -> Iterator[bytes]:
            yield b"abc"
            raise ConnectionAbortedError

        with pytest.raises(ConnectionAbortedError):
            objects.put(stream())
        assert scraps(objects) == []

    def test_parts_are_joined_in_the_order_asked_for(self, objects: ObjectStore) -> None:
        assert objects.put_part("u", 2, [b"c"]) == hashlib.md5(b"c").hexdigest()
        objects.put_part("u", 1, [b"a", b"b"])
        sha256 = hashlib.sha256(b"abc").hexdigest()
        with pytest.raises(ValueError, match=r"\[3\] were not uploaded"):
            objects.join_parts("u", [1, 2, 3], sha256=sha256)
        assert objects.join_parts("u", [1, 2], sha256=sha256) == 3
        assert objects.read(sha256) == b"abc"
        assert scraps(objects) == []

    def test_a_start_sweeps_out_what_was_half_written(
        self, objects: ObjectStore, tmp_path: Path
    ) -> None:
        kept, _ = objects.put([b"kept"])
        (objects.incoming / "half").write_bytes(b"x")
        again = ObjectStore(tmp_path)
        assert scraps(again) == []
        assert again.read(kept) == b"kept"

    def test_git_ids(self) -> None:
        assert git_blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


class TestRepositories:
    def test_a_commit_is_visible_when_a_branch_names_it(self, repository: Repository) -> None:
        first = repository.state.branches["main"]
        entry = store_small(repository.objects, b"x")
        made = repository.save_commit(first, "t", "m", "user", {"a": entry})
        assert resolve_revision(repository, "main") == first
        repository.update(branches={"main": made.sha})
        again = Repository(repository.folder, repository.objects, threading.RLock())
        assert again.state == repository.state
        assert again.read(made.sha, "a") == b"x"
        assert [commit.title for commit in again.history(made.sha)] == ["t", "initial commit"]
        assert scraps(repository.objects) == []

    def test_names_may_be_taken_once(self, shelf: RepositoryShelf, repository: Repository) -> None:
        with pytest.raises(RefusedError, match="already") as caught:
            shelf.create("model", "user/x", author="user")
        assert caught.value.status == 409
        shelf.create("dataset", "user/x", author="user")
        assert [found.id for found in shelf.all("model")] == ["user/x"]

    @pytest.mark.parametrize("repo_id", ["../x", "user/..", "user/a/b", "user"])
    def test_no_repository_outside_the_folder(self, shelf: RepositoryShelf, repo_id: str) -> None:
        with pytest.raises(RefusedError, match="NAMESPACE/NAME"):
            shelf.create("model", repo_id, author="user")

    def test_an_unknown_kind_is_refused(self, shelf: RepositoryShelf) -> None:
        with pytest.raises(RefusedError, match="type is one of"):
            shelf.create("../model", "a/b", author="user")

    def test_a_moved_one_keeps_its_commits(
        self, shelf: RepositoryShelf, repository: Repository, tmp_path: Path
    ) -> None:
        sha = repository.state.branches["main"]
        moved = shelf.move(repository, "team/y")
        assert (moved.id, moved.namespace, moved.commit(sha).title) == (
            "team/y", "team", "initial commit",
        )  # fmt: skip
        assert shelf.find("model", "user/x") is None
        found = RepositoryShelf(tmp_path / "repositories", repository.objects).all("model")
        assert [each.id for each in found] == ["team/y"]

    def test_what_is_gone_takes_no_more_writes(
        self, shelf: RepositoryShelf, repository: Repository
    ) -> None:
        shelf.delete(repository)
        shelf.create("model", "user/x", author="user")
        with pytest.raises(RefusedError, match="not found"):
            repository.update(private=True)
        assert not shelf.all("model")[0].state.private

    def test_the_rest_of_a_half_deleted_one_is_no_repository(
        self, shelf: RepositoryShelf, repository: Repository, tmp_path: Path
    ) -> None:
        (repository.folder / "state.json").unlink()
        again = RepositoryShelf(tmp_path / "repositories", repository.objects)
        assert again.all("model") == []
        assert again.create("model", "user/x", author="user").state.tags == {}


class TestRevisions:
    def test_every_way_to_name_a_commit(self, repository: Repository) -> None:
        sha = repository.state.branches["main"]
        create_branch(repository, "dev", None)
        create_tag(repository, "v1", "dev")
        for name in (
            "main", "dev", "v1", sha, sha[:7], "refs/heads/dev", "refs/tags/v1",
        ):  # fmt: skip
            assert resolve_revision(repository, name) == sha
        for name in ("v2", "0" * 40, "../main", "refs/pr/1", sha[:6], "*" * 8, "refs/heads/v1"):
            with pytest.raises(RefusedError, match="Invalid rev id"):
                resolve_revision(repository, name)

    def test_twice_and_missing(self, repository: Repository) -> None:
        create_branch(repository, "dev", "main")
        create_tag(repository, "v1", "main")
        for again in (
            lambda: create_branch(repository, "dev", None),
            lambda: create_tag(repository, "v1", "main"),
        ):
            with pytest.raises(RefusedError) as caught:
                again()
            assert caught.value.status == 409
        delete_branch(repository, "dev")
        delete_tag(repository, "v1")
        for gone in (
            lambda: delete_branch(repository, "dev"),
            lambda: delete_tag(repository, "v1"),
        ):
            with pytest.raises(RefusedError, match="Invalid rev id"):
                gone()
        with pytest.raises(RefusedError, match="cannot be deleted"):
            delete_branch(repository, "main")
        with pytest.raises(RefusedError, match="a branch or tag"):
            create_tag(repository, "../x", "main")


class TestTrees:
    ENTRY, OTHER = Entry("a", 1, "x"), Entry("b", 2, "y")

    def change(self, added: dict[str, Entry], *deleted: str) -> Change:
        return Change("t", "", None, added, deleted)

    def test_deletions_come_first(self) -> None:
        tree = {"a/b": self.ENTRY, "a/c/d": self.ENTRY, "ab": self.ENTRY}
        after = apply_change(tree, self.change({"a/n": self.OTHER}, "a/"))
        assert after == {"ab": self.ENTRY, "a/n": self.OTHER}
        assert len(tree) == 3

    def test_what_is_not_there_cannot_be_deleted(self) -> None:
        with pytest.raises(RefusedError, match="doesn't exist: a") as caught:
            apply_change({"ab": self.ENTRY}, self.change({}, "a/"))
        assert caught.value.headers["X-Error-Code"] == "EntryNotFound"

    def test_no_file_is_a_folder(self) -> None:
        with pytest.raises(RefusedError, match="cannot be a file and the folder"):
            check_tree({"a": self.ENTRY, "a/b": self.ENTRY})


class TestTokens:
    def test_they_are_random_private_and_kept(self, tmp_path: Path) -> None:
        tokens = load_tokens(tmp_path)
        assert sorted(account.role for account in tokens.values()) == ["read", "write"]
        assert load_tokens(tmp_path) == tokens
        assert stat.S_IMODE((tmp_path / "tokens.json").stat().st_mode) == 0o600
        (tmp_path / "other").mkdir()
        assert load_tokens(tmp_path / "other").keys().isdisjoint(tokens)

    def test_more_users_may_be_added(self, tmp_path: Path) -> None:
        rows = {"hf_x": {"name": "bob", "role": "read", "organizations": ["team"]}}
        (tmp_path / "tokens.json").write_text(json.dumps(rows))
        assert load_tokens(tmp_path) == {"hf_x": Account("bob", "read", ("team",))}

    @pytest.mark.parametrize(
        "text", ["", "[]", '{"a": 1}', '{"a": {}}', '{"a": {"name": "x", "role": "root"}}']
    )
    def test_a_broken_file_is_named(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "tokens.json").write_text(text)
        with pytest.raises(ValueError, match=r"tokens\.json must map"):
            load_tokens(tmp_path)


class TestFolder:
    def test_one_hub_at_a_time(self, tmp_path: Path) -> None:
        other = LocalHub(tmp_path / "hub")
        with LocalHub(tmp_path / "hub"), pytest.raises(BlockingIOError, match="in use by another"):
            other.start()
        LocalHub(tmp_path / "hub").start().stop()

    def test_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "hub").touch()
        with pytest.raises(NotADirectoryError, match="a hub needs a folder"):
            LocalHub(tmp_path / "hub").start()

    def test_what_is_no_hub_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "incoming").mkdir()
        (tmp_path / "incoming" / "mine").touch()
        with pytest.raises(ValueError, match="neither empty nor a hub's folder"):
            LocalHub(tmp_path).start()
        assert [path.name for path in tmp_path.rglob("*")] == ["incoming", "mine"]

    @pytest.mark.parametrize(
        ("text", "trouble"), [('{"format": 2}', "has format 2"), ("{", "does not say")]
    )
    def test_another_format_is_refused(self, tmp_path: Path, text: str, trouble: str) -> None:
        (tmp_path / "local_hub.json").write_text(text)
        with pytest.raises(ValueError, match=trouble):
            LocalHub(tmp_path).start()

    def test_nothing_is_known_before_the_start(self, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError, match="start"):
            LocalHub(tmp_path / "hub").token  # noqa: B018


@pytest.mark.parametrize("data", [b"", b"\0" * 48, b"\0" * 100, b"\0" * 80 + b"\5\0\0\0" * 20])
def test_a_broken_xet_index_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="ends before"):
        read_shard(data)


def test_an_empty_xet_index() -> None:
    assert read_shard(b"\0" * 48 + b"\xff" * 32) == {}
