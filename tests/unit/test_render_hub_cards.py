"""The cards of the drafts that were trained here: as measured, valid, and as publishing writes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, hf_hub_download, parse_eval_result_entries

import vtrim_hf.hub
from hub_client import point_client_at
from published_facts import make_pair, make_training
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.coverage_metadata import check_metadata
from vtrim_hf.coverage_metadata import read as read_facts
from vtrim_hf.decode_report import DecodeReport
from vtrim_hf.hub import publish
from vtrim_hf.hub_evaluation import FIGURES, eval_results_text
from vtrim_hf.local_hub import Account, LocalHub
from vtrim_hf.local_hub.card_checks import check_card
from vtrim_hf.named_models import folder_hash

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
EVIDENCE = EXAMPLES / "evidence" / "trained_drafts"
CARDS = ROOT / "hub_cards" / "drafts"
NAMES = sorted(path.stem for path in CARDS.glob("*.yaml"))


def loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Any:
    return loaded("render_hub_cards", monkeypatch)


def json_of(place: Path) -> Any:
    return json.loads(place.read_text(encoding="utf-8"))


# What is committed


def test_every_card_and_the_table_are_what_the_yaml_gives(cards: Any) -> None:
    made = cards.rendered(cards.contents_in())
    there = {path.name: path.read_text(encoding="utf-8") for path in CARDS.glob("*.md")}
    assert made == there


def test_the_yaml_is_what_the_evidence_gives(cards: Any) -> None:
    assert cards.differing(cards.written()) == []


def test_every_draft_that_was_measured_has_a_card(cards: Any) -> None:
    assert cards.names() == NAMES
    assert {"ner", "wikisql"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_are_those_of_the_measurement(cards: Any, name: str) -> None:
    content = cards.contents_in()[name]
    facts, measured = content["facts"], content["measured"]
    check_metadata(facts)
    figures = json_of(EVIDENCE / name / "figures.json")
    decoding = facts["decoding"]
    assert decoding["speedup"].items() <= figures["over_plain"]["trimmed"].items()
    assert decoding["acceptance_length"] == figures["acceptance_length"]["trimmed"]
    assert decoding["tokens_per_second"] == figures["tokens_per_second"]["trimmed"]
    assert decoding["plain"]["tokens_per_second"] == figures["tokens_per_second"]["plain"]
    assert facts["draft"]["k"] == figures["head_rows"]["trimmed"]
    assert measured.items() <= figures.items()
    evidence = cards.Evidence.of(name)
    assert facts == evidence.facts
    training = evidence.training
    assert facts["training"]["acceptance_length"] == training["best"]["acceptance_length"]
    assert facts["training"]["tokens"] == training["tokens_seen"]


@pytest.mark.parametrize("name", NAMES)
def test_the_front_matter_is_one_that_the_hub_takes(cards: Any, name: str) -> None:
    text = (CARDS / f"{name}.md").read_text(encoding="utf-8")
    assert check_card(text) == ([], [])
    data: Any = ModelCard(text, ignore_metadata_errors=False).data
    facts = cards.contents_in()[name]["facts"]
    assert data.base_model == facts["target"]["id"]
    assert (data.license, data.library_name) == ("apache-2.0", "transformers")
    assert {"vtrim", "eagle3", "draft-model"} <= set(data.tags)
    # No public benchmark is claimed; each figure could be, for one that the Hub has registered.
    assert data.eval_results is None
    asked = [{"dataset": "me/bench", "task": "t", "figure": figure} for figure in FIGURES]
    results = eval_results_text(asked, facts, "me/draft", "https://huggingface.co")
    entries = parse_eval_result_entries(yaml.safe_load(results or ""))
    assert [entry.dataset_id for entry in entries] == ["me/bench"] * len(FIGURES)


# A draft of a test


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trained draft, its measurement, its search and counts."""
    pair = make_pair()
    draft: Any = TrimmedDraftForCausalLM.for_target(pair.target, pair.draft.vocabulary)
    draft.save_pretrained(tmp_path / "draft")
    pair.tokenizer.save_pretrained(tmp_path / "draft")
    report = json.dumps(make_training(draft))
    (tmp_path / "draft" / "training_report.json").write_text(report, encoding="utf-8")
    bench = tmp_path / "bench"
    bench.mkdir()
    pair.report.save(bench / "decode_report.json")
    there = DecodeReport.load(bench / "decode_report.json")
    there.entries["draft"].facts["vocab_size"] = 300
    asked = {
        "prompts": 2,
        "dtype": "float32",
        "draft_length": 4,
        "command": "python examples/x.py",
    }
    asked |= {"data": "d/test.jsonl", "data_fingerprint": "f" * 64}
    weights = (tmp_path / "draft" / "model.safetensors").read_bytes()
    asked |= {"draft_weights": hashlib.sha256(weights).hexdigest()}
    found = loaded("bench_trained_draft", monkeypatch).figures_of(there, there, asked)
    (bench / "figures.json").write_text(json.dumps(found), encoding="utf-8")
    (bench / "report.md").write_text("read me\n", encoding="utf-8")
    pair.search.save(tmp_path / "search.json")
    pair.counts.save(tmp_path / "counts.safetensors")
    return tmp_path


