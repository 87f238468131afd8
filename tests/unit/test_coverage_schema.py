"""The schema of coverage.json and the checker that needs no package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vtrim_hf.coverage_schema as module
from vtrim_hf.coverage_schema import card_file, check_against, coverage_schema

pytestmark = pytest.mark.newest  # a checker of our own, no dependency is called


@pytest.mark.parametrize(
    ("value", "schema", "named"),
    [
        pytest.param("a", {"type": "integer"}, r"\$ must be of type integer, got 'a'", id="type"),
        pytest.param(True, {"type": "integer"}, "of type integer", id="true is no number"),
        pytest.param(1.5, {"type": "integer"}, "of type integer", id="fraction"),
        pytest.param(float("nan"), {"type": "number"}, "of type number", id="nan"),
        pytest.param(float("inf"), {"type": "integer"}, "of type integer", id="infinity"),
        pytest.param(None, {"type": ["string", "array"]}, "type string, array", id="null"),
        pytest.param((1,), {"type": "array"}, "of type array", id="tuple"),
        pytest.param(10**400, {"maximum": 1}, "at most 1", id="larger than any float"),
        pytest.param(2, {"const": 1}, "be 1, got 2", id="const"),
        pytest.param(True, {"const": 1}, "be 1, got True", id="const of another type"),
        pytest.param("c", {"enum": ["a", "b"]}, "one of a, b", id="enum"),
        pytest.param(0, {"minimum": 1}, "at least 1", id="minimum"),
        pytest.param(1.01, {"maximum": 1}, "at most 1", id="maximum"),
        pytest.param("", {"minLength": 1}, "at least 1 characters", id="short"),
        pytest.param("ab", {"maxLength": 1}, "at most 1 characters", id="long"),
        pytest.param("a\n", {"pattern": "^a$"}, "match", id="pattern with a line break"),
        pytest.param([1], {"minItems": 2}, "at least 2 items", id="few items"),
        pytest.param([1, 2], {"maxItems": 1}, "at most 1 items", id="many items"),
        pytest.param({"a": 1}, {"maxProperties": 0}, "at most 0 members", id="many members"),
        pytest.param({}, {"required": ["a", "b"]}, "must hold a, b", id="required"),
        pytest.param([1, "b"], {"items": {"type": "integer"}}, r"\$\[1\] must", id="items"),
        pytest.param(
            {"a": {"b": "x"}},
            {"properties": {"a": {"additionalProperties": {"type": "integer"}}}},
            r"\$\.a\.b must be of type integer",
            id="members",
        ),
        pytest.param(
            {"a b": 1},
            {"properties": {"c": {}}, "additionalProperties": False},
            r"\$\['a b'\] is not known, \$ holds only c",
            id="unknown member",
        ),
        pytest.param(
            {"": 1}, {"propertyNames": {"minLength": 1}}, "the name .* at least 1", id="names"
        ),
        pytest.param(
            {"a": "x"},
            {"$defs": {"n": {"type": "number"}}, "properties": {"a": {"$ref": "#/$defs/n"}}},
            r"\$\.a must be of type number",
            id="ref",
        ),
        pytest.param(1, {"multipleOf": 2}, "keyword 'multipleOf' is not known", id="keyword"),
    ],
)
def test_a_misfit_is_named(value: Any, schema: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_against(value, schema)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        pytest.param("text", {"minimum": 3, "maxItems": 1}, id="a rule for other types"),
        pytest.param(2.0, {"type": "integer"}, id="a whole float"),
        pytest.param({"b": None}, {"properties": {"a": {"type": "string"}}}, id="open object"),
    ],
)
def test_what_fits_passes(value: Any, schema: dict[str, Any]) -> None:
    check_against(value, schema)


def test_nesting_ends() -> None:
    value: Any = 1
    for _ in range(100):
        value = [value]
    schema = {"$defs": {"x": {"items": {"$ref": "#/$defs/x"}}}, "$ref": "#/$defs/x"}
    with pytest.raises(ValueError, match="nested deeper than 40 levels"):
        check_against(value, schema)


def keywords(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    found = set(schema)
    for name in ("items", "additionalProperties", "propertyNames"):
        found |= keywords(schema.get(name))
    for name in ("properties", "$defs"):
        for one in schema.get(name, {}).values():
            found |= keywords(one)
    return found


def test_every_keyword_of_our_schema_is_checked() -> None:
    known = {*module._RULES, *module._SAID, *module._INSIDE, "$ref"}
    assert keywords(coverage_schema()) <= known


def test_every_reference_of_our_schema_leads_somewhere() -> None:
    text = json.dumps(coverage_schema())
    named = {part.split('"')[0] for part in text.split("#/$defs/")[1:]}
    assert named == set(coverage_schema()["$defs"])


@pytest.mark.parametrize("layout", ["checkout", "wheel"])
def test_card_files_are_found_in_both_layouts(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vtrim_hf"
    cards = (tmp_path if layout == "checkout" else package) / "hub_cards"
    cards.mkdir(parents=True)
    package.mkdir(exist_ok=True)
    (cards / "a.json").touch()
    monkeypatch.setattr(module, "__file__", str(package / "coverage_schema.py"))
    assert card_file("a.json") == cards / "a.json"
    with pytest.raises(FileNotFoundError, match="install the package again"):
        card_file("b.json")
