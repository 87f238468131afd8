"""The README's tables show what was measured: they are made from the JSON of the measurements."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("r", ROOT / "examples" / "readme_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_measurements(tables: ModuleType) -> None:
    assert tables.renewed(README) == README


def test_a_wrong_figure_is_found(tables: ModuleType) -> None:
    found = json.loads((tables.EVIDENCE / "trained_drafts/wikisql/figures.json").read_text())
    shown = f"| {found['acceptance_length']['trimmed']:.2f} |"
    assert shown in README
    assert tables.renewed(README.replace(shown, "| 9.99 |")) == README


def test_a_table_without_a_place_is_named(tables: ModuleType) -> None:
    with pytest.raises(ValueError, match="one line <!-- table: wikisql -->"):
        tables.renewed(re.sub("<!-- table: wikisql -->", "", README))
