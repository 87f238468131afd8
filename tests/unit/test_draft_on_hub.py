"""Facts that travel with a draft's folder, and what `save_pretrained(push_to_hub=True)` takes."""

from __future__ import annotations

import importlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from published_facts import make_pair
from vtrim_hf import DraftVocabulary, TrimmedDraftForCausalLM
from vtrim_hf.coverage_metadata import make_metadata
from vtrim_hf.draft_on_hub import COVERAGE_JSON, check_plain, take_publishing


@pytest.fixture
def draft() -> TrimmedDraftForCausalLM:
    pair = make_pair()
    pair.draft.coverage_metadata = make_metadata(pair.draft, search=pair.search)
    return pair.draft


def test_facts_come_back(draft: TrimmedDraftForCausalLM, tmp_path: Path) -> None:
    draft.save_pretrained(tmp_path)
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path)
    assert loaded.coverage_metadata == draft.coverage_metadata is not None
    loaded.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / COVERAGE_JSON).read_bytes() == (
        tmp_path / COVERAGE_JSON
    ).read_bytes()


def test_facts_of_an_earlier_draft_do_not_stay(
    draft: TrimmedDraftForCausalLM, tmp_path: Path
) -> None:
    draft.save_pretrained(tmp_path)
    draft.coverage_metadata = None
    draft.save_pretrained(tmp_path)
    assert not (tmp_path / COVERAGE_JSON).exists()
    assert TrimmedDraftForCausalLM.from_pretrained(tmp_path).coverage_metadata is None


def test_only_the_main_process_writes_facts(
    draft: TrimmedDraftForCausalLM, tmp_path: Path
) -> None:
    draft.save_pretrained(tmp_path, is_main_process=False)
    assert not (tmp_path / COVERAGE_JSON).exists()


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"draft": None}, r"\$\.draft must be text"),
        ({"x": float("nan")}, r"\$\.x must be text, a finite number"),
        ({"x": {1: 2}}, "a name is text"),
        ([], "must be a dict"),
        ({"draft": {"fingerprint": "0" * 64}}, "the draft's is"),
        ({}, "fingerprint is 'None'"),
    ],
)
def test_what_cannot_be_read_back_is_not_saved(
    draft: TrimmedDraftForCausalLM, facts: Any, named: str, tmp_path: Path
) -> None:
    draft.coverage_metadata = facts
    with pytest.raises(ValueError, match=named):
        draft.save_pretrained(tmp_path)
    assert not [*tmp_path.iterdir()]


def deep(levels: int) -> str:
    return '{"draft":' * levels + "1" + "}" * levels


