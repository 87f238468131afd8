"""The vocabularies that others would choose: the most frequent of what each of them counts."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chat_templates import LLAMA3
from recipes import write_rows
from tiny_models import make_byte_tokenizer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.newest


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("vocabulary_rivals")


def test_the_most_frequent_are_filled_up_from_below(rivals: Any) -> None:
    counted = np.array([0, 3, 0, 9, 1, 0])
    assert rivals.first(counted, 2).tolist() == [1, 3]
    assert rivals.first(counted, 5).tolist() == [0, 1, 2, 3, 4]
    assert rivals.first(counted, 2, forced=[5]).tolist() == [3, 5]


def test_counts_of_another_width_are_counted_anew(
    rivals: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets of one tokenizer may be padded to several widths."""
    monkeypatch.setenv("VTRIM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "train.jsonl"
    write_rows(path, "fox", 0, 9)
    found = []
    for width in (300, 320):
        facts = {"tokenizer_hash": "t", "template_hash": "c"}
        target = SimpleNamespace(vocab_size=width, facts=facts, tokenizer=make_byte_tokenizer())
        found.append(rivals.text_counts(path, target, 0.2).raw)
    assert [counts.size for counts in found] == [300, 320]
    assert found[0].tolist() == found[1][:300].tolist()


def test_conversations_are_read_as_the_package_counts_them(rivals: Any, tmp_path: Path) -> None:
    """Calls without a text, texts in parts, and rows that cannot be read."""
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    asked = {"role": "user", "content": "do it"}
    turns: list[Any] = [
        [asked, {"role": "assistant", "content": None, "tool_calls": [call]}],
        [
            {"role": "user", "content": [{"type": "text", "text": "do "}, "it"]},
            {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
        ],
        [asked, {"role": "assistant", "content": "half \ud800"}],
        [asked],
    ]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"messages": one}) + "\n" for one in turns), "utf-8")
    tokenizer = make_byte_tokenizer()
    tokenizer.chat_template = LLAMA3
    target = SimpleNamespace(vocab_size=300, tokenizer=tokenizer)
    called, parts = rivals.search_texts(path, target, 0.0)
    assert '{"name": "f", "parameters": {"a": 1}}' in called[0]
    assert called[1] == "do it\n"
    assert "do it<|eot_id|>" in parts[0]
    assert "done<|eot_id|>" in parts[0]
    assert parts[1] == "do it\ndone"


@pytest.mark.parametrize("end", [5, None])
def test_each_way_counts_its_own(
    rivals: Any, monkeypatch: pytest.MonkeyPatch, end: int | None
) -> None:
    monkeypatch.setattr(rivals, "USUAL", 3)
    target = SimpleNamespace(vocab_size=6, tokenizer=SimpleNamespace(eos_token_id=end))
    texts = rivals.TextCounts(np.array([9, 8, 0, 1, 0, 0]), np.zeros(6, dtype=np.int64))
    own, raw, general = (
        np.array([0, 7, 6, 5, 4, 0]),
        np.array([0, 0, 0, 2, 3, 0]),
        np.array([4, 0, 0, 0, 3, 2]),
    )
    found = rivals.rival_vocabularies(own, 2, texts, raw, general, target)
    assert {name: ids.tolist() for name, ids in found.items()} == {
        "assistant": [1, 2],
        "conversation": [0, 1],
        "raw": [3, 4] if end is None else [4, 5],  # its end of sequence is kept
        "fixed": [1, 2, 3],
        "fixed_general": [0, 4, 5],
    }
    assert set(found) | {"vtrim"} == set(rivals.WAYS)
    without = rivals.rival_vocabularies(own, 2, texts, raw, None, target)
    assert "fixed_general" not in without
