"""The README's tables show what was measured: they are made from the JSON of the measurements."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "examples" / "evidence"
README = (ROOT / "README.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.newest


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "examples")
    spec = importlib.util.spec_from_file_location("r", ROOT / "examples" / "readme_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_measurements(tables: ModuleType) -> None:
    assert tables.renewed(README) == README


def test_a_wrong_figure_is_found(tables: ModuleType) -> None:
    found = json.loads((EVIDENCE / "trained_drafts/wikisql/figures.json").read_text())
    shown = f"| {found['acceptance_length']['trimmed']:.2f} |"
    assert shown in README
    assert tables.renewed(README.replace(shown, "| 9.99 |")) == README


# One figure of each table: the file that it is from, and where it stands there.
FIGURES: dict[str, tuple[str, list[str | int]]] = {
    "wikisql": ("trained_drafts/wikisql/figures.json", ["head_share", "full"]),
    "sql": ("trained_drafts/sql/figures.json", ["acceptance_length", "trained_full"]),
    "demo": ("demo/decode_report.json", ["entries", "draft", "acceptance_length"]),
    "trained_drafts": ("trained_drafts/ner/figures.json", ["acceptance_length", "trimmed"]),
    "draft_length": (
        "draft_length/wikisql/draft_length.json",
        ["ways", "5 tokens", "over_base", "low"],
    ),
    "none_class": (
        "none_class/wikisql/figures.json",
        ["sizes", 0, "rules", "none of these", "time"],
    ),
    "vocabulary": ("vocabulary/smollm2/figures.json", ["domains", "sql", "grid", 4, "exact", "k"]),
    "vocabulary_rivals": (
        "vocabulary/llama3/figures.json",
        ["domains", "sql", "ways", "raw", "heldout", "coverage"],
    ),
    "stability": ("stability/smollm2/figures.json", ["domains", "all domains", "settled", "k"]),
    "decoding": (
        "decoding/figures.json",
        ["sets", "sql_on_sql", "ways", "trained_full", "trimmed_over", "low"],
    ),
    "quality": ("quality/figures.json", ["tasks", "ner", "float32", "draft", "entity_f1"]),
    "vllm": (
        "vllm/figures.json",
        ["domains", "sql", "cells", "1", "trimmed_over_full", "ratio"],
    ),
    "objective": (
        "objective/figures.json",
        ["domains", "ner", "choices", "utility 0.5", "of_best", "median"],
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_another_measurement_makes_another_table(
    tables: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, (*where, last) = FIGURES[name]
    parts = importlib.import_module("readme_parts")
    made, read = tables.TABLES[name](), parts.read
    assert made in README

    def other(asked: str) -> Any:
        found = read(asked)
        if asked == place:
            inner = found
            for key in where:
                inner = inner[key]
            inner[last] += 1
        return found

    monkeypatch.setattr(parts, "read", other)
    assert tables.TABLES[name]() not in README


def test_a_figure_of_every_table_is_tried(tables: ModuleType) -> None:
    assert set(FIGURES) == set(tables.TABLES)


def test_a_table_without_a_place_is_named(tables: ModuleType) -> None:
    with pytest.raises(ValueError, match="one line <!-- table: wikisql -->"):
        tables.renewed(re.sub("<!-- table: wikisql -->", "", README))
