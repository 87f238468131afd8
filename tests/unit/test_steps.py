"""The steps as functions, and models by name: what the commands' tests do not reach."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from recipes import make_recipe_folder
from tiny_models import make_byte_tokenizer, make_tiny
from vtrim_hf import DraftVocabulary, TokenCounts
from vtrim_hf.named_models import NamedModel, folder_hash
from vtrim_hf.steps import (
    Answering,
    count_domains,
    make_latency,
    measure_draft,
    read_prompts,
    search_counts,
    trim_draft,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steps")
    make_recipe_folder(folder)
    make_tiny("qwen-padded", eos_token_id=2).save_pretrained(folder / "padded")
    make_byte_tokenizer().save_pretrained(folder / "padded")
    other = make_byte_tokenizer()
    other.add_tokens(["<other>"])
    shutil.copytree(folder / "small", folder / "other")
    other.save_pretrained(folder / "other")
    return folder


@pytest.fixture(scope="module")
def target(folder: Path) -> NamedModel:
    return NamedModel(str(folder / "target"))


@pytest.fixture(scope="module")
def counts(folder: Path, target: NamedModel) -> TokenCounts:
    sources = [("a", str(folder / "a.jsonl")), ("b", str(folder / "b.jsonl"))]
    return count_domains(sources, target, progress=False)


def test_domains_stay_apart_and_sources_of_one_are_summed(
    folder: Path, target: NamedModel, counts: TokenCounts
) -> None:
    assert counts.domains == ("a", "b")
    assert counts.vocab_size == 300
    names = [("a", str(folder / name)) for name in ("a.jsonl", "a_test.jsonl")]
    both = count_domains(names, target, progress=False)
    assert both.conversations("all", "a") == 34


def test_a_missing_source_is_noticed_before_any_work(folder: Path, target: NamedModel) -> None:
    class Untouched(NamedModel):
        @property
        def tokenizer(self) -> Any:
            raise AssertionError("loaded")

    sources = [("a", str(folder / "a.jsonl")), ("b", "gone.jsonl")]
    with pytest.raises(FileNotFoundError, match=r"gone\.jsonl"):
        count_domains(sources, Untouched(target.name), progress=False)


def test_answers_lie_beside(folder: Path, target: NamedModel, tmp_path: Path) -> None:
    answering = Answering(tmp_path / "c.safetensors", limit=3, max_new_tokens=3, batch_size=2)
    assert answering.file("my sql/x").name == "c.my-sql-x.answers.jsonl"
    heard: list[tuple[str, Any]] = []
    counts = count_domains(
        [("a", str(folder / "a.jsonl"))],
        target,
        answering=answering,
        progress=False,
        on_counted=lambda name, rows: heard.append((name, rows)),
    )
    assert counts.conversations("all", "a") == 3
    assert 3 <= counts.total("all", "a") <= 9
    ((name, rows),) = heard
    assert (name, len(list(rows))) == ("a", 3)
    assert answering.file("a").is_file()


def test_latency_of_a_draft_and_of_none(folder: Path, target: NamedModel) -> None:
    draft = NamedModel(str(folder / "small"))
    whole, first = make_latency(target, draft), make_latency(target, draft, layers=1)
    assert first.cost(100) < whole.cost(100)
    assert make_latency(target).vocab_size == 300
    timed = make_latency(target, draft, cost="measured", layers=1)
    assert (timed.kind, timed.settings["body"]) == ("measured", "LlamaForCausalLM")
    timed = make_latency(target, cost="measured")
    assert (timed.kind, timed.settings["body"]) == ("measured", "EagleBody")
    assert timed.vocab_size == 300
    with pytest.raises(ValueError, match="name the draft"):
        make_latency(target, layers=1)


def test_latency_of_a_body_with_a_narrower_mlp(folder: Path, target: NamedModel) -> None:
    draft = NamedModel(str(folder / "small"))
    usual, narrow = make_latency(target), make_latency(target, mlp_width=8)
    assert narrow.settings["layer"]["intermediate_size"] == 8
    assert narrow.parts(100)["mlp"] < usual.parts(100)["mlp"]
    assert narrow.parts(100)["head"] == usual.parts(100)["head"]
    assert narrow.reduction(100) > usual.reduction(100)
    timed = make_latency(target, cost="measured", mlp_width=8)
    assert (timed.kind, timed.vocab_size) == ("measured", 300)
    with pytest.raises(ValueError, match="has an MLP already, got 8"):
        make_latency(target, draft, mlp_width=8)


def test_counts_of_another_tokenizer_are_refused(folder: Path, counts: TokenCounts) -> None:
    other = NamedModel(str(folder / "other"))
    with pytest.raises(ValueError, match="count again"):
        search_counts(counts, other, make_latency(other))


def test_trim_refuses_another_width_and_tokenizer(
    folder: Path, target: NamedModel, tmp_path: Path
) -> None:
    vocabulary = DraftVocabulary.from_ids(
        range(200), vocab_size=300, tokenizer=make_byte_tokenizer()
    )
    vocabulary.save(tmp_path)
    with pytest.raises(ValueError, match="width 300"):
        trim_draft(NamedModel(str(folder / "small")), tmp_path, NamedModel(str(folder / "padded")))
    with pytest.raises(ValueError, match=r"the draft .*other has .*share one tokenizer"):
        trim_draft(NamedModel(str(folder / "other")), tmp_path, target)
    made = trim_draft(NamedModel(str(folder / "small")), tmp_path, target, draft_length=7)
    assert made.coverage_metadata is None
    assert made.generation_config.num_assistant_tokens == 7


def test_a_search_of_another_vocabulary_is_refused(
    folder: Path, target: NamedModel, counts: TokenCounts, tmp_path: Path
) -> None:
    result = search_counts(counts, target, make_latency(target), progress=False)
    result.save(tmp_path / "search.json")
    DraftVocabulary.from_ids(
        range(290), vocab_size=300, tokenizer=make_byte_tokenizer()
    ).save(tmp_path)  # fmt: skip
    with pytest.raises(ValueError, match="vocabulary"):
        trim_draft(NamedModel(str(folder / "small")), tmp_path, target)
    result.vocabulary.save(tmp_path)
    made = trim_draft(NamedModel(str(folder / "small")), tmp_path, target, counts=counts)
    facts = made.coverage_metadata
    assert facts is not None
    assert facts["draft"]["k"] == result.k
    assert str(folder) not in json.dumps(facts)


def test_measuring_without_a_place_keeps_nothing(
    folder: Path, target: NamedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prompts = read_prompts(str(folder / "a_test.jsonl"), target.tokenizer, 2)
    report = measure_draft(
        target,
        NamedModel(str(folder / "small")),
        prompts,
        max_new_tokens=3,
        plain_dtypes=(),
        progress=False,
    )
    assert len(report.rows) == 2
    assert set(report.entries) == {"plain float32", "draft"}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_is_a_probability(target: NamedModel, threshold: float) -> None:
    with pytest.raises(ValueError, match=r"threshold must be a probability from 0 to 1, got"):
        measure_draft(target, NamedModel("gone"), [[1]], threshold=threshold)


def test_data_without_a_prompt(folder: Path, target: NamedModel, tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text('{"x": 1}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="holds no prompt"):
        read_prompts(str(tmp_path / "odd.jsonl"), target.tokenizer, 2)


def test_a_folders_identity_follows_what_is_loaded(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "model"
    shutil.copytree(folder / "small", place)
    before = NamedModel(str(place)).identity
    assert before == f"folder:{folder_hash(folder / 'small')}"
    (place / "README.md").write_text("notes", encoding="utf-8")
    (place / "runs").mkdir()
    (place / "runs" / "log.json").write_text("{}", encoding="utf-8")
    assert NamedModel(str(place)).identity == before
    seen = {before}
    for name in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"):
        with (place / name).open("ab") as file:
            file.write(b" ")
        seen.add(NamedModel(str(place)).identity)
    assert len(seen) == 5


def test_an_embedded_model_is_told_apart_without_its_files() -> None:
    model = NamedModel("smollm2")
    assert model.identity.startswith("embedded:smollm2@")
    assert model.hub_id == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert model.commit is None


@pytest.mark.parametrize("part", ["config", "tokenizer", "generation_config", "identity"])
def test_what_cannot_be_loaded_is_named(part: str) -> None:
    with pytest.raises(OSError, match=r"cannot load the (\w+) of me/gone"):
        getattr(NamedModel("me/gone"), part)


def test_weights_are_loaded_once(folder: Path) -> None:
    model = NamedModel(str(folder / "small"))
    first = model.model("float32")
    assert model.model("float32") is first
    assert model.model("bfloat16") is not first
    model.release()
    assert model.model("float32") is not first
