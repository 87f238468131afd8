from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from transformers import AutoConfig, Gemma3Config, GPT2Config, LlamaConfig

from tiny_models import make_tiny
from vtrim_hf import DraftVocabulary, TrimmedDraftConfig, TrimmedDraftForCausalLM
from vtrim_hf.configuration_trimmed_draft import FORMAT_VERSION


def body_config(**fields) -> Any:
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
    return LlamaConfig(**{**sizes, "num_attention_heads": 4, "intermediate_size": 48, **fields})


def config(**fields) -> Any:
    sizes: dict[str, Any] = {"vocab_size": 72, "draft_vocab_size": 8, "body_config": body_config()}
    return TrimmedDraftConfig(**{**sizes, **fields})


def test_the_two_sizes_stay_apart():
    made = config()
    assert (made.vocab_size, made.draft_vocab_size) == (72, 8)
    assert made.body_config.vocab_size == 64, "the body keeps the width of its embeddings"


def test_without_a_draft_size_the_head_is_full():
    assert config(draft_vocab_size=None).draft_vocab_size == 72


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        pytest.param({"draft_vocab_size": 0}, r"\[1, vocab_size=72\], got 0", id="no rows"),
        pytest.param({"draft_vocab_size": 73}, "got 73", id="more rows than tokens"),
        pytest.param({"draft_vocab_size": "8"}, "whole number, got '8'", id="text"),
        pytest.param({"draft_vocab_size": 8.0}, r"whole number, got 8\.0", id="float"),
        pytest.param({"vocab_size": None}, "vocab_size must be a whole number", id="no width"),
        pytest.param({"vocab_size": True}, "vocab_size must be a whole number", id="truth"),
        pytest.param({"body": "medusa"}, "standalone, eagle3, got 'medusa'", id="unknown body"),
        pytest.param({"body_config": None}, "body_config must be", id="no body config"),
        pytest.param({"body_config": {}}, "body_config must be", id="empty body config"),
        pytest.param(
            {"body_config": {"hidden_size": 8}}, "with its model_type", id="body without a type"
        ),
        pytest.param(
            {"body_config": {"model_type": "no-such-model"}}, "no-such-model", id="unknown type"
        ),
        pytest.param({"frozen_parameters": 5}, "frozen_parameters must be a list, got 5", id="n"),
        pytest.param({"frozen_parameters": [5]}, "names of parameters, got 5", id="no names"),
        pytest.param({"tokenizer_hash": 5}, "tokenizer_hash must be a str, got 5", id="hash"),
        pytest.param({"vocabulary_fingerprint": []}, "vocabulary_fingerprint must", id="print"),
        pytest.param({"vocabulary_provenance": []}, "provenance must be a dict", id="provenance"),
        pytest.param({"head_bias": "no"}, "head_bias must be a bool", id="bias"),
        pytest.param({"vocab_size": 10**30}, "vocab_size must be at most", id="huge width"),
        pytest.param(
            {"required_fields": "x"}, "required_fields must be a list", id="text of fields"
        ),
        pytest.param({"required_fields": [3]}, r"needs 3 of its config", id="field of a number"),
        pytest.param(
            {"row_scale": 2, "required_fields": ["head_bias", "row_scale"]},
            r"needs 'row_scale' of its config.*pip install -U vtrim_hf",
            id="later field",
        ),
        pytest.param({"format_version": "1"}, "format_version must be a whole", id="version text"),
    ],
)
def test_refuses(fields, named):
    with pytest.raises(ValueError, match=named):
        config(**fields)


def test_a_newer_layout_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"layout version 99.*pip install -U vtrim_hf"):
        config(format_version=FORMAT_VERSION + 98)


@pytest.mark.parametrize("which", ["text_config", "decoder", "generator", "text_encoder"])
@pytest.mark.parametrize("asked", [{}, {"decoder": True}, {"encoder": True}])
def test_no_nested_config_takes_over(which, asked):
    """transformers#45759: an attribute of such a name would hijack vocab_size."""
    made = config(**{which: {"vocab_size": 5}})
    assert made.get_text_config(**asked) is made
    assert made.get_text_config(**asked).vocab_size == 72


@pytest.mark.parametrize("tied", [True, False])
def test_tying_is_off_in_every_part(tied):
    made = config(tie_word_embeddings=tied, body_config=body_config(tie_word_embeddings=tied))
    assert made.tie_word_embeddings is False
    assert made.body_config.tie_word_embeddings is False
    nested = Gemma3Config(text_config={"vocab_size": 64, "tie_word_embeddings": tied})
    made = config(body_config=nested)
    assert made.body_config.get_text_config().tie_word_embeddings is False


