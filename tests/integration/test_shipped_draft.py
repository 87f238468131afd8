"""The draft that comes with the repository: small, complete, SmolLM2's own, and worth loading."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from vtrim_hf import DecodeReport, TrimmedDraftForCausalLM, measure_decoding
from vtrim_hf.coverage_metadata import read
from vtrim_hf.embedded_models import EMBEDDED
from vtrim_hf.measuring_step import REPORT_JSON, read_prompts
from vtrim_hf.model_card import TAGS, renew, split_card
from vtrim_hf.plain_facts import local_path_in
from vtrim_hf.training_facts import TRAINING_JSON
from vtrim_hf.training_report import TrainingReport
from vtrim_hf.vocabulary import tokenizer_fingerprint

ROOT = Path(__file__).resolve().parents[2]
# Another folder can be tried before it is put in the place of this one.
FOLDER = Path(
    os.environ.get("VTRIM_SHIPPED_DRAFT", ROOT / "examples" / "drafts" / "smollm2_wikisql")
)
HELD_OUT = ROOT / "examples" / "data" / "wikisql" / "test.jsonl"
LARGEST = 20_000_000  # bytes
LEAST_ACCEPTANCE = 2.0
PROMPTS, NEW = 3, 40

needs_the_draft = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="an archive may come without the draft"
)


@pytest.fixture(scope="module")
def draft() -> Any:
    return TrimmedDraftForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


@needs_the_draft
def test_it_is_small_and_complete() -> None:
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*")}
    sizes = [path.stat().st_size for path in files.values() if path.is_file()]
    assert sum(sizes) < LARGEST
    for name in (
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "modeling_trimmed_draft.py",
        "vtrim/coverage.json",
        REPORT_JSON,
        TRAINING_JSON,
    ):
        assert name in files, name


@needs_the_draft
def test_it_tells_nothing_of_the_machine_it_was_made_on() -> None:
    for path in FOLDER.rglob("*.json"):
        found = local_path_in(json.loads(path.read_text(encoding="utf-8")))
        assert found is None, (path.name, found)


@needs_the_draft
def test_its_code_is_that_of_the_package() -> None:
    copies = [*FOLDER.glob("*.py")]
    assert len(copies) > 10
    for copy in copies:
        assert copy.read_text("utf-8") == (ROOT / "vtrim_hf" / copy.name).read_text("utf-8"), (
            f"{copy.name}: load the draft and save it into its folder again"
        )


@needs_the_draft
def test_it_loads_without_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> str:
        pytest.fail("Transformers asks whether the code may be trusted")

    monkeypatch.setattr("builtins.input", asked)
    loaded = AutoModelForCausalLM.from_pretrained(FOLDER)
    assert isinstance(loaded, TrimmedDraftForCausalLM)
    assert loaded.dtype == torch.bfloat16


@needs_the_draft
def test_it_names_its_target(draft: Any, smollm2: Any, smollm2_tokenizer: Any) -> None:
    config = draft.config
    assert config.body == "eagle3"
    assert config.target_name == EMBEDDED["smollm2"].hub_id
    assert config.target_hidden_size == smollm2.config.hidden_size
    assert config.target_num_hidden_layers == smollm2.config.num_hidden_layers
    assert config.vocab_size == smollm2.config.vocab_size
    assert config.tokenizer_hash == tokenizer_fingerprint(smollm2_tokenizer)


@needs_the_draft
def test_its_reports_are_of_this_draft(draft: Any) -> None:
    fingerprint = draft.vocabulary.fingerprint
    trained = TrainingReport.load(FOLDER / TRAINING_JSON).data
    assert trained["finished"]
    assert trained["fingerprints"]["vocabulary"] == fingerprint
    assert trained["best"]["acceptance_length"] > 1
    measured = DecodeReport.load(FOLDER / REPORT_JSON)
    assert measured.draft.facts["draft_vocab_size"] == draft.config.draft_vocab_size
    facts = read(FOLDER)
    assert facts == draft.coverage_metadata
    assert facts["draft"]["fingerprint"] == fingerprint
    assert facts["target"]["id"] == draft.config.target_name
    assert facts["decoding"]["acceptance_length"] == measured.acceptance_length


@needs_the_draft
def test_its_card_is_one() -> None:
    front, text = split_card((FOLDER / "README.md").read_text(encoding="utf-8"))
    assert front["license"] == "apache-2.0"
    assert front["base_model"] == EMBEDDED["smollm2"].hub_id
    assert (front["library_name"], front["pipeline_tag"]) == ("transformers", "text-generation")
    assert set(TAGS) <= set(front["tags"])
    assert renew(text, text) == text  # our marks pair up
    assert "vtrim train" in text  # the command that made it


@pytest.mark.newest
@needs_the_draft
def test_it_drafts_what_smollm2_says(draft: Any, smollm2: Any, smollm2_tokenizer: Any) -> None:
    report = measure_decoding(
        smollm2,
        draft,
        read_prompts(str(HELD_OUT), smollm2_tokenizer, PROMPTS),
        tokenizer=smollm2_tokenizer,
        max_new_tokens=NEW,
        warmup=0,
        plain_dtypes=(),
        progress=False,
    )
    assert report.identical
    assert report.acceptance_length is not None
    assert report.acceptance_length >= LEAST_ACCEPTANCE


def test_the_wheel_goes_without_it() -> None:
    """An archive of the sources has it, so that its tests run; what a user installs does not."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    targets = build["build"]["targets"]
    assert targets["wheel"]["only-include"] == ["vtrim_hf", "hub_cards"]
    assert targets["wheel"]["exclude"] == ["/hub_cards/drafts"]
    assert "/examples" in targets["sdist"]["include"]
