"""The reports of the benchmarks of vocabularies are those that their committed figures make."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from vtrim_hf import LatencyModel

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
REPORTS = {"vocabulary": "vocabulary_report", "stability": "stability_report"}

pytestmark = pytest.mark.newest


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def committed(kind: str) -> list[Path]:
    return sorted((EXAMPLES / "evidence" / kind).glob("*/figures.json"))


@pytest.mark.parametrize("kind", REPORTS)
def test_the_committed_reports_are_those_of_their_figures(kind: str) -> None:
    module = importlib.import_module(REPORTS[kind])
    places = committed(kind)
    assert places
    for place in places:
        found = json.loads(place.read_text("utf-8"))
        assert module.markdown(found) == place.with_name("report.md").read_text("utf-8"), place


def test_without_data_of_other_kinds_there_is_no_table_of_them() -> None:
    module = importlib.import_module("vocabulary_report")
    found: dict[str, Any] = json.loads(committed("vocabulary")[0].read_text("utf-8"))
    assert "## Out of distribution" in module.markdown(found)
    for row in found["crossed"].values():
        row["ood"] = {}
    text = module.markdown(found)
    assert "## Out of distribution" not in text
    assert "ood: " not in text
    del found["domains"]["general"], found["crossed"]["general"]
    for one in [*found["domains"].values(), *found["crossed"].values()]:
        one.get("ways", {}).pop("fixed_general", None)
    assert "| fixed |\n" in module.markdown(found)


def test_what_a_row_is_worth() -> None:
    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    module = importlib.import_module("vocabulary_report")
    found = module.tokens_a_row(LatencyModel.eagle3(config).to_dict())
    assert found == pytest.approx(1637.88e6 / (2 * 4096), rel=1e-4)  # the paper's operations
