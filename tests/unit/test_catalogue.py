"""Published drafts are found by what was published with them; what is hostile is left out."""

from __future__ import annotations

import json
import logging
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch
from huggingface_hub import CommitOperationAdd, HfApi, constants, snapshot_download
from safetensors.torch import save

import vtrim_hf
from hub_client import point_client_at
from shelved_drafts import TARGET, make_facts, shelve
from vtrim_hf import TrimmedDraftForCausalLM, find_drafts
from vtrim_hf.catalogue import best_draft
from vtrim_hf.coverage_metadata import COVERAGE_JSON
from vtrim_hf.family_index import FAMILY_JSON, FAMILY_TAG
from vtrim_hf.local_hub import Account, LocalHub
from vtrim_hf.model_card import render_card, split_card
from vtrim_hf.plain_facts import domain_tag
from vtrim_hf.published_files import read_vocabulary

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

TOKENS = {
    "hf_write": Account("user", organizations=("team",)),
    "hf_stranger": Account("bob", "read"),
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    # The client's patience takes seconds.
    no_sleep = types.SimpleNamespace(time=time.time, sleep=lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.utils._http.time", no_sleep)
    with LocalHub(tmp_path / "hub", page_size=2, tokens=TOKENS, xet=False) as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        yield hub


def names(**asked: Any) -> list[str]:
    return [draft.repo_id for draft in find_drafts(**asked)]


def paths(hub: LocalHub) -> list[str]:
    return [row.path for row in hub.log]


def test_it_is_public() -> None:
    assert vtrim_hf.find_drafts is find_drafts


def test_everything_published_is_told(hub: LocalHub) -> None:
    commit = shelve(
        "user/sql", make_facts(domains={"sql": 0.98, "chat": 0.9}, overall=0.95, speedup=1.5)
    )
    (draft,) = find_drafts(TARGET, "sql")
    assert (draft.repo_id, draft.commit, draft.revision) == ("user/sql", commit, None)
    assert (draft.target, draft.k, draft.vocab_size, draft.parameters) == (TARGET, 100, 300, 1000)
    assert draft.share_of_vocabulary == 100 / 300
    assert draft.domains == ("sql", "chat")
    known = draft.covered("sql")
    assert known is not None
    assert (known.share, known.interval, known.heldout) == (0.98, (0.97, 0.98), True)
    assert draft.overall is not None
    assert draft.overall.share == 0.95
    assert (draft.acceptance_length, draft.speedup) == (3.5, 1.5)
    assert draft.speedup_interval == (1.4, 1.6)
    assert draft.measured_on == "Test CPU, cpu, 2 threads, 12 prompts"
    assert draft.license == "mit"
    assert draft.url == f"{hub.endpoint}/user/sql"
    assert json.loads(json.dumps(draft.facts()))["coverage"]["chat"]["share"] == 0.9


def test_what_is_not_known_is_none(hub: LocalHub) -> None:
    shelve("user/bare", make_facts(target=None))
    (draft,) = find_drafts()
    assert (draft.target, draft.domains, draft.overall) == (None, (), None)
    assert (draft.speedup, draft.acceptance_length, draft.measured_on) == (None, None, None)
    assert find_drafts(TARGET) == []


def test_narrowing(hub: LocalHub) -> None:
    shelve("user/small", make_facts(k=50, domains={"sql": 0.9}))
    shelve("user/large", make_facts(k=200, domains={"sql": 0.99}), license="apache-2.0")
    shelve("team/chat", make_facts(k=60, domains={"chat": 0.9}))
    shelve("team/other", make_facts(target="team/other-target", domains={"sql": 0.9}))
    assert len(names()) == 4
    assert names(target=TARGET) == ["user/large", "user/small", "team/chat"]
    assert names(target=TARGET.upper(), domain="SQL") == ["user/large", "user/small"]
    assert names(domain="chat") == ["team/chat"]
    assert names(author="team", domain="sql") == ["team/other"]
    assert names(k_max=100, domain="sql", target=TARGET) == ["user/small"]
    assert names(license="Apache-2.0") == ["user/large"]
    assert names(limit=1, domain="sql", target=TARGET) == ["user/large"]
    assert names(domain="law") == []
    assert all("/resolve/" not in path or "coverage.json" in path for path in paths(hub))


def test_the_order(hub: LocalHub) -> None:
    """The domain's own data, coverage in whole per cents, speed-up, size, name."""
    shelve("user/tagged", make_facts(domains={"default": 1.0}, speedup=3.0), tags=["sql"])
    shelve("user/a-slow", make_facts(domains={"sql": 0.981}, speedup=1.2))
    shelve("user/b-fast", make_facts(domains={"sql": 0.979}, speedup=1.9))
    shelve("user/c-covers", make_facts(domains={"sql": 0.99}))
    shelve("user/d-small", make_facts(k=20, domains={"sql": 0.98}, speedup=1.2))
    shelve("user/e-unknown", make_facts(domains={"sql": 0.5}))
    assert names(domain="sql") == [
        "user/c-covers",
        "user/b-fast",
        "user/d-small",
        "user/a-slow",
        "user/e-unknown",
        "user/tagged",
    ]


@pytest.mark.parametrize("name", ["SQL & more", "code/python", "Ärzte", "a_b.c", "???"])
def test_a_domain_is_found_by_the_tag_that_its_card_has(name: str) -> None:
    facts = make_facts(domains={name: 0.9})
    front, _ = split_card(render_card("user/x", facts, "mit"))
    assert domain_tag(name) in [*front["tags"], "default"]


def test_a_domain_with_signs_is_found(hub: LocalHub) -> None:
    shelve("user/x", make_facts(domains={"SQL & more": 0.9}))
    shelve("user/y", make_facts(domains={"???": 0.9}))
    assert names(domain="sql & more") == ["user/x"]
    assert names(domain="???") == ["user/y"]


def test_facts_are_read_once_a_commit(hub: LocalHub) -> None:
    shelve("user/x", make_facts(k=50))
    assert find_drafts()[0].k == 50
    hub.clear_log()
    assert find_drafts()[0].k == 50
    assert {path.partition("?")[0] for path in paths(hub)} == {"/api/models"}
    shelve("user/x", make_facts(k=60))
    assert find_drafts()[0].k == 60


def test_all_pages_are_read(hub: LocalHub) -> None:
    for number in range(5):
        shelve(f"user/draft-{number}", make_facts())
    hub.clear_log()
    assert len(names()) == 5
    assert sum(path.startswith("/api/models?") or path == "/api/models" for path in paths(hub)) > 1


def test_private_drafts_are_their_owner_s(hub: LocalHub) -> None:
    shelve("user/secret", make_facts(), private=True)
    assert names() == ["user/secret"]
    assert names(token=False) == []
    assert names(token="hf_stranger") == []


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (None, "it has no vtrim/coverage.json"),
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"{}", "format_version"),
        (b'{"format_version": 99}', "upgrade"),
        (b" " * ((1 << 20) + 1), "at most 1048576 are read"),
        (
            json.dumps(make_facts() | {"datasets": ["/etc/passwd"]}).encode(),
            "datasets",
        ),
        (
            json.dumps(make_facts(domains={"sql": 0.5})).encode().replace(b"0.5,", b"7,"),
            "at most 1",
        ),
        (
            json.dumps(make_facts(domains={"sql": 0.5})).encode().replace(b"sql", b"../../x"),
            "somebody's machine",
        ),
    ],
)
def test_what_cannot_be_believed_is_left_out(
    hub: LocalHub, facts: bytes | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    shelve("user/good", make_facts())
    shelve("team/bad", facts)
    hub.clear_log()
    with caplog.at_level(logging.WARNING):
        assert names() == ["user/good"]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("team/bad is not listed: ")
    assert why in said
    if facts is not None and len(facts) > 1 << 20:
        assert not [path for path in paths(hub) if path.startswith("/team/bad/resolve")]


@pytest.mark.parametrize(
    "figure", [b"1e9", b"NaN", b"Infinity", b"-1", b"1" + b"0" * 400, b'"fast"', b"true"]
)
def test_a_figure_that_cannot_be_neither_wins_nor_stops_the_catalogue(
    hub: LocalHub, figure: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    shelve("user/good", make_facts(domains={"sql": 0.9}, speedup=1.5))
    text = json.dumps(make_facts(domains={"sql": 0.9}, speedup=1.625)).encode()
    shelve("team/liar", text.replace(b'"median": 1.625', b'"median": ' + figure), tags=["sql"])
    with caplog.at_level(logging.WARNING):
        assert names(domain="sql") == ["user/good"]
        assert best_draft(TARGET, "sql").repo_id == "user/good"
    assert "team/liar is not listed: $.decoding.speedup.median must be" in caplog.text


def test_a_speed_up_that_its_acceptance_length_belies_is_unknown(
    hub: LocalHub, caplog: pytest.LogCaptureFixture
) -> None:
    shelve("user/good", make_facts(domains={"sql": 0.9}, speedup=1.5))
    shelve("team/liar", make_facts(domains={"sql": 0.9}, speedup=50))
    with caplog.at_level(logging.WARNING):
        first, second = find_drafts(TARGET, "sql")
    assert (first.repo_id, second.repo_id) == ("user/good", "team/liar")
    assert (second.speedup, second.speedup_interval) == (None, None)
    assert second.acceptance_length == 3.5
    assert (
        "team/liar tells of a speed-up of 50 with an acceptance length of 3.5, which cannot be"
        in caplog.text
    )


def test_a_gated_draft_is_left_out(hub: LocalHub, caplog: pytest.LogCaptureFixture) -> None:
    shelve("team/gated", make_facts())
    HfApi().update_repo_settings("team/gated", gated="manual")
    with caplog.at_level(logging.WARNING):
        assert names(token="hf_stranger") == []
    assert "team/gated is not listed" in caplog.text
    assert names() == ["team/gated"]


def test_a_hub_that_fails_is_an_error_and_one_repository_of_it_is_not(
    hub: LocalHub, caplog: pytest.LogCaptureFixture
) -> None:
    shelve("user/x", make_facts())
    shelve("user/y", make_facts())
    hub.faults.add("GET", "/api/models", status=503, times=None)
    with pytest.raises(OSError, match=r"listing published drafts failed: .* answers 503"):
        find_drafts()
    hub.faults.clear()
    hub.faults.add("POST", "/api/models/user/x/paths-info", status=503, times=None)
    with caplog.at_level(logging.WARNING):
        assert names() == ["user/y"], "what others published is found all the same"
    assert "user/x is not listed" in caplog.text
    hub.faults.clear()
    hub.faults.add("POST", "/api/models/user/x/paths-info", status=429, times=None)
    with pytest.raises(OSError, match="too many requests"):
        find_drafts()
    hub.faults.clear()
    assert names() == ["user/x", "user/y"]


def test_names_in_any_script_are_told_apart(hub: LocalHub) -> None:
    for name, domain in (("math", "数学"), ("law", "法律"), ("cpp", "C++"), ("csharp", "C#")):
        shelve(f"user/{name}", make_facts(domains={domain: 0.9}))
    shelve("user/unnamed", make_facts(domains={"default": 0.99}))
    assert names(domain="数学") == ["user/math"]
    assert names(domain="c++")[0] == "user/cpp"
    assert names(domain="C#")[0] == "user/csharp"
    assert names(domain="default") == ["user/unnamed"]


def test_one_target_must_be_named(hub: LocalHub) -> None:
    with pytest.raises(ValueError, match="name the target"):
        best_draft(None)  # type: ignore[arg-type]
    for wrong in ({"license": 5}, {"author": ""}):
        with pytest.raises(ValueError, match="must be a text"):
            find_drafts(**wrong)


def test_no_server_and_no_network_are_told(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.stop()
    with pytest.raises(OSError, match="cannot be reached"):
        find_drafts()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="HF_HUB_OFFLINE is set: unset it, or load a draft"):
        find_drafts()


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ({"target": ""}, "target must be a text"),
        ({"target": 7}, "target must be a text"),
        ({"domain": " "}, "domain must be a text"),
        ({"k_max": 0}, "k_max must be a whole number from 1"),
        ({"limit": True}, "limit must be a whole number from 1"),
        ({"limit": -3}, "limit must be a whole number from 1, got -3, or None"),
        ({"domain": b"sql"}, "domain must be a text, got b'sql'"),
        ({"token": 7}, "token must be a text, .* got a int"),
        ({"token": ""}, "token must be"),
        ({"endpoint": "hub"}, "endpoint must begin"),
    ],
)
def test_arguments_that_mean_nothing(hub: LocalHub, asked: dict[str, Any], rule: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rule):
        find_drafts(**asked)
    if not {"limit", "endpoint"} & {*asked}:
        wanted: dict[str, Any] = {"target": TARGET, **asked}
        target = wanted.pop("target")
        with pytest.raises((TypeError, ValueError), match=rule):
            TrimmedDraftForCausalLM.from_hub_for(target, **wanted)
    assert not [*hub.log], "before any request"


