"""Cards on a local hub: their YAML, their mistakes, their tags."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vtrim_hf.local_hub.card_checks import card_of, check_card, tags_of
from vtrim_hf.local_hub.front_matter import read_front_matter

pytestmark = pytest.mark.newest  # a server of the standard library

yaml = pytest.importorskip("yaml")

CARD = """---
license: apache-2.0   # as the target's
tags:
- a
- "b: c"
- 'it''s'
flow: [a, {b: 1, c: [x, y]}, "q",
  last]
nested:
  one: 1
  list:
    - c: 2
      d: 3.5e-3
    -
      e: null
    - - 1
      - 2
literal: |
  hello
    deeper

  last
folded: >-
  a b
  c

  d
long: some text
  goes on
url: https://example.org/x#y
empty:
yes: true
"quoted": "tab\\tx \\
  y"
model-index:
- name: n
  results:
  - task: {type: t}
    metrics: []
---
# Title
---
"""


def test_a_card_reads_as_with_a_yaml_library() -> None:
    text = CARD.split("---\n")[1].replace("yes:", "'yes':")  # a truth value in old YAML
    assert read_front_matter(CARD) == yaml.safe_load(text)


# 1e5 is a number in YAML 1.2, which the Hub reads, and a text in 1.1, which this library writes.
TEXTS = st.text(max_size=30).filter(lambda text: not re.fullmatch(r"[-+.0-9eE]+", text))
SCALARS: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXTS
SCALARS |= st.floats(allow_nan=False, allow_infinity=False).map(lambda x: round(x % 1000, 3))
SCALARS |= st.sampled_from(
    ["a: b", "# x", "- x", "it's", 'say "x"', "x\n\ny\n", " x ", "[a", "*x"]
)
KEYS = st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1, max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.booleans() | st.none(),
    st.sampled_from([80, float("inf")]),
)
@example({"0": "\\\n"}, None, 80)  # in single quotes a backslash is a backslash
@example({"0": ["'{a\\\n:"]}, None, 80)
@example({"0": ['b "', "\\\n"]}, True, 80)
def test_what_a_yaml_library_writes_is_read(value: Any, flow: bool | None, width: float) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow, width=width, allow_unicode=True)
    if "!!" not in text and yaml.safe_load(text) == value:
        assert read_front_matter(f"---\n{text}---\nbody") == value


def test_line_ends_of_windows() -> None:
    text = CARD.replace("\n", "\r\n")
    assert read_front_matter(text) == read_front_matter(CARD)


@pytest.mark.parametrize("text", ["", "# Title", "--- \n", "text\n---\na: b\n---\n"])
def test_a_card_without_metadata(text: str) -> None:
    assert read_front_matter(text) is None
    assert check_card(text) == ([], ["empty or missing yaml metadata in repo card"])


@pytest.mark.parametrize(
    ("yaml_text", "trouble"),
    [
        ("a: [", "is not closed"),
        ("a: [b", "is not closed"),
        ("a: {b: 1", "is not closed"),
        ("a: [b] c", "after the closing bracket"),
        ("a: [b c: d: e]", "expected"),
        ('a: "b', "a quote is not closed"),
        ("a: 'b' c", "after the closing quote"),
        ('a: "\\q"', "escape"),
        ("a: 1\na: 2", "line 3.*repeats the key 'a'"),
        ("a: {b: 1, b: 2}", "repeated"),
        ("a: b: c", "put it in quotes"),
        ("a: 1\n  b: 2", "line 3.*deeper"),
        ("a:\n    b: 1\n  c: 2", "line 4.*indented"),
        ("a:\n\tb: 1", "tab"),
        ("a: &x 1", "anchors"),
        ("a: *x", "anchors"),
        ("a: !!int 1", "tags"),
        ("a: @x", "cannot start with '@'"),
        ("a: 1\nnonsense", "line 3.*no 'key: value'"),
        ("- a\n- b", "must be a mapping, got list"),
        ("just text", "must be a mapping, got str"),
    ],
)
def test_broken_yaml_is_refused_with_its_line(yaml_text: str, trouble: str) -> None:
    text = f"---\n{yaml_text}\n---\n"
    with pytest.raises(ValueError, match=trouble):
        read_front_matter(text)
    errors, _ = check_card(text)
    assert len(errors) == 1
    assert errors[0].startswith("invalid YAML: ")
    assert card_of(text.encode()) == {}


@pytest.mark.parametrize(
    ("yaml_text", "error"),
    [
        ("license: Apache 2.0", '"license"'),
        ("license: 2", '"license"'),
        ("license: foo", '"license" must be one of apache-2.0, mit, '),
        ("license: [mit, foo]", "got 'foo'"),
        ("tags: speculative", '"tags" must be an array'),
        ("tags: [a, 1]", '"tags" must hold strings'),
        ("tags: [a, null]", '"tags" must hold strings'),
        ("datasets: 3", '"datasets" must be an array'),
        ("base_model: /home/me/model", '"base_model" must hold Hub ids'),
        ("base_model: [a/b, ./x]", '"base_model" must hold Hub ids'),
        ("datasets: [my data]", '"datasets" must hold Hub ids'),
        ("library_name: [x]", '"library_name" must be a string'),
        ("pipeline_tag: null", '"pipeline_tag" must be a string'),
        ("base_model_relation: draft", '"base_model_relation" must be one of'),
        ("model-index: x", '"model-index" must be an array'),
        ("model-index:\n- results: []", 'need a "name"'),
        ("model-index:\n- name: x\n  results:\n  - task: {}", 'need "task" and "metrics"'),
    ],
)
def test_wrong_metadata_is_named(yaml_text: str, error: str) -> None:
    errors, _ = check_card(f"---\n{yaml_text}\n---\n")
    assert errors
    assert error in errors[0]


def test_a_good_card_has_no_errors_and_gives_tags() -> None:
    text = (
        "---\nlicense: other\nlibrary_name: transformers\npipeline_tag: text-generation\n"
        "tags: [vtrim, sql]\nlanguage: en\ndatasets: a/b\nbase_model: [org/target]\n"
        "base_model_relation: finetune\n---\n"
    )
    assert check_card(text) == ([], ["license: other needs a license_name"])
    card = card_of(text.encode())
    assert tags_of(card, {"model.safetensors": None}) == [
        "transformers", "text-generation", "safetensors", "vtrim", "sql", "en", "license:other",
        "dataset:a/b", "base_model:org/target", "base_model:finetune:org/target",
    ]  # fmt: skip
    assert tags_of({}, {"a.txt": None}) == []
    assert check_card("---\na: b\n---\n") == ([], ["no license is given"])
