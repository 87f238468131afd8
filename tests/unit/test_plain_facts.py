"""Plain facts: ids on the Hub, no place of a machine, JSON types only."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vtrim_hf.plain_facts import (
    hub_id,
    is_local_path,
    local_path_in,
    plain,
    system_of,
    without_local_paths,
)


@pytest.mark.parametrize("name", ["HuggingFaceTB/SmolLM2-135M-Instruct", "me/a.b_c", "_a/0"])
def test_ids_pass(name: str) -> None:
    assert hub_id(name, "target") == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        None,
        "/home/me/model",
        "./model",
        "../a/b",
        "~/models/x",
        "C:\\models\\x",
        "c:/models",
        "\\\\server\\share",
        "file:///x",
        "data/train.jsonl",
        "me/weights.safetensors",
        "models/checkpoints/last",
        "smollm2",
    ],
)
def test_paths_and_bare_names_are_dropped(name: str | None) -> None:
    assert hub_id(name, "target") is None


def test_an_id_that_is_a_folder_here_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models" / "target").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub_id("models/target", "target") is None
    assert hub_id("models/other", "target") == "models/other"


@pytest.mark.parametrize("name", ["me/a b", "me/<x>", "me/a--b", "me/a..b", "me/" + "x" * 100])
def test_what_is_neither_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the data set must be named by its id on the Hub"):
        hub_id(name, "data set")


def test_paths_are_found_deep_down_but_not_in_texts_of_tokens() -> None:
    assert local_path_in({"a": [{"b": "x", "c": "/root/x"}]}) == ("$.a[0].c", "/root/x")
    assert local_path_in({"/root/x": 1}) == ("the name in $", "/root/x")
    assert local_path_in({"tokens": [{"text": "/usr"}], "n": 1, "domain.json": "ok"}) is None


@pytest.mark.parametrize("text", ["a/b", "torch 2.1/cpu", "x.json\ny", "AMD EPYC", "1:2", "</s>"])
def test_ordinary_texts_are_no_paths(text: str) -> None:
    assert not is_local_path(text)


def test_paths_are_taken_out() -> None:
    facts = {"a": "/x", "b": ["~/y", "z", 3], "c": {"d": "./e", "f": 1}, "/k": 2}
    assert without_local_paths(facts) == {"b": ["z", 3], "c": {"f": 1}}


class Kind(StrEnum):
    one = "one"


def test_everything_becomes_a_json_type() -> None:
    made = plain(
        {
            "int": np.int64(3),
            "float": np.float32(0.5),
            "bool": np.bool_(True),
            "torch": torch.tensor(2),
            "enum": Kind.one,
            "none": None,
            "nan": float("nan"),
            "inf": np.float64("inf"),
            "list": (1, None, "a"),
            7: {"x": None},
        }
    )
    expected = {"int": 3, "float": 0.5, "bool": True, "torch": 2, "enum": "one"}
    assert made == {**expected, "list": [1, "a"], "7": {}}
    assert [type(made[name]) for name in expected] == [int, float, bool, int, str]
    json.dumps(made, allow_nan=False)


@pytest.mark.parametrize("value", [Path("x"), object(), {1}, b"x"])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="a fact must be text"):
        plain({"a": value})


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Linux-6.18.44-fc-v669-x86_64-with-glibc2.39", "Linux x86_64"),
        ("Linux-5.15.0-1051-aws-aarch64-with-glibc2.35", "Linux aarch64"),
        ("Linux-6.1.0-secret.host.example-x86_64-with", "Linux x86_64"),
        ("macOS-14.5-arm64-arm-64bit", "macOS arm64"),
        ("Windows-10-10.0.19045-SP0", "Windows"),
        ("Linux x86_64", "Linux x86_64"),
        ("", None),
        ("6.18", None),
        (None, None),
        (3, None),
    ],
)
def test_of_a_platform_only_system_and_architecture_are_told(said: Any, told: str | None) -> None:
    assert system_of(said) == told
    assert system_of(told) == told