class TestCardsOfStrangers:
    """One repository's card never stops the catalogue for everybody."""

    @pytest.mark.parametrize(
        "front", ["w: !!bool zz", "w: !!int ''", "w: !!timestamp zz", "w: !!float ''", "- mit"]
    )
    def test_a_branch_s_odd_card_tells_no_licence(
        self, hub: LocalHub, monkeypatch: pytest.MonkeyPatch, front: str
    ) -> None:
        shelve("user/good", make_facts(domains={"sql": 0.98}))
        card = f"---\n{front}\n---\n".encode()
        shelve_branch(monkeypatch, "user/odd", {"README.md": card})
        found = {draft.name: draft.license for draft in find_drafts(TARGET)}
        assert found == {"user/good": "mit", "user/odd@sql": None}

    def test_a_family_s_main_is_told_apart_from_a_draft(
        self, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shelve_branch(monkeypatch, "user/family", {})
        with pytest.raises(OSError, match=r"user/family holds a family's index .* revision="):
            TrimmedDraftForCausalLM.from_pretrained("user/family")
        with pytest.raises((OSError, ValueError), match="body_config") as caught:
            TrimmedDraftForCausalLM.from_pretrained("user/family", revision="sql")
        assert "index" not in str(caught.value), "a branch is no family's main"

    @pytest.mark.parametrize("branch", ["c#", "50%", "a/b"])
    def test_the_address_of_a_branch_leads_there(
        self, hub: LocalHub, monkeypatch: pytest.MonkeyPatch, branch: str
    ) -> None:
        shelve_branch(monkeypatch, "user/family", {}, branch)
        (found,) = find_drafts(TARGET)
        assert found.revision == branch
        assert unquote(found.url.rpartition("/tree/")[2]) == branch
        assert not set(found.url.rpartition("/tree/")[2]) & set("#/")


def shelve_branch(
    monkeypatch: pytest.MonkeyPatch, repo_id: str, files: dict[str, bytes], branch: str = "sql"
) -> str:
    """Put a family of one branch on the Hub, whatever its card says; return its commit."""
    api, facts = HfApi(), make_facts(domains={"sql": 0.98})
    entry = {"domain": "sql", "repo_id": repo_id, "revision": branch}
    index = {"format_version": 1, "drafts": [entry]}
    shelve(repo_id, tags=[FAMILY_TAG], more={FAMILY_JSON: json.dumps(index).encode()})
    monkeypatch.setattr(HfApi, "_validate_yaml", lambda self, *args, **kwargs: None)
    first = api.list_repo_commits(repo_id)[-1].commit_id
    api.create_branch(repo_id, branch=branch, revision=first)
    files = {COVERAGE_JSON: json.dumps(facts).encode(), **files}
    added = [CommitOperationAdd(name, data) for name, data in files.items()]
    made = api.create_commit(repo_id, added, commit_message="Shelve", revision=branch)
    return str(made.oid)


class TestBest:
    def test_one_that_cannot_be_loaded_is_named_with_the_way_out(self, hub: LocalHub) -> None:
        commit = shelve("user/empty", make_facts(domains={"sql": 0.98}))
        told = f"fits best, user/empty at {commit}, cannot be loaded: .*author="
        with pytest.raises(OSError, match=told):
            TrimmedDraftForCausalLM.from_hub_for(TARGET, "sql")

    def test_words_of_strangers_are_short_and_seen(self, hub: LocalHub) -> None:
        names = {f"\x1b]0;owned\x07\x1b[2J{n}" + "x" * 250: 0.9 for n in range(90)}
        shelve("user/loud", make_facts(domains=names))
        with pytest.raises(ValueError, match="for this target there are: user/loud") as caught:
            best_draft(TARGET, "law")
        assert len(str(caught.value)) < 1000
        assert "\x1b" not in str(caught.value)

    def test_the_first_is_taken(self, hub: LocalHub) -> None:
        shelve("user/a", make_facts(domains={"sql": 0.9}))
        shelve("user/b", make_facts(domains={"sql": 0.95}))
        assert best_draft(TARGET, "sql").repo_id == "user/b"

    def test_what_there_is_instead_is_told(self, hub: LocalHub) -> None:
        with pytest.raises(
            ValueError, match=r"no draft for team/target is published on .*vtrim tr"
        ):
            best_draft(TARGET)
        shelve("user/a", make_facts(domains={"sql": 0.9}))
        with pytest.raises(
            ValueError,
            match=r"no draft for team/target and the domain 'law' with k up to 9 is published on "
            + hub.endpoint
            + r"; for this target there are: user/a \(sql, k=100, mit\)",
        ):
            best_draft(TARGET, "law", k_max=9)
        with pytest.raises(ValueError, match="there are drafts for: team/target; make one"):
            best_draft("team/none")

    @pytest.mark.parametrize("name", ["revision", "subfolder", "endpoint", "local_files_only"])
    def test_what_is_chosen_cannot_be_given(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"so it takes no {name}"):
            TrimmedDraftForCausalLM.from_hub_for(TARGET, None, **{name: "x"})  # type: ignore[arg-type]

    @pytest.mark.parametrize("way", ["offline", "down"])
    def test_without_the_hub_what_is_in_the_cache_is_named(
        self, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
    ) -> None:
        """An earlier answer is not taken: it may be another draft's by now."""
        whole = {"config.json": b"{}", "model.safetensors": b"x"}
        commit = shelve("user/a", make_facts(domains={"sql": 0.9}), more=whole)
        shelve("user/b", make_facts(target="team/other", domains={"sql": 0.9}), more=whole)
        shelve("user/c", make_facts(domains={"sql": 0.8}), more=whole)
        for name in ("user/a", "user/b"):
            snapshot_download(name)
        assert best_draft(TARGET, "sql").commit == commit  # the facts of c alone are cached now
        if way == "offline":
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        else:
            hub.stop()
        with pytest.raises(
            OSError,
            match=r"(HF_HUB_OFFLINE is set|cannot be reached).*from_pretrained\(repo_id, revision="
            rf"commit\); in the cache are user/a at {commit}$",
        ):
            TrimmedDraftForCausalLM.from_hub_for(TARGET, "sql")

    def test_the_commit_is_the_one_of_the_facts(
        self,
        hub: LocalHub,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        commit = shelve("user/a", make_facts(domains={"sql": 0.9}))
        seen: dict[str, Any] = {}

        def load(_: Any, name: str, /, **kwargs: Any) -> str:
            seen.update(kwargs, name=name)
            return "loaded"

        monkeypatch.setattr(TrimmedDraftForCausalLM, "from_pretrained", classmethod(load))
        found = TrimmedDraftForCausalLM.from_hub_for(TARGET, "sql", dtype="auto", k_max=100)
        assert found == "loaded"
        assert seen == {"name": "user/a", "revision": commit, "dtype": "auto"}


class TestKeptIds:
    IDS = (0, 3, 5, 299)

    def test_they_are_read_without_weights(self, hub: LocalHub) -> None:
        shelve("user/x", make_facts(ids=self.IDS), ids=self.IDS)
        (draft,) = find_drafts()
        assert read_vocabulary(draft).ids.tolist() == [*self.IDS]
        fetched = [path.rpartition("/")[2] for path in paths(hub) if "/resolve/" in path]
        assert set(fetched) == {"coverage.json", "vocabulary.safetensors"}

    def test_a_whole_vocabulary_needs_no_file(self, hub: LocalHub) -> None:
        shelve("user/x", make_facts(k=300))
        assert read_vocabulary(find_drafts()[0]).is_full

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (save({"kept_ids": torch.tensor([0, 3, 5, 298])}), "published again"),
            (save({"kept_ids": torch.tensor([3, 0, 5, 299])}), "ascending"),
            (save({"kept_ids": torch.tensor([0, 3, 5, 300])}), "outside"),
            (save({"other": torch.tensor([0])}), "no table of kept ids"),
            (b"\x80\x04", "no table of kept ids"),
            (save({"kept_ids": torch.zeros(1 << 16, dtype=torch.int32)}), "bytes, at most"),
        ],
    )
    def test_a_table_that_is_not_the_draft_s_is_refused(
        self,
        hub: LocalHub,
        data: bytes,
        why: str,
    ) -> None:
        more = {"vtrim/vocabulary.safetensors": data}
        shelve("user/x", make_facts(ids=self.IDS), more=more)
        with pytest.raises(ValueError, match=why):
            read_vocabulary(find_drafts()[0])

    def test_one_that_is_missing_is_named(self, hub: LocalHub) -> None:
        shelve("user/x", make_facts())
        with pytest.raises(FileNotFoundError, match=r"user/x has no vtrim/vocabulary.safetensors"):
            read_vocabulary(find_drafts()[0])
