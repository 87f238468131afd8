"""A family goes to the Hub: a draft a domain, all checked first, and an index that lists them."""

from __future__ import annotations

import ast
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, get_token

import vtrim_hf.hub
import vtrim_hf.hub_upload
from hub_client import point_client_at
from published_facts import make_pair, make_report
from shelved_drafts import make_facts, shelve
from vtrim_hf import TrimmedDraftForCausalLM, find_drafts
from vtrim_hf.coverage_metadata import COVERAGE_JSON, make_metadata
from vtrim_hf.family_folder import drafts_in
from vtrim_hf.family_index import FAMILY_JSON, family_card, family_text, merged, parse_family
from vtrim_hf.family_names import check_apart
from vtrim_hf.family_record import RECORD, FamilyRecord
from vtrim_hf.family_upload import IndexUpload
from vtrim_hf.hub import publish
from vtrim_hf.hub_errors import PublishError
from vtrim_hf.hub_family import publish_family
from vtrim_hf.local_hub import LocalHub
from vtrim_hf.model_card import split_card

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

TEMPLATE, ONE, TARGET = "user/tiny-{domain}", "user/tiny-drafts", "user/tiny-target"
OPTIONS: dict[str, Any] = {"license": "mit", "target_id": TARGET, "progress": False}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run with `drafts: per_domain` leaves."""
    root = tmp_path_factory.mktemp("family")
    for seed, name in enumerate(("chat", "sql")):
        pair = make_pair(seed)
        pair.draft.coverage_metadata = make_metadata(pair.draft, search=pair.search)
        place = root / "run" / "domains" / name
        pair.draft.save_pretrained(place / "draft")
        pair.tokenizer.save_pretrained(place / "draft")
        (place / "measure").mkdir()
        make_report(pair.search.k).save(place / "measure" / "decode_report.json")
    return root / "run"


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    monkeypatch.setattr(vtrim_hf.hub, "prove_it_loads", lambda draft, folder: None)
    monkeypatch.setattr(vtrim_hf.hub_upload, "_PAUSE", 0.0)
    with LocalHub(tmp_path / "hub", xet=False) as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        yield hub


def repositories(hub: LocalHub) -> list[str]:
    return [repository.id for repository in hub.service.shelf.all("model")]


class TestFolders:
    def test_a_run_s_drafts_with_what_was_measured(self, saved: Path) -> None:
        found = drafts_in(saved)
        assert list(found) == ["chat", "sql"]
        assert found["sql"].folder == saved / "domains" / "sql" / "draft"
        assert found["sql"].report == saved / "domains/sql/measure/decode_report.json"

    def test_a_folder_of_drafts_and_a_mapping(self, saved: Path, tmp_path: Path) -> None:
        for name in ("chat", "sql"):
            (tmp_path / name).symlink_to(saved / "domains" / name / "draft")
        (tmp_path / "notes").mkdir()
        found = drafts_in(tmp_path)
        assert list(found) == ["chat", "sql"]
        assert found["sql"].report is None
        assert list(drafts_in({"x": tmp_path / "sql"})) == ["x"]

    def test_what_is_no_family(self, saved: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="holds one draft"):
            drafts_in(saved / "domains" / "sql" / "draft")
        for one in (saved / "domains" / "sql", tmp_path / "together"):
            if not one.exists():  # a run for all domains together
                one.mkdir()
                (one / "draft").symlink_to(saved / "domains/sql/draft")
            with pytest.raises(ValueError, match=r"holds one draft, .* publish .*draft by itself"):
                drafts_in(one)
        (tmp_path / "together" / "draft").unlink()
        with pytest.raises(ValueError, match="holds none"):
            drafts_in(tmp_path)
        with pytest.raises(ValueError, match="is none"):
            drafts_in(tmp_path / "gone")
        with pytest.raises(ValueError, match=r"holds no config\.json"):
            drafts_in({"x": tmp_path})

    def test_drafts_of_two_targets(self, folder: Path) -> None:
        place = folder / "domains/sql/draft/config.json"
        config = json.loads(place.read_text())
        place.write_text(json.dumps(config | {"vocab_size": 400}))
        with pytest.raises(ValueError, match=r"of one target.*'chat' has 300.*'sql' has 400"):
            drafts_in(folder)
        place.write_text(json.dumps({"model_type": "llama"}))
        with pytest.raises(ValueError, match="'llama' model, no trimmed draft"):
            drafts_in(folder)
        for text, rule in (
            ("{", "of the domain 'sql' is no JSON"),
            ("[" * 100_000, "of the domain 'sql' is no JSON"),
            (json.dumps(config | {"vocab_size": [1]}), r"vocab_size must be a whole .*\[1\]"),
        ):
            place.write_text(text)
            with pytest.raises(ValueError, match=rule):
                drafts_in(folder)
        place.write_text(json.dumps(config))
        (folder / "domains/sql/draft" / COVERAGE_JSON).write_text("{")
        with pytest.raises(ValueError, match=r"coverage\.json of the domain 'sql': .*no JSON"):
            drafts_in(folder)

    def test_each_draft_s_target_is_told(self, folder: Path) -> None:
        place = folder / "domains/sql/draft" / COVERAGE_JSON
        facts = json.loads(place.read_text())
        facts["target"]["id"] = TARGET
        place.write_text(json.dumps(facts))
        found = drafts_in(folder)
        assert (found["sql"].target, found["sql"].vocab_size) == (TARGET, 300)
        assert found["chat"].target is None


class TestNames:
    @pytest.mark.parametrize(
        ("repo_id", "options", "rule"),
        [
            (ONE, {"layout": "subfolders"}, "Transformers does not find a draft's code there"),
            (ONE, {"layout": "folders"}, "layout must be one of repositories, revisions"),
            (ONE, {"layout": "repositories"}, r"needs \{domain\} in"),
            (TEMPLATE, {"layout": "revisions"}, r"takes no \{domain\} in"),
            (TEMPLATE, {"index": "user/tiny-sql"}, "user/tiny-sql is a draft's"),
            (TEMPLATE, {"index": "no-namespace"}, "NAMESPACE/NAME"),
            (ONE, {"index": False}, "leave index out"),
            (7, {}, "repo_id must be a text"),
            ("{domain}", {}, "NAMESPACE/NAME"),
        ],
    )
    def test_what_means_nothing_is_refused_before_anything(
        self, saved: Path, repo_id: Any, options: dict[str, Any], rule: str
    ) -> None:
        with pytest.raises(ValueError, match=rule):
            publish_family(saved, repo_id, **OPTIONS | options)

    @pytest.mark.parametrize(
        ("places", "rule"),
        [
            ({"a": (ONE, "a"), "a/b": (ONE, "a/b")}, "'a' and 'a/b' would get branches"),
            ({"x/y": (ONE, "x/y"), "x": (ONE, "x")}, "'x/y' and 'x' would get branches"),
            ({"sql": ("u/sql", None), "SQL": ("u/SQL", None)}, "would get repositories"),
        ],
    )
    def test_names_that_cannot_lie_beside_each_other(self, places: Any, rule: str) -> None:
        with pytest.raises(ValueError, match=rule):
            check_apart(places)

    def test_names_that_can(self) -> None:
        check_apart({"a": (ONE, "a"), "ab": (ONE, "ab"), "A": (ONE, "A"), "b/c": (ONE, "b/c")})
        check_apart({"a": ("u/a", None), "ab": ("u/ab", None)})

    def test_they_are_told_before_any_request(self, saved: Path, hub: LocalHub) -> None:
        drafts = dict.fromkeys(("sql", "SQL"), saved / "domains/sql/draft")
        with pytest.raises(ValueError, match="'SQL' and 'sql' would get repositories"):
            publish_family(drafts, TEMPLATE, **OPTIONS)
        with pytest.raises(ValueError, match="user/tiny-SQL is a draft's"):
            publish_family(
                {"sql": saved / "domains/sql/draft"}, TEMPLATE, **OPTIONS, index="user/tiny-SQL"
            )
        assert not [*hub.log]

    def test_a_domain_that_can_be_no_branch(self, saved: Path) -> None:
        draft = saved / "domains/sql/draft"
        for name, rule in (("main", "called 'main'"), ("a b", "name that git takes")):
            with pytest.raises(ValueError, match=rule):
                publish_family({name: draft}, ONE, **OPTIONS)


def test_a_repository_a_domain_and_an_index(hub: LocalHub, folder: Path) -> None:
    seen = []
    family = publish_family(
        folder, TEMPLATE, **OPTIONS, on_published=lambda name, _: seen.append(name)
    )
    assert seen == ["chat", "sql"]
    assert repositories(hub) == ["user/tiny-chat", "user/tiny-family", "user/tiny-sql"]
    assert family.index == "user/tiny-family"
    assert family.url == f"{hub.endpoint}/user/tiny-family"
    index = parse_family(hub.read("user/tiny-family", FAMILY_JSON))
    assert index["drafts"] == [
        {
            "domain": name,
            "repo_id": f"user/tiny-{name}",
            "commit": family.drafts[name].commit,
        }
        for name in ("chat", "sql")
    ]
    front, text = split_card(hub.read("user/tiny-family", "README.md").decode())
    assert front["license"] == "mit"
    assert {"vtrim-family", "chat", "sql"} <= set(front["tags"])
    assert "| sql | `user/tiny-sql` |" in text
    assert f'from_hub_for("{TARGET}", domain="chat")' in text
    found = find_drafts(TARGET)
    assert [draft.repo_id for draft in found] == ["user/tiny-chat", "user/tiny-sql"]
    assert all(draft.speedup is not None for draft in found)
    loaded = TrimmedDraftForCausalLM.from_hub_for(TARGET, "sql", author="user")
    assert loaded.coverage_metadata is not None
    assert hub.service.shelf.find("model", loaded.name_or_path) is not None


def test_a_branch_a_domain(hub: LocalHub, folder: Path) -> None:
    family = publish_family(folder, ONE, **OPTIONS)
    assert repositories(hub) == [ONE]
    assert hub.files(ONE) == [".gitattributes", "README.md", FAMILY_JSON]
    for name in ("chat", "sql"):
        files = hub.files(ONE, name)
        assert "model.safetensors" in files
        assert FAMILY_JSON not in files
    found = find_drafts(TARGET)
    assert [(draft.repo_id, draft.revision) for draft in found] == [(ONE, "chat"), (ONE, "sql")]
    assert [draft.commit for draft in found] == [one.commit for one in family.drafts.values()]
    assert [draft.license for draft in found] == ["mit", "mit"]
    draft = TrimmedDraftForCausalLM.from_pretrained(ONE, revision="sql")
    assert draft.coverage_metadata is not None
    assert f'from_pretrained("{ONE}", revision="chat")' in hub.read(ONE, "README.md").decode()
    own = hub.read(ONE, "README.md", "sql").decode()
    assert f'from_pretrained("{ONE}", revision="sql")' in own, "the snippet of a branch runs"
    assert f"vtrim measure {TARGET} {ONE} PROMPTS --revision sql" in own


@pytest.mark.filterwarnings("ignore:Warnings while validating metadata")  # the client's, of none
def test_each_branch_has_its_own_licence(hub: LocalHub, folder: Path, tmp_path: Path) -> None:
    domains = folder / "domains"
    shutil.move(domains / "chat", tmp_path / "chat")
    publish_family(folder, ONE, **OPTIONS)
    shutil.move(domains / "sql", tmp_path / "sql")
    shutil.move(tmp_path / "chat", domains / "chat")
    publish_family(folder, ONE, **{**OPTIONS, "license": "apache-2.0"}, exist_ok=True)
    licences = {draft.revision: draft.license for draft in find_drafts(TARGET)}
    assert licences == {"chat": "apache-2.0", "sql": "mit"}
    front, _ = split_card(hub.read(ONE, "README.md").decode())
    assert "license" not in front, "an index of several licences names none"


@pytest.mark.parametrize("name", [pytest.param(TEMPLATE, marks=pytest.mark.slow), ONE])
def test_again_changes_nothing(hub: LocalHub, folder: Path, name: str) -> None:
    first = publish_family(folder, name, **OPTIONS)
    again = publish_family(folder, name, **OPTIONS)
    assert not any(one.changed for one in again.drafts.values())
    assert again.index_commit == first.index_commit
    (folder / RECORD).unlink()
    with pytest.raises(PublishError, match=r"chat: user/tiny-.* exists already"):
        publish_family(folder, name, **OPTIONS)
    publish_family(folder, name, **OPTIONS, exist_ok=True)
    assert len(repositories(hub)) in (1, 3)


@pytest.mark.parametrize("name", [TEMPLATE, ONE])
def test_a_dry_run_changes_nothing(hub: LocalHub, folder: Path, name: str) -> None:
    plan = publish_family(folder, name, **OPTIONS, dry_run=True)
    assert plan.dry_run
    assert plan.index_commit is None
    assert repositories(hub) == []
    assert not (folder / RECORD).exists()
    assert any(step.startswith("chat: create the repository") for step in plan.steps)
    assert plan.steps[-1].startswith("list them in user/tiny-")


def test_all_is_checked_before_anything_is_made(hub: LocalHub, folder: Path) -> None:
    HfApi().create_repo("user/tiny-sql")
    HfApi().upload_file(repo_id="user/tiny-sql", path_in_repo="mine.txt", path_or_fileobj=b"mine")
    hub.clear_log()
    with pytest.raises(PublishError, match=r"^sql: user/tiny-sql exists already") as caught:
        publish_family(folder, TEMPLATE, **OPTIONS)
    assert caught.value.done == ()
    assert repositories(hub) == ["user/tiny-sql"]
    assert hub.log.matching("POST", "create|commit") == []


@pytest.mark.parametrize("name", [TEMPLATE, pytest.param(ONE, marks=pytest.mark.slow)])
def test_a_cut_is_gone_on_from(hub: LocalHub, folder: Path, name: str) -> None:
    second = "user/tiny-sql/commit/main" if name == TEMPLATE else f"{ONE}/commit/sql"
    hub.faults.add("POST", second, status=503, times=None)
    with pytest.raises(PublishError, match="sql: uploading failed") as caught:
        publish_family(folder, name, **OPTIONS)
    assert any(step.startswith("chat: all files were committed") for step in caught.value.done)
    hub.faults.clear()
    family = publish_family(folder, name, **OPTIONS)
    assert (family.drafts["chat"].changed, family.drafts["sql"].changed) == (False, True)
    assert len(find_drafts(TARGET)) == 2
    assert family.index_commit is not None


def test_a_new_domain_joins_and_the_index_keeps_text_and_old_ones(
    hub: LocalHub, folder: Path, tmp_path: Path
) -> None:
    (folder / "domains/sql").rename(tmp_path / "later")
    publish_family(folder, ONE, **OPTIONS)
    card = hub.read(ONE, "README.md").decode()
    HfApi().upload_file(
        repo_id=ONE, path_in_repo="README.md", path_or_fileobj=(card + "\nMine.\n").encode()
    )
    (folder / "domains/chat").rename(tmp_path / "gone")
    (tmp_path / "later").rename(folder / "domains/sql")
    publish_family(folder, ONE, **OPTIONS)
    index = parse_family(hub.read(ONE, FAMILY_JSON))["drafts"]
    assert [entry["domain"] for entry in index] == ["chat", "sql"]
    text = hub.read(ONE, "README.md").decode()
    assert text.endswith("\nMine.\n")
    assert "| sql | " in text
    assert "| chat | " in text
    assert FAMILY_JSON not in hub.files(ONE, "sql")


def test_a_repository_that_holds_a_draft_is_no_index(hub: LocalHub, folder: Path) -> None:
    family = publish_family(folder, TEMPLATE, **OPTIONS, index=False)
    assert (family.index, family.url) == (None, f"{hub.endpoint}/user/tiny-chat")
    with pytest.raises(PublishError, match="holds a draft"):
        publish_family(
            {"sql": folder / "domains/sql/draft"}, "user/tiny-chat", **OPTIONS, exist_ok=True
        )


def test_a_missing_licence_is_told_before_a_branch_is_made(hub: LocalHub, folder: Path) -> None:
    """The index on main has a licence, but a new branch starts without any card."""
    publish_family({"chat": folder / "domains/chat/draft"}, ONE, **OPTIONS)
    hub.clear_log()
    for dry in (True, False):
        with pytest.raises(PublishError, match="sql: the licence of the weights is not known"):
            publish_family(
                {"sql": folder / "domains/sql/draft"},
                ONE,
                **{**OPTIONS, "license": None},
                exist_ok=True,
                dry_run=dry,
            )
    assert hub.log.matching("POST", "/branch/|/commit/|create") == []
    assert "sql" not in hub.service.shelf.all("model")[0].state.branches


def test_a_plan_makes_a_repository_of_several_branches_once(hub: LocalHub, folder: Path) -> None:
    steps = publish_family(folder, ONE, **OPTIONS, dry_run=True).steps
    assert [step for step in steps if "create the repository" in step] == [
        f"chat: create the repository {ONE}"
    ]
    assert [step for step in steps if "create the branch" in step] == [
        "chat: create the branch chat",
        "sql: create the branch sql",
    ]


def test_a_branch_is_found_by_what_its_draft_counted(hub: LocalHub, folder: Path) -> None:
    """A folder may be called as it likes: here both drafts counted chat and sql."""
    (folder / "domains/sql").rename(folder / "domains/mine")
    publish_family(folder, ONE, **OPTIONS)
    for name in ("sql", "SQL"):
        assert {draft.revision for draft in find_drafts(TARGET, name)} == {"chat", "mine"}
    assert [draft.revision for draft in find_drafts(TARGET, "mine")] == ["mine"]
    front, _ = split_card(hub.read(ONE, "README.md").decode())
    assert {"chat", "mine", "sql"} <= set(front["tags"])
    # An index whose tags somebody took away, or that an earlier release wrote.
    card = "---\nlicense: mit\ntags: [vtrim, vtrim-family]\n---\n# Drafts\n"
    HfApi().upload_file(repo_id=ONE, path_in_repo="README.md", path_or_fileobj=card.encode())
    assert {draft.revision for draft in find_drafts(TARGET, "sql")} == {"chat", "mine"}
    assert find_drafts(TARGET, "law") == []
    loaded = TrimmedDraftForCausalLM.from_hub_for(TARGET, "sql")
    assert loaded.coverage_metadata is not None


def test_drafts_by_domain_go_on_with_a_record(hub: LocalHub, folder: Path, tmp_path: Path) -> None:
    drafts = {name: folder / "domains" / name / "draft" for name in ("chat", "sql")}
    hub.faults.add("POST", "user/tiny-sql/commit/main", status=503, times=None)
    options = {**OPTIONS, "record": tmp_path / "record.json"}
    with pytest.raises(PublishError, match="sql: uploading failed"):
        publish_family(drafts, TEMPLATE, **options)
    hub.faults.clear()
    with pytest.raises(PublishError, match="chat: user/tiny-chat exists already"):
        publish_family(drafts, TEMPLATE, **OPTIONS)
    family = publish_family(drafts, TEMPLATE, **options)
    assert (family.drafts["chat"].changed, family.drafts["sql"].changed) == (False, True)
    assert not (folder / RECORD).exists()


def test_a_record_that_cannot_be_written_stops_all_before(hub: LocalHub, folder: Path) -> None:
    hub.clear_log()
    with pytest.raises(PublishError, match=r"which cannot be written .*record="):
        publish_family(folder, TEMPLATE, **OPTIONS, record=folder)
    assert not [*hub.log]


@pytest.mark.parametrize(
    ("drafts", "options", "rule"),
    [
        (None, {}, "drafts must be a path, got None"),
        (b"run", {}, "drafts must be a path"),
        (["run"], {}, "drafts must be a path"),
        ({}, {}, "holds none"),
        ({5: "x"}, {}, "a domain's name must be a text, got 5"),
        ({"sql": 5}, {}, "the draft of 'sql' must be a path, got 5"),
        ("", {}, "drafts must be a path"),
        ("RUN", {"index": 5}, "index must be NAMESPACE/NAME, or False"),
        ("RUN", {"token": 5}, "token must be a text"),
        ("RUN", {"endpoint": "x"}, "endpoint must begin"),
        ("RUN", {"layout": 5}, "layout must be one of"),
        ("RUN", {"record": 5}, "record must be a path"),
        ("RUN", {"exist_ok": "yes"}, "exist_ok must be True or False"),
        ("RUN", {"private": 0}, "private must be True or False, or None"),
        ("RUN", {"license": 5}, "license must be an identifier"),
        ("RUN", {"language": b"en"}, "language must be a text"),
        ("RUN", {"target_id": ""}, "target_id must be a text"),
        ("RUN", {"target_id": "smollm2"}, "target_id must be the target's id on the Hub"),
        ("RUN", {"max_shard_size": -1}, "max_shard_size must be a number of bytes"),
        ("RUN", {"on_published": "print"}, "on_published must be a function"),
    ],
)
def test_arguments_of_another_kind_are_refused_before_any_request(
    hub: LocalHub, saved: Path, drafts: Any, options: dict[str, Any], rule: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=rule):
        publish_family(saved if drafts == "RUN" else drafts, TEMPLATE, **{**OPTIONS, **options})
    assert not [*hub.log]


class TestRecord:
    def test_what_was_made_is_kept_and_nothing_else(self, tmp_path: Path) -> None:
        place = tmp_path / "record.json"
        record = FamilyRecord(place)
        with pytest.raises(PublishError), record.publishing("e", "r", None):
            raise PublishError("no", "way")
        assert not FamilyRecord(place).owns("e", "r", None)
        with pytest.raises(PublishError), record.publishing("e", "r", "b"):
            raise PublishError("no", "way", ["something"])
        with pytest.raises(KeyboardInterrupt), record.publishing("e", "s", None):
            raise KeyboardInterrupt
        again = FamilyRecord(place)
        assert again.owns("e", "r", "b")
        assert again.owns("e", "s", None)
        assert not again.owns("f", "s", None)

    @pytest.mark.parametrize(
        "text",
        [
            "{}",
            "{",
            "[1]",
            '{"published": 3}',
            '{"published": "abc"}',
            '{"published": [["a"]]}',
            '{"published": [["a", "b", 3]]}',
            "[" * 100_000,
        ],
    )
    def test_what_is_damaged_is_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / RECORD).write_text(text)
        with pytest.raises(ValueError, match=r"damaged .* remove it, .* file with record="):
            FamilyRecord(tmp_path / RECORD)

    def test_none_is_kept_unasked(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        record = FamilyRecord(None)
        record.check_writable()
        with record.publishing("e", "r", None):
            assert record.owns("e", "r", None)
        assert not [*tmp_path.iterdir()]

    def test_one_that_cannot_be_written_is_told_with_the_way_out(self, tmp_path: Path) -> None:
        for place in (tmp_path, tmp_path / "gone" / "record.json"):
            record = FamilyRecord(place)
            for attempt in (record.check_writable, record.publishing("e", "r", None).__enter__):
                with pytest.raises(
                    PublishError, match=r"cannot be written .*nothing was .*record="
                ):
                    attempt()
            assert not record.owns("e", "r", None)

    def test_the_first_error_is_kept(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What cannot be taken back from the record is said beside it."""
        folder = tmp_path / "folder"
        folder.mkdir()
        record = FamilyRecord(folder / "record.json")

        def fail() -> None:
            with record.publishing("e", "r", None):
                shutil.rmtree(folder)
                raise PublishError("no", "way")

        with pytest.raises(PublishError, match=r"^no "):
            fail()
        assert "take ['e', 'r', ''] out of it by hand" in caplog.text