def test_facts_that_caches_read_come_from_the_body():
    made = config(body_config=body_config(num_key_value_heads=2, max_position_embeddings=77))
    assert (made.hidden_size, made.num_hidden_layers, made.num_attention_heads) == (32, 2, 4)
    assert (made.num_key_value_heads, made.max_position_embeddings) == (2, 77)
    assert made.head_dim == 8
    other_names = config(body_config=GPT2Config(vocab_size=64, n_embd=24, n_layer=3, n_head=2))
    assert (other_names.hidden_size, other_names.num_hidden_layers) == (24, 3)
    nested = config(body_config=Gemma3Config(text_config={"vocab_size": 64, "hidden_size": 40}))
    assert nested.hidden_size == 40


def test_other_names_are_missing_as_anywhere():
    with pytest.raises(AttributeError, match="no attribute 'rope_parameters'"):
        _ = config().rope_parameters
    assert not hasattr(config(), "text_config")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_copies_are_equal(copied):
    made = config(vocabulary_provenance={"domain": "sql"})
    assert copied(made).to_dict() == made.to_dict()


def test_json_round_trip(tmp_path):
    made = config(
        head_bias=True,
        tokenizer_hash="abc",
        vocabulary_fingerprint="def",
        vocabulary_provenance={"domains": ["sql"]},
        frozen_parameters=["body.model.embed_tokens.weight"],
        eos_token_id=[1, 2],
        body_config=body_config(rope_parameters={"rope_type": "default", "rope_theta": 5e5}),
    )
    made.save_pretrained(tmp_path)
    for loaded in (
        TrimmedDraftConfig.from_pretrained(tmp_path),
        AutoConfig.from_pretrained(tmp_path),
    ):
        assert type(loaded) is TrimmedDraftConfig
        # Which layers the text comes from is all that saving may add.
        before, after = made.to_dict(), loaded.to_dict()
        for facts in (before, after):
            facts["body_config"].pop("_name_or_path", None)
            facts.pop("_name_or_path", None)
            facts.pop("auto_map", None)
        assert after == before
        assert loaded.body_config.rope_parameters["rope_theta"] == 5e5


def test_a_config_of_a_later_layout_does_not_load(tmp_path):
    config().save_pretrained(tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**facts, "format_version": 2}))
    with pytest.raises(ValueError, match="layout version 2, this release reads up to 1"):
        AutoConfig.from_pretrained(tmp_path)


def test_no_path_of_this_machine_reaches_the_file(tmp_path):
    make_tiny("llama").save_pretrained(tmp_path / "private" / "source")
    vocabulary = DraftVocabulary.from_ids([3, 5], vocab_size=300)
    draft = TrimmedDraftForCausalLM.from_draft_model(tmp_path / "private" / "source", vocabulary)
    draft.save_pretrained(tmp_path / "draft")
    again = TrimmedDraftForCausalLM.from_pretrained(tmp_path / "draft")
    again.save_pretrained(tmp_path / "draft again")
    for folder in ("draft", "draft again"):
        for place in (tmp_path / folder).glob("*.json"):
            assert str(tmp_path) not in place.read_text(), place
    assert str(tmp_path) not in json.dumps(draft.config.to_dict(), default=str)


def test_a_hub_id_is_kept_and_a_folder_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside").mkdir()
    source = make_tiny("llama")
    vocabulary = DraftVocabulary.from_ids([3, 5], vocab_size=300)
    names = {"org/small-model": "org/small-model", str(tmp_path / "gone"): "", "beside": ""}
    for name, kept in names.items():
        source.config.name_or_path = name
        draft = TrimmedDraftForCausalLM.from_draft_model(source, vocabulary)
        assert draft.config.body_config.name_or_path == kept
        assert source.config.name_or_path == name


LAYOUT_1 = {
    "vocab_size",
    "draft_vocab_size",
    "body",
    "body_config",
    "head_bias",
    "tokenizer_hash",
    "vocabulary_fingerprint",
    "vocabulary_provenance",
    "frozen_parameters",
    "target_name",
    "target_hidden_size",
    "target_num_hidden_layers",
    "target_layer_ids",
    "format_version",
    "required_fields",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}
CHANGE_NOTHING: set[str] = set()
"""Fields added since that change nothing of what the weights mean."""


def test_a_new_field_is_one_that_earlier_releases_may_pass_over():
    """Otherwise whoever writes it must name it in `required_fields`, and a test must show that."""
    own = {
        name
        for name in TrimmedDraftConfig.__annotations__
        if "ClassVar" not in str(TrimmedDraftConfig.__annotations__[name])
    }
    assert own - CHANGE_NOTHING == LAYOUT_1


def test_other_unknown_fields_are_kept():
    made = config(note_of_later=[1], required_fields=["head_bias"])
    again = TrimmedDraftConfig.from_dict(made.to_dict())
    assert again.note_of_later == [1]
    assert again.required_fields == ["head_bias"]
    assert "format_version" in made.to_diff_dict()
