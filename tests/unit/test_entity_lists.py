"""Entities in JSON answers: the shapes that are read, F1 by hand, and what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtrim_hf.metrics.entity_f1.entity_lists import entities_in, entity_f1

ADA = Counter({("person", "adalovelace"): 1})


@pytest.mark.parametrize(
    "text",
    [
        '{"person": ["Ada Lovelace"]}',
        ' {"Person": ["ada  lovelace"], "city": []}',
        '{"person": "Ada Lovelace", "age": 36, "city": null}',
        'Here they are:\n```json\n{"person": ["Ada Lovelace"]}\n```\nThat is {all}.',
        '[{"text": "Ada Lovelace", "type": "person"}]',
        '[{"entity": "Ada Lovelace", "LABEL": "PERSON", "start": 0}]',
        '{"name": "Ada Lovelace", "kind": "person"}',
        '[{"person": ["Ada Lovelace"]}, {"city": []}]',
        '{"entities": [{"word": "Ada Lovelace", "entity_group": "person"}]}',
        '{"Named_Entities": {"person": ["Ada Lovelace"]}}',
        '{"person": [{"name": "Ada Lovelace", "start": 0}, 7]}',
        'x = []\n{"person": ["Ada Lovelace"]} {"person": ["Babbage"]}',
        '[person] {"per-son": ["Ada\\u00a0Lovelace"]}',
    ],
)
def test_shapes_that_are_read(text: str) -> None:
    assert entities_in(text) == ADA


@pytest.mark.parametrize(
    "text", ["{}", "[]", "```\n{ }\n```", '{"person": []}', '{"entities": []}']
)
def test_no_entities(text: str) -> None:
    assert entities_in(text) == Counter()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "There are none.",
        "1. Ada Lovelace (person)",
        '["Ada Lovelace"]',
        '{"person": ["Ada Lovelace", "Babb',  # cut
        '{"a": {"person": ["Ada"]}, "b": ',  # what is whole inside of it does not count
        '[{"text": "Ada", "type": "person"}, {"te',
        "{person: Ada}",
        "{'person': ['Ada']}",
        '{"a": ' * 100_000,
    ],
)
def test_what_cannot_be_read(text: str) -> None:
    assert entities_in(text) is None


def test_words_of_cut_sentences_are_those_of_whole_ones() -> None:
    gold = entities_in('{"creative-work": ["Heisenberg \'s relation", "the \ufb01rst"]}')
    assert gold == entities_in('{"Creative Work": ["Heisenberg\'s relation", "The first"]}')
    assert gold != entities_in('{"creative work": ["Heisenberg\'s relations", "The first"]}')


def test_f1_by_hand() -> None:
    found = entity_f1(
        [
            '{"person": ["Ada", "Ada", "Bob"], "city": ["Rome"]}',  # 2 of 4 right, of 3
            "no idea",  # nothing of 2
            '{"person": ["Eve"]}',  # one where there is none
            "{}",
        ],
        [
            '{"person": ["Ada"], "city": ["Rome", "Bonn"]}',
            '{"city": ["Oslo", "Oslo"]}',
            "{}",
            "{}",
        ],
    )
    assert (found["correct"], found["predicted"], found["gold"]) == (2, 5, 5)
    assert (found["precision"], found["recall"]) == (2 / 5, 2 / 5)
    assert found["entity_f1"] == pytest.approx(0.4)
    assert (found["exact"], found["unreadable"], found["total"]) == (1 / 4, 1, 4)
    assert found["by_kind"] == {
        "city": {"f1": pytest.approx(2 / 5), "gold": 4},
        "person": {"f1": pytest.approx(2 / 5), "gold": 1},
    }
    assert 0 <= found["low"] <= 0.4 <= found["high"] <= 1


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("{}", "{}", (1.0, 1.0, 1.0, 1.0)),
        ("none", "{}", (1.0, 1.0, 1.0, 0.0)),
        ("{}", '{"a": ["b"]}', (0.0, 0.0, 0.0, 0.0)),
        ('{"a": ["b"]}', "{}", (0.0, 0.0, 1.0, 0.0)),
        ('{"a": ["b"]}', '{"a": ["b"]}', (1.0, 1.0, 1.0, 1.0)),
    ],
)
def test_where_there_is_nothing(
    prediction: str, reference: str, expected: tuple[float, ...]
) -> None:
    found = entity_f1([prediction], [reference])
    names = ("entity_f1", "precision", "recall", "exact")
    assert tuple(found[name] for name in names) == expected
    assert found["low"] == found["entity_f1"] == found["high"]


KINDS = st.sampled_from(["person", "city"])
LISTS = st.dictionaries(KINDS, st.lists(st.sampled_from(["a", "b", "c"]), max_size=3))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(LISTS, LISTS), min_size=1, max_size=5))
def test_f1_is_the_harmonic_mean(rows: list[tuple[Any, Any]]) -> None:
    given_, gold = ([json.dumps(row[side]) for row in rows] for side in (0, 1))
    found = entity_f1(given_, gold)
    mean = found["precision"] + found["recall"]
    expected = 2 * found["precision"] * found["recall"] / mean if mean else 0.0
    assert found["entity_f1"] == pytest.approx(expected)
    assert found["low"] - 1e-9 <= found["entity_f1"] <= found["high"] + 1e-9
    assert entity_f1(gold, gold)["entity_f1"] == entity_f1(gold, gold)["exact"] == 1.0
    swapped = entity_f1(gold, given_)  # what is found too much is what was missed
    assert swapped["entity_f1"] == pytest.approx(found["entity_f1"])


@settings(deadline=None, max_examples=40)
@given(st.text('{}[]",:a1 \n', max_size=40))
def test_no_text_breaks_it(text: str) -> None:
    found = entities_in(text)
    assert found is None or all(count > 0 for count in found.values())


def test_refusals() -> None:
    with pytest.raises(ValueError, match="at least one, got 0 and 0"):
        entity_f1([], [])
    with pytest.raises(ValueError, match="got 2 and 1"):
        entity_f1(["{}", "{}"], ["{}"])
    with pytest.raises(ValueError, match="reference 1 must be a JSON object of lists by kind"):
        entity_f1(["{}", "{}"], ["{}", "Ada"])