class TestIndex:
    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            (b"{", "no JSON"),
            (b"[]", "object"),
            (b'{"format_version": 2, "drafts": []}', "upgrade"),
            (b'{"format_version": 1, "drafts": [{"domain": "x"}]}', "repo_id"),
            (b'{"format_version":1,"drafts":[{"domain":"x","repo_id":"../x"}]}', "match"),
            (
                b'{"format_version":1,"drafts":[{"domain":"x","repo_id":"a/b","revision":"-x"}]}',
                "name that git takes",
            ),
            (b'{"format_version":1,"drafts":[],"more":1}', "not known"),
        ],
    )
    def test_what_is_damaged_is_refused(self, text: bytes, rule: str) -> None:
        with pytest.raises(ValueError, match=rule):
            parse_family(text)

    def test_it_comes_back(self) -> None:
        entries = merged(
            [{"domain": "b", "repo_id": "a/b"}, {"domain": "c", "repo_id": "a/old"}],
            [{"domain": "c", "repo_id": "a/c", "revision": "c"}],
        )
        assert parse_family(family_text(entries))["drafts"] == entries
        assert [entry["repo_id"] for entry in entries] == ["a/b", "a/c"]

    def test_what_git_takes_for_a_branch_can_be_listed(self) -> None:
        """One rule: what was published can be listed, and what is listed can be read."""
        for name in ("c++", "español", 'a"b', "a/b", "50%"):
            entries = [{"domain": name, "repo_id": ONE, "revision": name}]
            assert parse_family(family_text(entries))["drafts"] == entries
        with pytest.raises(ValueError, match="name that git takes"):
            family_text([{"domain": "x", "repo_id": ONE, "revision": "a b"}])

    @pytest.mark.parametrize("name", ['a"b', "a`b", "x'y", "c#"])
    def test_the_snippet_is_python_whatever_the_branch_is_called(self, name: str) -> None:
        entries = [{"domain": name, "repo_id": ONE, "revision": name}]
        card = family_card(ONE, entries, {}, tags=[], license={})
        snippet = card.partition("```python\n")[2].partition("```")[0]
        (call,) = [node for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.Call)]
        assert ast.literal_eval(call.keywords[0].value) == name
        assert "``a`b``" in card or "`" not in name

    def test_signs_of_a_name_are_no_markdown(self) -> None:
        entries = [{"domain": "a|<b>", "repo_id": "a/b"}]
        card = family_card("a/family", entries, {}, tags=["vtrim-family"], license={})
        assert r"| a\|\<b\> | `a/b` |" in card
        front, _ = split_card(card)
        assert front == {"tags": ["vtrim-family", "a-b"]}


