"""`vtrim catalogue` and `vtrim recommend`, `vtrim publish` of a family, and what they stand on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import vtrim_hf.hub
from hub_client import point_client_at
from published_facts import make_pair
from shelved_drafts import TARGET, make_facts, shelve
from tiny_models import make_byte_tokenizer, make_tiny
from vtrim_hf import TokenCounts, cli_shared
from vtrim_hf.cli_catalogue import catalogue, plain_text, recommend
from vtrim_hf.cli_publishing import publish
from vtrim_hf.local_hub import LocalHub
from vtrim_hf.published_draft import draft_from_facts
from vtrim_hf.recommending import recommend_drafts
from vtrim_hf.vocabulary import tokenizer_fingerprint

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

app = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False)
for command in (catalogue, recommend, publish):
    app.command()(command)

TEXTS = ["SELECT name FROM singers", "SELECT age FROM dogs WHERE id = 7"]


def widen(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Give the terminal a width; pytest-xdist settles it before the console is made."""
    monkeypatch.setattr(cli_shared.out, "_width", columns)
    monkeypatch.setattr(cli_shared.out, "_height", 25)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    monkeypatch.setattr(vtrim_hf.hub, "prove_it_loads", lambda draft, folder: None)
    widen(monkeypatch, 200)
    with LocalHub(tmp_path / "hub", xet=False) as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        yield hub