@pytest.fixture
def run(cards: Any, place: Path) -> Any:
    """The script, on cards and an evidence of its own."""
    folders = ["--cards", str(place / "cards"), "--evidence", str(place / "evidence")]
    return lambda *words: cards.main([*words, *folders])


def words(place: Path, *more: str) -> list[str]:
    files = {"draft": "draft", "bench": "bench", "search": "search.json"}
    files |= {"counts": "counts.safetensors", "target": "draft"}
    named = [word for name, file in files.items() for word in (f"--{name}", str(place / file))]
    return ["--add", "sql", *named, "--license", "mit", "--repo-id", "user/sql-draft", *more]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with LocalHub(tmp_path / "hub", tokens={"hf_x": Account("user", "write")}, xet=False) as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache", token="hf_x")
        monkeypatch.setattr(vtrim_hf.hub, "prove_it_loads", lambda draft, folder: None)
        yield hub


def test_a_card_is_what_publishing_writes(run: Any, place: Path, hub: LocalHub) -> None:
    run(*words(place, "--dataset", "me/data"))
    pair = make_pair()
    publish(
        place / "draft",
        "user/sql-draft",
        search=pair.search,
        counts=pair.counts,
        report=DecodeReport.load(place / "bench" / "decode_report.json"),
        datasets=["me/data"],
        license="mit",
        language=["en"],
        progress=False,
    )
    there = Path(hf_hub_download("user/sql-draft", "README.md")).read_text(encoding="utf-8")
    ours = (place / "cards" / "sql.md").read_text(encoding="utf-8")
    assert ours == there.replace(hub.endpoint, "https://huggingface.co")
    facts = read_facts(hf_hub_download("user/sql-draft", "vtrim/coverage.json"))
    content = yaml.safe_load((place / "cards" / "sql.yaml").read_text(encoding="utf-8"))
    assert content["facts"] == facts == read_facts(place / "evidence" / "sql")
    assert {path.name for path in (place / "evidence" / "sql").iterdir()} == {
        "vtrim",
        "figures.json",
        "report.md",
        "training_report.json",
    }
    table = (place / "cards" / "README.md").read_text(encoding="utf-8")
    assert "| [sql](sql.md) ([facts](sql.yaml)) | " in table


def test_what_a_publisher_says_stays(
    cards: Any, run: Any, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(*words(place))
    yaml_file, card = place / "cards" / "sql.yaml", place / "cards" / "sql.md"
    content = yaml.safe_load(yaml_file.read_text(encoding="utf-8"))
    content["publisher"] |= {"tags": ["mine"], "text": "## Mine\n\n    a = b\n"}
    yaml_file.write_text(cards.to_yaml(content), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"not as the evidence has it: sql\.md"):
        run("--check")
    for again in ([], words(place)):
        run(*again)
        text = card.read_text(encoding="utf-8")
        assert "\n- mine\n" in text
        assert text.endswith("<!-- vtrim:end citation -->\n\n## Mine\n\n    a = b\n")
    capsys.readouterr()
    run("--check")
    assert "is as the evidence has it" in capsys.readouterr().out


def test_a_draft_brings_its_own_text_along(run: Any, place: Path) -> None:
    card = "# x\n\n<!-- vtrim:end citation -->\n\n## How it was made\n\nSo.\n"
    (place / "draft" / "README.md").write_text(card, encoding="utf-8")
    run(*words(place))
    assert (place / "cards" / "sql.md").read_text("utf-8").endswith("## How it was made\n\nSo.\n")


def test_another_figure_is_found(run: Any, place: Path) -> None:
    run(*words(place))
    file = place / "evidence" / "sql" / "figures.json"
    found = json_of(file)
    found["acceptance_length"]["trimmed"] += 0.01
    file.write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"do not tell of the same draft: decoding\.acceptance_"):
        run()
    found["acceptance_length"]["trimmed"] -= 0.01
    file.write_text(json.dumps(found), encoding="utf-8")
    training = place / "evidence" / "sql" / "training_report.json"
    other = json_of(training)
    training.write_text(json.dumps({**other, "tokens_seen": 1}), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"training\.tokens is 60000, .* has 1"):
        run()


def change(place: Path, **figures: Any) -> None:
    """Let figures say something else; None takes a field out."""
    found = {**json_of(place), **figures}
    kept = {name: value for name, value in found.items() if value is not None}
    place.write_text(json.dumps(kept), encoding="utf-8")


