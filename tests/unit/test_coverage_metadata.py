"""The facts of a published draft: made from what is known, checked, read without torch."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vtrim_hf
import vtrim_hf.training_facts as training_facts
from published_facts import Pair, make_pair, make_report, make_training
from tiny_models import make_tiny
from vtrim_hf import DraftVocabulary, TrimmedDraftForCausalLM
from vtrim_hf.coverage_metadata import (
    COVERAGE_JSON,
    LARGEST_FILE,
    check_metadata,
    make_metadata,
    parse,
    read,
)
from vtrim_hf.coverage_schema import SCHEMA, card_file, coverage_schema
from vtrim_hf.decoding_facts import _SETTINGS as DECODING
from vtrim_hf.model_card import render_card


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_pair()


@pytest.fixture(scope="module")
def full(pair: Pair) -> dict[str, Any]:
    """Everything that can be known."""
    return make_metadata(
        pair.draft,
        search=pair.search,
        report=pair.report,
        counts=pair.counts,
        target_id="me/target",
        draft_id="me/small",
        datasets=["me/data", "/home/me/private.jsonl", "b/a", "me/data"],
        tokenizer=pair.tokenizer,
        training=make_training(pair.draft),
    )


def every_leaf(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for member in value.values() for leaf in every_leaf(member)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in every_leaf(item)]
    return [value]


def test_all_facts_are_there_and_plain(pair: Pair, full: dict[str, Any]) -> None:
    assert list(full) == [
        "format_version",
        "target",
        "draft",
        "search",
        "coverage",
        "most_missed_tokens",
        "required_tokens",
        "decoding",
        "training",
        "datasets",
        "versions",
    ]
    assert {type(leaf) for leaf in every_leaf(full)} <= {str, int, float, bool}
    assert json.loads(json.dumps(full, allow_nan=False)) == full
    assert full["target"] == {
        "id": "me/target",
        "vocab_size": 300,
        "tokenizer_hash": pair.search.vocabulary.tokenizer_hash,
    }
    draft = full["draft"]
    assert draft["id"] == "me/small"
    assert draft["k"] == pair.search.k
    assert draft["share_of_vocabulary"] == pair.search.k / 300
    assert draft["fingerprint"] == pair.draft.vocabulary.fingerprint
    assert draft["parameters"] == pair.draft.num_parameters()
    assert full["datasets"] == ["b/a", "me/data"]
    assert "/home" not in json.dumps(full)


def test_coverage_and_counts_are_those_of_the_search(pair: Pair, full: dict[str, Any]) -> None:
    search, counts = pair.search, pair.counts
    heldout = full["coverage"]["heldout"]
    assert heldout["share"] == pytest.approx(counts.coverage(search.vocabulary, part="heldout"))
    assert heldout["interval"] == list(search.heldout_interval or ())
    assert heldout["tokens"] == counts.total("heldout")
    assert heldout["conversations"] == counts.conversations("heldout")
    sql = full["coverage"]["domains"]["sql"]
    assert sql["search"]["tokens"] == counts.total("search", "sql")
    assert sql["search"]["conversations"] == counts.conversations("search", "sql")
    assert sql["weak"] is bool(search.per_domain["sql"]["weak"])
    assert full["required_tokens"] == {"number": 3, "by_reason": {}}
    assert full["search"]["latency"] == {"kind": "flops", "unit": "FLOP"}
    assert full["search"]["counts_fingerprint"] == counts.fingerprint


def test_the_most_missed_tokens_come_from_the_heldout_counts(
    pair: Pair, full: dict[str, Any]
) -> None:
    missed = full["most_missed_tokens"]
    array = pair.counts.array("heldout")
    assert missed["of"] == "heldout"
    assert 0 < len(missed["tokens"]) <= 20
    for token in missed["tokens"]:
        assert token["id"] not in pair.draft.vocabulary
        assert token["count"] == array[token["id"]]
        assert token["share"] == pytest.approx(token["count"] / array.sum())
        assert token["text"] == pair.tokenizer.decode([token["id"]])
    counts = [token["count"] for token in missed["tokens"]]
    assert counts == sorted(counts, reverse=True)


def test_decoding_tells_figures_and_machine_but_no_names(full: dict[str, Any]) -> None:
    decoding = full["decoding"]
    assert decoding["speedup"]["median"] == pytest.approx((2 + 1 / 0.6) / 2)
    assert decoding["acceptance_length"] == pytest.approx(1 + 6 / 4)
    assert decoding["plain"] == {"dtype": "float32", "tokens_per_second": 12.0}
    assert [entry["name"] for entry in decoding["compared"]] == ["full"]
    assert decoding["machine"] == {
        "cpu": "Test CPU",
        "device": "cpu",
        "cores": 2,
        "threads": 1,
        "versions": {"torch": "2.13.0"},
    }
    assert "generate_kwargs" not in decoding["settings"]
    assert decoding["settings"]["max_new_tokens"] == 12


def test_without_counts_a_report_tells_what_is_missed(pair: Pair) -> None:
    facts = make_metadata(pair.draft, report=pair.report)
    assert facts["most_missed_tokens"] == {
        "of": "decoding",
        "tokens": [
            {"id": 40, "count": 6, "share": 0.25, "text": "|x"},
            {"id": 41, "count": 2, "share": pytest.approx(1 / 12), "text": "\\n`"},
        ],
    }


def test_a_config_alone_gives_what_it_knows(pair: Pair) -> None:
    facts = make_metadata(pair.draft.config)
    assert set(facts) == {"format_version", "target", "draft", "versions"}
    assert "parameters" not in facts["draft"]
    assert facts["draft"]["fingerprint"] == pair.draft.vocabulary.fingerprint


def test_the_source_is_what_the_body_names_if_it_is_on_a_hub() -> None:
    model = make_tiny("llama")
    kept = DraftVocabulary.from_ids(range(9), vocab_size=300)
    for name, expected in (("me/small", "me/small"), ("/home/me/small", None), ("small", None)):
        draft = TrimmedDraftForCausalLM.from_draft_model(model, kept)
        draft.config.body_config._name_or_path = name
        assert make_metadata(draft)["draft"].get("id") == expected


def test_recorded_facts_stay_where_nothing_newer_is_given(
    pair: Pair, full: dict[str, Any]
) -> None:
    again = make_metadata(pair.draft, recorded=full, datasets=["c/d"])
    assert again == {**full, "datasets": ["b/a", "c/d", "me/data"]}
    slower = make_report(pair.search.k)
    newer = make_metadata(pair.draft, recorded=full, report=slower, target_id="me/other")
    assert newer["target"]["id"] == "me/other"
    assert newer["search"] == full["search"]
    assert newer["most_missed_tokens"] == full["most_missed_tokens"]


def test_facts_of_another_draft_are_refused(pair: Pair, full: dict[str, Any]) -> None:
    kept = DraftVocabulary.from_ids(range(pair.search.k), vocab_size=300)
    other = TrimmedDraftForCausalLM.from_draft_model(pair.target, kept)
    with pytest.raises(ValueError, match="the search result is of the vocabulary"):
        make_metadata(other, search=pair.search)
    with pytest.raises(ValueError, match="what was recorded is of the vocabulary"):
        make_metadata(other, recorded=full)
    with pytest.raises(ValueError, match="the training report is of the vocabulary"):
        make_metadata(other, training=make_training(pair.draft))
    with pytest.raises(ValueError, match="about a draft with 7 kept ids"):
        make_metadata(other, report=make_report(7))
    with pytest.raises(ValueError, match="give the counts that were searched"):
        make_metadata(
            pair.draft, search=pair.search, counts=pair.counts.merge(pair.counts, pair.counts)
        )
    with pytest.raises(ValueError, match="facts are made of a trimmed draft"):
        make_metadata(pair.target)


@pytest.mark.parametrize("argument", ["target_id", "draft_id"])
def test_what_is_neither_an_id_nor_a_path_is_refused(pair: Pair, argument: str) -> None:
    ids: dict[str, Any] = {argument: "me/my model"}
    with pytest.raises(ValueError, match="must be named by its id on the Hub"):
        make_metadata(pair.draft, **ids)


@pytest.mark.parametrize("argument", ["target_id", "draft_id"])
@pytest.mark.parametrize("path", ["/home/me/target", "./target", "~/target", "C:\\target"])
def test_a_path_is_left_out(pair: Pair, argument: str, path: str) -> None:
    ids: dict[str, Any] = {argument: path}
    facts = make_metadata(pair.draft, **ids)
    assert "id" not in facts["target"]
    assert "id" not in facts["draft"]


def changed(full: dict[str, Any], *way: Any, to: Any) -> dict[str, Any]:
    facts = copy.deepcopy(full)
    place: Any = facts
    for step in way[:-1]:
        place = place[step]
    place[way[-1]] = to
    return facts


@pytest.mark.parametrize(
    ("way", "to", "named"),
    [
        (("format_version",), 2, r"upgrade with `pip install -U vtrim_hf`"),
        (("format_version",), "1", r"\$\.format_version must be 1"),
        (("target", "id"), "/home/me", r"\$\.target\.id must match"),
        (("target", "id"), None, r"\$\.target\.id must be of type string, got None"),
        (("draft", "k"), 0, r"\$\.draft\.k must be at least 1"),
        (("draft", "k"), "12", r"\$\.draft\.k must be of type integer"),
        (("draft", "k"), 10**9, r"\$\.draft\.k must be at most \$\.target\.vocab_size=300"),
        (("draft", "share_of_vocabulary"), 0.5, r"share_of_vocabulary must be"),
        (("draft", "fingerprint"), "x", r"\$\.draft\.fingerprint must match"),
        (("draft", "dtype"), "/etc/x", r"\$\.draft\.dtype must match"),
        (("draft", "body"), "/etc/x", r"\$\.draft\.body must not name a place"),
        (("coverage", "heldout", "share"), 1.5, r"\$\.coverage\.heldout\.share must be at most"),
        (("coverage", "heldout", "interval"), [0.9, 0.1], r"heldout\.interval must ascend"),
        (("coverage", "heldout", "interval"), [0.9], "at least 2 items"),
        (("coverage", "domains", "sql", "weak"), 1, "must be of type boolean"),
        (("coverage", "domains", "a" * 400), {}, "at most 300 characters"),
        (("decoding", "machine", "cpu"), "/home/me", "must not name a place"),
        (("decoding", "compared", 0, "name"), "~/full", "must not name a place"),
        (("most_missed_tokens", "of"), "x", "one of heldout, search, decoding"),
        (("datasets",), ["/home/me/x.jsonl"], r"\$\.datasets\[0\] must match"),
        (("extra",), 1, r"\$\.extra is not known"),
        (("training", "tokens"), 1.5, r"\$\.training\.tokens must be of type integer"),
        (("training", "data", "train", "path"), "x", r"\$\.training\.data\.train\.path is not"),
        (("training", "datasets"), ["~/x"], r"\$\.training\.datasets\[0\] must match"),
        (("training", "settings", "output_dir"), "/home/me", r"settings\.output_dir is not known"),
        (("training", "settings", "learning_rate"), "fast", r"learning_rate must be of type num"),
        (("training", "settings", "bf16"), ["yes"], r"settings\.bf16 must be of type boolean"),
        (("training", "settings", "unroll_steps"), 0, r"unroll_steps must be at least 1"),
        (("training", "settings", "step_decay"), 1.5, r"step_decay must be at most 1"),
        (("training", "settings", "seed"), 0.5, r"seed must be of type integer"),
        (("training", "settings", "lr_scheduler_type"), "a\n```", r"lr_scheduler_type must match"),
        (("training", "settings", "max_length"), 10**400, "at most 2147483647"),
        (("decoding", "settings", "max_new_tokens"), "9; rm", r"max_new_tokens must be of type"),
        (("decoding", "settings", "prompt"), "x", r"settings\.prompt is not known"),
        (("decoding", "dtype"), "x`\n", r"\$\.decoding\.dtype must match"),
        (("decoding", "speedup", "median"), 1e9, r"speedup\.median must be at most 100, got"),
        (("decoding", "speedup", "median"), -1, r"speedup\.median must be at least 0, got -1"),
        (
            ("decoding", "speedup", "median"),
            float("nan"),
            "median must be of type number, got nan",
        ),
        (
            ("decoding", "speedup", "median"),
            float("inf"),
            "median must be of type number, got inf",
        ),
        (("decoding", "speedup", "median"), 10**400, "median must be at most 100"),
        (("decoding", "speedup", "median"), 99, r"speedup: low, median, high must ascend"),
        (
            ("decoding", "compared", 0, "speedup", "q25"),
            9,
            r"compared\[0\].*q25, median, q75 must",
        ),
        (("decoding", "acceptance_length"), 1e9, "acceptance_length must be at most 1000"),
        (("decoding", "tokens_per_second"), 10**400, "tokens_per_second must be at most"),
        (("training", "acceptance"), [2], r"\$\.training\.acceptance\[0\] must be at most 1"),
        (("training", "curve", 0, "step"), None, r"curve\[0\]\.step must be of type integer"),
    ],
)
def test_a_wrong_fact_is_named(
    full: dict[str, Any], way: tuple[Any, ...], to: Any, named: str
) -> None:
    with pytest.raises(ValueError, match=named) as caught:
        check_metadata(changed(full, *way, to=to))
    way_out = "upgrade with" if to == 2 else "leave that fact out, or make the facts anew"
    assert way_out in str(caught.value)


def test_the_settings_that_are_told_are_all_typed() -> None:
    """A setting that `training_facts` or `decoding_facts` tells has its type in the schema."""
    sections = coverage_schema()["properties"]
    for section, names in (("training", training_facts._SETTINGS), ("decoding", DECODING)):
        typed = sections[section]["properties"]["settings"]["properties"]
        assert set(typed) == set(names)
        assert all({"type", "$ref"} & set(rule) for rule in typed.values())


def test_an_odd_setting_is_refused_at_publishing_and_left_alone_at_loading(
    pair: Pair, full: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = make_training(pair.draft)
    odd["settings"]["bf16"] = "yes"
    with pytest.raises(ValueError, match=r"settings\.bf16 must be .* got 'yes'; leave that fact"):
        make_metadata(pair.draft, training=odd)
    pair.draft.save_pretrained(tmp_path)
    wrong = changed(full, "training", "settings", "bf16", to="yes")
    (tmp_path / "vtrim").mkdir(exist_ok=True)
    (tmp_path / COVERAGE_JSON).write_text(json.dumps(wrong))
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path)
    assert loaded.coverage_metadata is None
    assert "bf16 must be of type boolean, got 'yes'; leave that fact out" in caplog.text


def test_texts_of_tokens_may_look_like_paths(full: dict[str, Any]) -> None:
    check_metadata(changed(full, "most_missed_tokens", "tokens", 0, "text", to="/usr"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"{", "this is no JSON"),
        (b"\xff\xfe", "this is no JSON"),
        (b"[1]", "must be of type object"),
        (b"null", "must be of type object"),
        (b"[" * 100_000, "no JSON|type object"),
        (b" " * (LARGEST_FILE + 1), "at most 1048576 bytes"),
        (b'{"format_version": NaN}', "must hold format_version, target"),
    ],
)
def test_hostile_text_is_refused(text: bytes, named: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=named):
        parse(text)
    (tmp_path / "vtrim").mkdir()
    (tmp_path / COVERAGE_JSON).write_bytes(text)
    with pytest.raises(ValueError, match=r"coverage\.json"):
        read(tmp_path)


def test_facts_are_read_from_a_folder_or_a_file(
    pair: Pair, full: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match=r"coverage\.json is missing"):
        read(tmp_path)
    pair.draft.coverage_metadata = full
    pair.draft.save_pretrained(tmp_path)
    assert read(tmp_path) == read(tmp_path / COVERAGE_JSON) == full


_NOTHING_BUT_JSON = """
import importlib.util, json, sys
for name in ("torch", "transformers", "numpy", "huggingface_hub", "vtrim_hf"):
    sys.modules[name] = None