@pytest.fixture
def target(tmp_path: Path) -> Path:
    make_tiny("llama").config.save_pretrained(tmp_path / "target")
    make_byte_tokenizer().save_pretrained(tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]}
        for text in TEXTS
    ]
    place = tmp_path / "data.jsonl"
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def run(*arguments: object, exit_code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + repr(result.exception)
    return result


def shelve_kept(name: str, ids: list[int], **facts: Any) -> None:
    hash_ = tokenizer_fingerprint(make_byte_tokenizer())
    shelve(name, make_facts(ids=ids, **{"tokenizer_hash": hash_} | facts), ids=ids)


class TestCatalogue:
    def test_a_table(self, hub: LocalHub) -> None:
        shelve("user/sql", make_facts(domains={"sql": 0.98}, speedup=1.5))
        shown = run("catalogue", "--target", TARGET, "--domain", "sql").stdout
        for text in (
            "user/sql",
            TARGET,
            "100 (33.3 %)",
            "98.00 % (97.00 to 98.00)",
            "1.50",
            "mit",
        ):
            assert text in shown
        assert "no published draft fits" in run("catalogue", "--domain", "law").stdout

    def test_a_name_stays_whole_on_a_narrow_terminal(
        self, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        widen(monkeypatch, 60)
        shelve("user/a-rather-long-name-of-a-draft", make_facts(domains={"sql": 0.98}))
        assert "user/a-rather-long-name-of-a-draft" in run("catalogue").stdout

    def test_json(self, hub: LocalHub) -> None:
        shelve("user/sql", make_facts(domains={"sql": 0.98}))
        told = json.loads(run("catalogue", "--json").stdout)
        assert [draft["repo_id"] for draft in told["drafts"]] == ["user/sql"]
        assert json.loads(run("catalogue", "--author", "x", "--json").stdout) == {"drafts": []}

    def test_names_of_strangers_colour_nothing(self, hub: LocalHub) -> None:
        shelve("user/x", make_facts(domains={"[red]a\x1b[31m": 0.5}))
        shown = run("catalogue").stdout
        assert "[red]a?[31m" in shown
        assert plain_text("a\nb\x07").plain == "a?b?"

    def test_mistakes(self, hub: LocalHub) -> None:
        hub.faults.add("GET", "/api/models", status=401, times=None)
        shown = run("catalogue", exit_code=2)
        assert "listing published drafts failed" in shown.output
        assert "Traceback" not in shown.output

    @pytest.mark.parametrize("name", ["catalogue", "recommend"])
    def test_help_has_an_example(self, name: str) -> None:
        assert "Example: " in run(name, "--help").stdout


class TestRecommend:
    def test_the_draft_that_covers_most_comes_first(
        self, hub: LocalHub, target: Path, data: Path
    ) -> None:
        counts = TokenCounts.from_dataset(str(data), make_byte_tokenizer(), vocab_size=300)
        ids = [int(one) for one in counts.array("all").nonzero()[0]]
        shelve_kept("user/half", ids[::2])
        shelve_kept("user/all-and-more", sorted({*ids, 0, 1, 2}))
        shelve_kept("user/all", ids)
        hub.clear_log()
        told = json.loads(
            run("recommend", "--target", target, "--data", data, "--json", "--quiet").stdout
        )
        assert [one["repo_id"] for one in told["drafts"]] == [
            "user/all",
            "user/all-and-more",
            "user/half",
        ]
        assert told["drafts"][0]["coverage_of_data"] == 1.0
        half = told["drafts"][2]
        assert half["coverage_of_data"] == counts.coverage(ids[::2], "all")
        assert half["tokens"] == counts.total("all")
        fetched = {row.path.rpartition("/")[2] for row in hub.log.matching("GET", "/resolve/")}
        assert fetched == {"coverage.json", "vocabulary.safetensors"}
        shown = run("recommend", "--target", target, "--data", data, "--quiet", "--limit", 1)
        assert "100.00 %" in shown.stdout
        assert "user/half" not in shown.stdout
        assert 'from_pretrained("user/all", revision="' in shown.stdout

    def test_what_cannot_be_scored_is_named(
        self,
        hub: LocalHub,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        counts = TokenCounts.from_dataset(
            [{"text": text} for text in TEXTS], make_byte_tokenizer(), text_column="text"
        )
        with pytest.raises(ValueError, match="no draft for team/target that fits is published"):
            recommend_drafts(TARGET, counts)
        shelve_kept("user/good", [*range(200)])
        shelve("user/old", make_facts())
        shelve_kept("user/other", [1, 2], tokenizer_hash="0" * 64)
        shelve_kept("user/wide", [1, 399], width=400)
        with caplog.at_level(logging.WARNING):
            (best,) = recommend_drafts(TARGET, counts, progress=False)
        assert best.draft.repo_id == "user/good"
        assert best.interval[0] <= best.coverage <= best.interval[1]
        assert (
            "user/old is not scored: user/old has no vtrim/vocabulary.safetensors" in caplog.text
        )
        assert "user/other is not scored: it is for another tokenizer" in caplog.text
        assert "user/wide is not scored: it keeps the id 399" in caplog.text
        with pytest.raises(ValueError, match=r"of 2 published drafts .* none can be scored"):
            recommend_drafts(TARGET, counts, k_max=2, license="mit", domain=None, author="user")

    def test_a_branch_that_cannot_be_scored_is_named(
        self, hub: LocalHub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = [{"text": text} for text in TEXTS]
        counts = TokenCounts.from_dataset(rows, make_byte_tokenizer(), text_column="text")
        drafts = [
            draft_from_facts(
                make_facts(tokenizer_hash=hash_),
                repo_id="user/x",
                commit="0" * 40,
                endpoint=hub.endpoint,
                revision="sql\x1b",
            )
            for hash_ in ("0" * 64, None)
        ]
        monkeypatch.setattr("vtrim_hf.recommending.find_drafts", lambda *args, **more: drafts)
        with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="none can be"):
            recommend_drafts(TARGET, counts, progress=False)
        assert caplog.text.count("user/x@sql") == 2

    def test_it_counts_as_vtrim_count_does(self, hub: LocalHub, target: Path, data: Path) -> None:
        shelve_kept("user/x", [*range(100)])
        (found,) = recommend_drafts(str(target), str(data), progress=False)
        counts = TokenCounts.from_dataset(str(data), make_byte_tokenizer(), vocab_size=300)
        assert found.tokens == counts.total("all")
        assert found.coverage == counts.coverage(range(100), "all")

    @pytest.mark.parametrize(
        ("asked", "rule"),
        [
            ({"target": None}, "target must be a text or a NamedModel, got None"),
            ({"target": " "}, "target must be a text or a NamedModel"),
            ({"data": {"text": "x"}}, "data must be a TokenCounts, or files"),
            ({"data": b"x"}, "data must be a TokenCounts, or files"),
            ({"data": [{"text": "x"}]}, "with TokenCounts.from_dataset first"),
            ({"data": None}, "data must be a TokenCounts"),
            ({"data": []}, "data must name a file"),
            ({"data": ""}, "data must be a TokenCounts"),
            ({"token": 5}, "token must be a text"),
            ({"endpoint": "x"}, "endpoint must begin"),
            ({"limit": 0}, "limit must be a whole number from 1, got 0"),
            ({"limit": -1}, "limit must be a whole number from 1, got -1"),
            ({"k_max": 0}, "k_max must be a whole number from 1, got 0"),
            ({"domain": b"sql"}, "domain must be a text, got b'sql'"),
            ({"domain": ""}, "domain must be a text, got ''"),
            ({"split": 5}, "split must be a text"),
            ({"progress": "no"}, "progress must be True or False"),
        ],
    )
    def test_arguments_of_another_kind_are_refused_before_any_request(
        self, hub: LocalHub, asked: dict[str, Any], rule: str
    ) -> None:
        with pytest.raises((TypeError, ValueError), match=rule):
            recommend_drafts(**({"target": TARGET, "data": "data.jsonl"} | asked))
        assert not [*hub.log]

    def test_a_path_is_data(self, hub: LocalHub, target: Path, data: Path) -> None:
        shelve_kept("user/x", [*range(100)])
        (one,) = recommend_drafts(str(target), data, progress=False)
        (other,) = recommend_drafts(str(target), [data], progress=False)
        assert one == other

    def test_a_file_that_is_not_there(self, hub: LocalHub, target: Path) -> None:
        shelve_kept("user/x", [*range(100)])
        shown = run("recommend", "--target", target, "--data", "gone.jsonl", exit_code=2)
        assert "gone.jsonl" in shown.output


class TestFamily:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        pair = make_pair()
        for name in ("chat", "sql"):
            pair.draft.save_pretrained(tmp_path / "family" / name)
        return tmp_path / "family"

    def test_a_repository_a_domain(self, hub: LocalHub, folder: Path) -> None:
        told = json.loads(
            run("publish", folder, "user/x-{domain}", "--license", "mit", "--json", "-q").stdout
        )
        assert told["index"] == "user/x-family"
        assert [draft["repo_id"] for draft in told["drafts"]] == ["user/x-chat", "user/x-sql"]
        assert (
            told["drafts"][0]["commit"]
            == hub.service.shelf.find("model", "user/x-chat").state.branches["main"]
        )
        shown = run("catalogue", "--domain", "sql").stdout
        assert "user/x-sql" in shown
        assert "user/x-chat" not in shown

    def test_a_branch_a_domain_tried_first(self, hub: LocalHub, folder: Path) -> None:
        options = ("user/x", "--layout", "revisions", "--license", "mit", "--quiet")
        shown = run("publish", folder, *options, "--dry-run").stdout
        assert "- chat: create the repository user/x" in shown
        assert hub.service.shelf.all("model") == []
        shown = run("publish", folder, *options).stdout
        assert "sql" in shown
        assert sorted(hub.service.shelf.all("model")[0].state.branches) == ["chat", "main", "sql"]

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (("user/{domain}", "--tag", "v1"), "--tag is about one draft"),
            (("user/{domain}", "--search", "x", "--create-pr"), "--search, --create-pr is about"),
            (("user/x", "--index", "user/y"), "--index lists a family's drafts"),
            (("user/x", "--record", "r.json"), "--record notes a family's drafts"),
            (("user/{domain}", "--record", "."), "another file with --record"),
            (("user/x", "--layout", "repositories"), "--layout 'repositories' needs {domain}"),
            (("user/x", "--license", "mit"), "drafts of several domains are a family"),
        ],
    )
    def test_mistakes(self, folder: Path, options: tuple[str, ...], said: str) -> None:
        assert said in run("publish", folder, *options, exit_code=2).output