def test_drafts_of_several_targets_are_no_family(hub: LocalHub, folder: Path) -> None:
    for name in ("chat", "sql"):
        place = folder / "domains" / name / "draft" / COVERAGE_JSON
        facts = json.loads(place.read_text(encoding="utf-8"))
        facts["target"]["id"] = f"team/{name}-target"
        place.write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(ValueError, match=r"of several: .*'sql' is for team/sql-target"):
        publish_family(folder, "user/x-{domain}", license="mit", progress=False)
    assert repositories(hub) == []


class TestIndexOnTheHub:
    """What renewing an index does with what it lists; no draft is loaded for it."""

    INDEX = "user/family"

    def upload(self, **known: Any) -> IndexUpload:
        settings = {"license": "mit", "private": None, "holds_drafts": False, **known}
        return IndexUpload(HfApi(), self.INDEX, str(get_token()), **settings)

    def shelve(self, domain: str, **facts: Any) -> dict[str, str]:
        """Put a draft on the Hub, and return its line of the index."""
        repo_id = f"user/{domain}"
        commit = shelve(
            repo_id, make_facts(**{"target": TARGET, "domains": {domain: 0.9}} | facts)
        )
        return {"domain": domain, "repo_id": repo_id, "commit": commit}

    def listed(self, hub: LocalHub) -> list[str]:
        return [one["domain"] for one in parse_family(hub.read(self.INDEX, FAMILY_JSON))["drafts"]]

    def test_what_cannot_be_listed_is_told_before(self, hub: LocalHub) -> None:
        for entry in ({"revision": "a b"}, {"domain": "x" * 301}):
            wrong = {"domain": "x", "repo_id": "user/x"} | entry
            with pytest.raises(PublishError, match="cannot be listed in user/family"):
                self.upload().check([wrong], exist_ok=False)
        assert repositories(hub) == []

    def test_drafts_of_another_target_are_kept_by_a_refusal(self, hub: LocalHub) -> None:
        self.upload(target=TARGET).write([self.shelve("sql")], progress=False)
        other = {"domain": "sql", "repo_id": "user/other-sql"}
        for known, told in (
            ({"target": "team/other"}, f"lists user/sql for {TARGET} .*for team/other"),
            ({"vocab_size": 400}, r"\(300 tokens\), .*\(400 tokens\)"),
        ):
            with pytest.raises(PublishError, match=told):
                self.upload(**known).check([other], exist_ok=True)
        # A recipe may not know its target's id before: then nothing is written over.
        entry = self.shelve("chat", target="team/other")
        with pytest.raises(PublishError, match=r"lists user/.* with index="):
            self.upload().write([entry], progress=False)
        assert self.listed(hub) == ["sql"]
        # What takes the place of a draft is that draft's own affair.
        again = self.shelve("sql", target="team/other")
        self.upload(target="team/other").check([again], exist_ok=True)

    def test_a_draft_that_is_gone_leaves_the_index(
        self, hub: LocalHub, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.upload().write([self.shelve("chat"), self.shelve("sql")], progress=False)
        HfApi().delete_repo("user/chat")  # the cache still holds its facts
        upload = self.upload()
        with caplog.at_level(logging.WARNING):
            upload.write([self.shelve("zoo")], progress=False)
        assert upload.left_out == ("user/chat",)
        assert "user/family lists user/chat, which is gone" in caplog.text
        assert self.listed(hub) == ["sql", "zoo"]
        assert "chat" not in hub.read(self.INDEX, "README.md").decode().partition("---\n\n")[2]

    def test_the_snippet_loads_what_is_there(self, hub: LocalHub) -> None:
        """The first line may be of a draft whose facts cannot be read."""
        shelve("user/a", b"{")
        blank = {"domain": "a", "repo_id": "user/a", "commit": HfApi().model_info("user/a").sha}
        self.upload().write([blank, self.shelve("sql")], progress=False)
        assert 'from_pretrained("user/sql")' in hub.read(self.INDEX, "README.md").decode()

    @pytest.mark.filterwarnings("ignore:Warnings while validating metadata")  # of no licence
    def test_a_listed_draft_without_a_card_has_no_licence(self, hub: LocalHub) -> None:
        entry = self.shelve("chat")
        HfApi().delete_file("README.md", "user/chat")
        entry["commit"] = str(HfApi().model_info("user/chat").sha)
        self.upload().write([entry, self.shelve("sql")], progress=False)
        front, _ = split_card(hub.read(self.INDEX, "README.md").decode())
        assert "license" not in front

    def test_a_branch_elsewhere_is_not_said_to_be_found(self, hub: LocalHub) -> None:
        entry = {**self.shelve("sql"), "revision": "main"}
        self.upload().write([entry], progress=False)
        assert "from_hub_for" not in hub.read(self.INDEX, "README.md").decode()
        self.upload().write([self.shelve("sql")], progress=False)

    def test_a_new_index_of_private_drafts_is_private(self, hub: LocalHub) -> None:
        shelve("user/sql", make_facts(), private=True)
        entry = {"domain": "sql", "repo_id": "user/sql"}
        self.upload().write([entry], progress=False)
        assert HfApi().model_info(self.INDEX).private

    def test_a_damaged_index_and_card_are_named(self, hub: LocalHub) -> None:
        entry = self.shelve("sql")
        self.upload().write([entry], progress=False)
        card = hub.read(self.INDEX, "README.md").decode()
        broken = card.replace("<!-- vtrim:end family -->", "")
        shelve(self.INDEX, more={"README.md": broken.encode()})
        with pytest.raises(ValueError, match=r"^user/family: the marks of the card"):
            self.upload().check([entry], exist_ok=True)
        shelve(self.INDEX, more={FAMILY_JSON: b"{"})
        with pytest.raises(ValueError, match=r"the index user/family cannot be renewed: .*JSON"):
            self.upload().check([entry], exist_ok=True)

    def test_no_draft_goes_onto_an_index(self, hub: LocalHub, folder: Path) -> None:
        self.upload().write([self.shelve("sql")], progress=False)
        options: dict[str, Any] = {"license": "mit", "progress": False, "dry_run": True}
        draft = folder / "domains/sql/draft"
        for more in ("exist_ok", "create_pr"):
            with pytest.raises(PublishError, match=r"holds a family's index, .* revision="):
                publish(draft, self.INDEX, **{**options, more: True})
        place = folder / "domains/sql/measure"
        with pytest.raises(ValueError, match=r"holds no config\.json.*are a family"):
            publish(folder, self.INDEX, **options)
        with pytest.raises(ValueError, match=r"holds no config\.json: save one with .*trim`$"):
            publish(place, self.INDEX, **options)