facts, schema = (json.load(open(path)) for path in sys.argv[1:3])
spec = importlib.util.spec_from_file_location("checker", sys.argv[3])
checker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checker)
checker.check_against(facts, schema)
try: checker.check_against({**facts, "extra": 1}, schema)
except ValueError as error: print(facts["draft"]["k"], error)
"""


def test_facts_and_schema_are_plain_json(pair: Pair, full: dict[str, Any], tmp_path: Path) -> None:
    """What another program needs is in the two files; none of this package is loaded."""
    place = tmp_path / "coverage.json"
    place.write_text(json.dumps(full))
    checker = Path(vtrim_hf.__file__).with_name("coverage_schema.py")
    done = subprocess.run(
        [sys.executable, "-c", _NOTHING_BUT_JSON, place, card_file(SCHEMA), checker],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.stdout.startswith(f"{pair.search.k} $.extra is not known"), done.stderr


_WITHOUT_TORCH = """
import sys, types
package = types.ModuleType("vtrim_hf")
package.__path__ = [sys.argv[1]]
sys.modules["vtrim_hf"] = package
for name in ("torch", "transformers", "numpy", "huggingface_hub"):
    sys.modules[name] = None
from vtrim_hf.coverage_metadata import read
print(read(sys.argv[2])["draft"]["k"])
"""


def test_facts_are_read_without_torch(pair: Pair, full: dict[str, Any], tmp_path: Path) -> None:
    place = tmp_path / "coverage.json"
    place.write_text(json.dumps(full))
    package = Path(vtrim_hf.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, package, place],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.stdout.strip() == str(pair.search.k), done.stderr


def test_no_build_of_a_kernel_is_told() -> None:
    """Neither of a new report nor of facts that an earlier release recorded."""
    pair = make_pair()
    kernel = "Linux-6.18.44-fc-v669-x86_64-with-glibc2.39"
    pair.report.machine["system"] = kernel
    facts = make_metadata(pair.draft, report=pair.report)
    assert facts["decoding"]["machine"]["system"] == "Linux x86_64"
    facts["decoding"]["machine"]["system"] = kernel
    again = make_metadata(pair.draft, recorded=facts)
    assert again["decoding"]["machine"] == {
        **facts["decoding"]["machine"],
        "system": "Linux x86_64",
    }
    assert facts["decoding"]["machine"]["system"] == kernel, "what was given is not changed"


_odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 10**12),
    st.floats(),
    st.floats(0, 1).map(np.float32),
    st.integers(0, 1000).map(np.int64),
    st.sampled_from(["/home/me/x", "C:\\x", "~/y", "a.jsonl", "word", ""]),
    st.lists(st.floats(0, 1), max_size=3).map(np.array),
)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_whatever_a_report_holds_the_facts_are_plain_or_refused(data: st.DataObject) -> None:
    """No null, no type of numpy, no path: not from any field that is not what it should be."""
    pair = _one_pair()
    report = make_training(pair.draft)
    for _ in range(data.draw(st.integers(1, 4))):
        place: Any = report
        while True:
            key = data.draw(st.sampled_from([*place]))
            if key in ("schema", "fingerprints"):
                break
            if isinstance(place[key], dict) and place[key] and data.draw(st.booleans()):
                place = place[key]
                continue
            place[key] = data.draw(_odd)
            break
    try:
        facts = make_metadata(pair.draft, training=report)
    except ValueError:
        return  # refused by name
    assert {type(leaf) for leaf in every_leaf(facts)} <= {str, int, float, bool}
    text = json.dumps(facts, allow_nan=False)
    assert "/home" not in text
    card = render_card("me/x", facts, "mit")
    for word in ("None", "null", "nan", "Undefined", "np.", "/home", "array"):
        assert not re.search(rf"\b{re.escape(word)}", card), word


@cache
def _one_pair() -> Pair:
    return make_pair()