@pytest.mark.parametrize("package", [True, False])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param(b"not JSON", "no JSON", id="text"),
        pytest.param(b"\xff\x00", "no JSON", id="bytes"),
        pytest.param(b"[1, 2]", "holds a list", id="list"),
        pytest.param(b"null", "holds a NoneType", id="null"),
        pytest.param(b'{"draft": 3}', "fingerprint is", id="wrong type"),
        pytest.param(b'{"draft": {"fingerprint": {}}}', "fingerprint is", id="wrong type inside"),
        pytest.param(b'{"x": NaN}', "finite number", id="nan"),
        pytest.param(b'{"x": null}', "must be text", id="null inside"),
        pytest.param(b'"' + b"x" * (1 << 20) + b'"', "bytes", id="oversized"),
        pytest.param(deep(200).encode(), "nested deeper", id="deep"),
        pytest.param(deep(100_000).encode(), "recursion|nested", id="endless"),
    ],
)
def test_a_hostile_file_is_left_alone_with_a_warning(
    draft: TrimmedDraftForCausalLM,
    text: bytes,
    named: str,
    package: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The draft itself is sound, so it loads; with the package and without."""
    if not package:
        monkeypatch.setattr(importlib, "import_module", _no_package)
    draft.save_pretrained(tmp_path)
    (tmp_path / COVERAGE_JSON).write_bytes(text)
    with caplog.at_level(logging.WARNING, "vtrim_hf"):
        loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path)
    assert loaded.coverage_metadata is None
    assert loaded.kept_ids.tolist() == draft.kept_ids.tolist()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "loaded without its facts" in said
    assert any(word in said for word in named.split("|")), said


def _no_package(name: str) -> Any:
    raise ImportError(name)


def test_the_schema_decides_where_the_package_is(
    draft: TrimmedDraftForCausalLM,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    draft.save_pretrained(tmp_path)
    place = tmp_path / COVERAGE_JSON
    facts = json.loads(place.read_text())
    place.write_text(json.dumps({**facts, "extra": "field"}))
    with caplog.at_level(logging.WARNING, "vtrim_hf"):
        assert TrimmedDraftForCausalLM.from_pretrained(tmp_path).coverage_metadata is None
    assert "$.extra is not known" in caplog.text
    monkeypatch.setattr(importlib, "import_module", _no_package)
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path)
    assert loaded.coverage_metadata["extra"] == "field"


def test_facts_of_a_newer_format_say_the_way_out(
    draft: TrimmedDraftForCausalLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draft.save_pretrained(tmp_path)
    place = tmp_path / COVERAGE_JSON
    place.write_text(json.dumps({**json.loads(place.read_text()), "format_version": 2}))
    with caplog.at_level(logging.WARNING, "vtrim_hf"):
        assert TrimmedDraftForCausalLM.from_pretrained(tmp_path).coverage_metadata is None
    assert "pip install -U vtrim_hf" in caplog.text


def test_facts_of_another_vocabulary_are_not_taken(
    draft: TrimmedDraftForCausalLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draft.save_pretrained(tmp_path)
    text = (tmp_path / COVERAGE_JSON).read_text()
    kept = DraftVocabulary.from_ids(range(8), vocab_size=300)
    other = TrimmedDraftForCausalLM.from_draft_model(make_pair().target, kept)
    other.save_pretrained(tmp_path)
    (tmp_path / COVERAGE_JSON).parent.mkdir(exist_ok=True)
    (tmp_path / COVERAGE_JSON).write_text(text)
    with caplog.at_level(logging.WARNING, "vtrim_hf"):
        assert TrimmedDraftForCausalLM.from_pretrained(tmp_path).coverage_metadata is None
    assert "$.draft.fingerprint" in caplog.text


def test_plain_json_has_a_depth() -> None:
    value: Any = 1
    for _ in range(30):
        value = [value]
    with pytest.raises(ValueError, match="nested deeper"):
        check_plain(value)


def test_arguments_of_publishing_are_taken_out_of_those_of_saving() -> None:
    kwargs: dict[str, Any] = {
        "push_to_hub": True,
        "repo_id": "me/x",
        "license": "mit",
        "max_shard_size": "1GB",
        "is_main_process": True,
        "token": "hf",
        "private": True,
    }
    taken = take_publishing(kwargs)
    assert taken == {
        "repo_id": "me/x",
        "license": "mit",
        "token": "hf",
        "private": True,
        "max_shard_size": "1GB",
    }
    assert kwargs == {"max_shard_size": "1GB", "is_main_process": True}
    saving: dict[str, Any] = {"push_to_hub": False, "variant": "fp16"}
    assert take_publishing(saving) is None
    assert saving == {"variant": "fp16"}


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({}, "needs repo_id='NAMESPACE/NAME'"),
        ({"repo_id": "me/x", "state_dict": {}}, "does not go with state_dict"),
        ({"repo_id": "me/x", "variant": "fp16"}, "does not go with variant"),
    ],
)
def test_saving_that_cannot_be_published_writes_nothing(
    draft: TrimmedDraftForCausalLM, kwargs: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=named):
        draft.save_pretrained(tmp_path / "draft", push_to_hub=True, **kwargs)
    assert not (tmp_path / "draft").exists()


def test_publishing_without_the_package_says_what_to_install(
    draft: TrimmedDraftForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib, "import_module", _no_package)
    with pytest.raises(ImportError, match="pip install vtrim_hf"):
        draft.push_to_hub("me/x")