def test_the_measurement_of_another_draft_is_refused(run: Any, place: Path) -> None:
    """One of the same ids and sizes, trained otherwise: nothing but its weights tells."""
    file = place / "bench" / "figures.json"
    own = json_of(file)["draft_weights"]
    change(file, draft_weights="a" * 64)
    with pytest.raises(SystemExit, match=rf"is {own}, .* is of a{{64}}: give the draft"):
        run(*words(place))
    assert not (place / "evidence").exists()
    change(file, draft_weights=None)
    with pytest.raises(SystemExit, match=r"figures\.json is of None"):
        run(*words(place))


def test_of_older_figures_the_folder_must_be_as_it_was(run: Any, place: Path) -> None:
    identity = f"folder:{folder_hash(place / 'draft')}"
    change(place / "bench" / "figures.json", draft_weights=None, draft_identity=identity)
    (place / "draft").rename(place / "moved")
    given = [word.replace(str(place / "draft"), str(place / "moved")) for word in words(place)]
    run(*given)
    (place / "moved" / "more.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SystemExit, match=f"is of {identity}: give the draft"):
        run(*given)


def test_the_weights_of_a_draft_that_ships_are_those_that_were_measured(
    cards: Any, run: Any, place: Path
) -> None:
    run(*words(place))
    there, shipped = place / "evidence" / "sql", place / "drafts" / "tiny_sql"
    shutil.copytree(place / "draft", shipped, ignore=shutil.ignore_patterns("vtrim"))
    shutil.move(there / "vtrim", shipped / "vtrim")
    folders = {"evidence": place / "evidence", "drafts": place / "drafts"}
    cards.Evidence.of("sql", **folders)
    weights = shipped / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(ValueError, match=r"not tell of the same draft: the draft in .*tiny_sql"):
        cards.Evidence.of("sql", **folders)
    change(there / "figures.json", draft_weights=None)  # older ones say nothing of the weights
    cards.Evidence.of("sql", **folders)


def test_a_name_comes_from_the_target_that_the_facts_name(cards: Any) -> None:
    ids = {
        "HuggingFaceTB/SmolLM2-135M-Instruct": ("NAMESPACE/smollm2-sql-draft", "apache-2.0"),
        "Qwen/Qwen2.5-Coder-1.5B": ("NAMESPACE/qwen2.5-coder-1.5b-sql-draft", None),
    }
    for target, expected in ids.items():
        said = cards.publisher_of({"target": {"id": target}}, "sql")
        assert (said["repo_id"], said["license"]) == expected
    assert cards.publisher_of({"target": {}}, "sql")["repo_id"] == "NAMESPACE/sql-draft"


def test_a_card_without_evidence_goes_and_no_other_file(run: Any, place: Path) -> None:
    """Every file that was not made by the script was deleted, whatever it was."""
    run(*words(place))
    cards = place / "cards"
    shutil.copytree(place / "evidence" / "sql", place / "evidence" / "other")
    shutil.copy(cards / "sql.yaml", cards / "other.yaml")  # who names the licence
    (cards / "notes.txt").write_text("mine")
    (cards / "mine.yaml").write_text("a: 1\n")
    (cards / "pictures").mkdir()
    run()
    shutil.rmtree(place / "evidence" / "sql")
    run()
    names = ["README.md", "mine.yaml", "notes.txt", "other.md", "other.yaml", "pictures"]
    assert sorted(path.name for path in cards.iterdir()) == names


def test_a_folder_without_evidence_deletes_no_card(run: Any, place: Path) -> None:
    """A publisher's text would be lost by a misspelt --evidence."""
    run(*words(place))
    (place / "evidence").rename(place / "elsewhere")
    with pytest.raises(SystemExit, match=r"evidence must hold .* and holds none: .*--evidence"):
        run()
    assert (place / "cards" / "sql.yaml").is_file()


def test_missing_facts_are_named(run: Any, place: Path) -> None:
    shutil.copytree(place / "bench", place / "evidence" / "sql")
    with pytest.raises(SystemExit, match=r"coverage\.json is missing: .* --add sql"):
        run()


def test_a_licence_is_not_guessed(run: Any, place: Path) -> None:
    given = words(place)
    at = given.index("--license")
    with pytest.raises(SystemExit, match="a card needs the licence"):
        run(*given[:at], *given[at + 2 :])


def test_an_untrained_draft_is_refused(run: Any, place: Path) -> None:
    (place / "draft" / "training_report.json").unlink()
    with pytest.raises(SystemExit, match=r"holds no training_report\.json of this draft"):
        run(*words(place))


def test_what_belongs_together(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--add", "sql")
    assert "go together" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", [" —", "a\n b", "\u2028", "yes", "1e5", "\x07x", "- a", "`'\"", "", "\n", "x \ny", "�"]
)
def test_any_text_comes_back_from_yaml(cards: Any, text: str) -> None:
    assert (
        yaml.safe_load(cards.to_yaml({"publisher": {"text": text}}))["publisher"]["text"] == text
    )
