"""Drafts made of drafts, and of targets: rows go by token id, and nothing else changes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache

from drafting import check_proposals, make_draft, make_eagle, plain_ids, teach, watch
from tiny_models import make_prompt, make_tiny, perturbed
from vtrim_hf import DraftVocabulary, TrimmedDraftConfig, TrimmedDraftForCausalLM
from vtrim_hf.compatibility import check_call, check_pair

KEPT = [1, 2, 5, 7, 20, 77, 130, 255, 298, 299]
PART = [2, 7, 77, 299]
MIXED = [0, 2, 6, 77, 131, 299]
BODIES = ("standalone", "eagle3")
EAGLE_FACTS = ("target_name", "target_hidden_size", "target_num_hidden_layers", "target_layer_ids")


def vocabulary(ids: Any, **more: Any) -> DraftVocabulary:
    return DraftVocabulary.from_ids(list(ids), **{"vocab_size": 300, **more})


def make_pair(body: str, ids: Any = KEPT, target: Any = None) -> tuple[Any, Any]:
    """A draft, and the model whose head its rows come from; the draft's rows are no copies any
    more."""
    target = target or make_tiny("llama")
    if body == "standalone":
        draft = make_draft(target, ids)
    else:
        draft = make_eagle(target, ids, layers=(0, 1, 2))
    with torch.no_grad():
        draft.lm_head.weight.add_(torch.randn_like(draft.lm_head.weight))
        if draft.lm_head.bias is not None:
            draft.lm_head.bias.add_(torch.randn_like(draft.lm_head.bias))
    return draft, target


def states(draft: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in draft.state_dict().items()}


def head_rows(draft: Any) -> dict[int, torch.Tensor]:
    ids = draft.vocabulary.ids.tolist()
    return dict(zip(ids, draft.lm_head.weight.detach(), strict=True))


def logits_of(draft: Any, target: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits of the target's width after a text, whichever body the draft has."""
    with torch.no_grad():
        if draft.config.body == "standalone":
            output = draft(ids)
        else:
            found = target(ids[:, :-1], output_hidden_states=True).hidden_states
            features = [found[i] for i in draft.config.target_layer_ids]
            output = draft(
                inputs_embeds=target.get_input_embeddings()(ids[:, 1:]),
                target_hidden_states=torch.cat(features, dim=-1),
            )
    logits: torch.Tensor = output.logits
    return logits


# Retrim and extend.


@pytest.mark.parametrize("body", BODIES)
def test_retrim_carries_rows_by_token_id(body: str) -> None:
    draft, target = make_pair(body)
    before, settings = states(draft), draft.config.to_dict()
    part = draft.retrim(vocabulary(PART, provenance={"domain": "sql"}))
    assert part.kept_ids.tolist() == PART
    assert part.vocabulary.provenance == {"domain": "sql"}
    ours, theirs = head_rows(part), head_rows(draft)
    assert all(torch.equal(ours[token], theirs[token]) for token in PART)
    # Nothing else changed, here or there, and nothing is shared.
    rest = states(part)
    assert rest.keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(draft.state_dict()[name], value)
        if name not in ("kept_ids", "body.lm_head.weight"):
            assert torch.equal(rest[name], value)
    assert draft.config.to_dict() == settings
    pointers = {tensor.data_ptr() for tensor in (*draft.parameters(), *draft.buffers())}
    assert not pointers & {t.data_ptr() for t in (*part.parameters(), *part.buffers())}
    changed = {
        name for name, value in part.config.to_dict().items() if settings.get(name) != value
    }
    assert changed == {"draft_vocab_size", "vocabulary_fingerprint", "vocabulary_provenance"}
    assert part.generation_config.to_dict() == draft.generation_config.to_dict()
    prompt = make_prompt(8)
    wide, narrow = logits_of(draft, target, prompt), logits_of(part, target, prompt)
    torch.testing.assert_close(narrow[..., PART], wide[..., PART])
    assert int(narrow[0, -1].isfinite().sum()) == len(PART)


@pytest.mark.parametrize("kind", ["llama", "qwen-padded"])
@pytest.mark.parametrize("body", BODIES)
def test_extend_takes_new_rows_from_the_target(body: str, kind: str) -> None:
    draft, target = make_pair(body, target=make_tiny(kind))
    width = target.config.vocab_size
    before = states(draft)
    mixed = draft.extend(vocabulary(MIXED, vocab_size=width), target)
    ours, theirs = head_rows(mixed), head_rows(draft)
    fresh = target.get_output_embeddings().weight
    for token in MIXED:
        expected = theirs[token] if token in KEPT else fresh[token]
        assert torch.equal(ours[token], expected)
        assert token not in KEPT or not torch.equal(ours[token], fresh[token])
    for name, value in states(mixed).items():
        if name not in ("kept_ids", "body.lm_head.weight"):
            assert torch.equal(value, before[name])
    assert all(torch.equal(draft.state_dict()[name], value) for name, value in before.items())
    mixed.check_kept_ids()
    prompt = make_prompt(8)
    shared = [token for token in MIXED if token in KEPT]
    torch.testing.assert_close(
        logits_of(mixed, target, prompt)[..., shared],
        logits_of(draft, target, prompt)[..., shared],
    )


@pytest.mark.parametrize("body", BODIES)
def test_extended_to_all_ids_there_is_no_table(body: str, tmp_path: Any) -> None:
    """The honest full-vocabulary comparator: the same draft, a head of full width."""
    draft, target = make_pair(body)
    full = draft.extend(vocabulary(range(300)), target)
    assert full.kept_ids is None
    assert full.vocabulary.is_full
    assert full.lm_head.weight.shape == (300, 48)
    assert "kept_ids" not in full.state_dict()
    assert torch.equal(full.lm_head.weight[KEPT], draft.lm_head.weight)
    others = [token for token in range(300) if token not in KEPT]
    assert torch.equal(full.lm_head.weight[others], target.lm_head.weight[others])
    full.save_pretrained(tmp_path)
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(states(full)[n], value) for n, value in loaded.state_dict().items())
    back = full.retrim(vocabulary(KEPT))
    assert torch.equal(back.lm_head.weight, draft.lm_head.weight)
    assert back.kept_ids.tolist() == KEPT
    prompt = make_prompt(8)
    torch.testing.assert_close(
        logits_of(full, target, prompt)[..., KEPT], logits_of(draft, target, prompt)[..., KEPT]
    )


def test_a_bias_goes_along() -> None:
    target = make_tiny("llama")
    target.lm_head = nn.Linear(48, 300)
    draft, _ = make_pair("eagle3", target=target)
    assert draft.config.head_bias
    mixed = draft.extend(vocabulary(MIXED), target)
    for row, token in enumerate(MIXED):
        mine = (
            draft.lm_head.bias[KEPT.index(token)] if token in KEPT else target.lm_head.bias[token]
        )
        assert mixed.lm_head.bias[row] == mine
    without, _ = make_pair("eagle3")
    with pytest.raises(
        ValueError, match=r"do not fit the draft's: 48 wide with a bias and 48 wide"
    ):
        without.extend(vocabulary(MIXED), target)


@pytest.mark.parametrize("body", BODIES)
def test_dtype_freezing_and_settings_stay(body: str) -> None:
    draft, target = make_pair(body)
    draft.to(torch.bfloat16)
    draft.lm_head.weight.requires_grad_(False)
    draft.generation_config.num_assistant_tokens = 7
    draft.train()
    for again in (draft.retrim(vocabulary(PART)), draft.extend(vocabulary(MIXED), target)):
        assert again.dtype == again.config.dtype == torch.bfloat16
        assert again.lm_head.weight.dtype == torch.bfloat16
        assert not again.lm_head.weight.requires_grad
        assert again.generation_config.num_assistant_tokens == 7
        assert not again.training
        assert again.kept_ids.dtype == torch.int64
    assert draft.training


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
def test_both_draft_as_a_fresh_one(packed: bool) -> None:
    draft, target = make_pair("eagle3")
    if packed:
        draft.body.pack()
    prompt = make_prompt()
    plain = plain_ids(target, prompt, max_new_tokens=16)
    for again in (draft.retrim(vocabulary(PART)), draft.extend(vocabulary(MIXED), target)):
        run = watch(target, again, prompt, max_new_tokens=16)
        assert run.new_ids == plain
        assert run.proposed_ids <= set(again.kept_ids.tolist())
        check_proposals(run, again, target)


def test_a_taught_draft_keeps_what_it_knows() -> None:
    target = make_tiny("llama")
    text = target.generate(make_prompt(), max_new_tokens=20)
    said = set(text[0, 12:].tolist())
    draft = make_eagle(target, {*said, *range(50)}, initializer_range=0.1)
    teach(draft, target, text, passes=40)
    for again in (
        draft.retrim(vocabulary(sorted(said))),
        draft.extend(vocabulary(sorted({*said, *range(100, 150)})), target),
    ):
        run = watch(target, again, text[:, :12], max_new_tokens=20)
        assert run.accepted > 0.5 * run.proposed > 0


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    ("words", "named"),
    [
        pytest.param(
            vocabulary([1, 3], vocab_size=301), "own vocab_size 300, got 301", id="width"
        ),
        pytest.param(
            vocabulary([1, 3], tokenizer_hash="b" * 64), "tokenizer_hash", id="tokenizer"
        ),
    ],
)
def test_vocabularies_of_others_are_refused(body: str, words: Any, named: str) -> None:
    draft, target = make_pair(body)
    draft = draft.retrim(vocabulary(KEPT, tokenizer_hash="a" * 64))
    assert draft.config.tokenizer_hash == "a" * 64
    for call in (lambda: draft.retrim(words), lambda: draft.extend(words, target)):
        with pytest.raises(ValueError, match=rf"{named}.*count and search"):
            call()


@pytest.mark.parametrize("body", BODIES)
def test_what_retrim_and_extend_refuse(body: str) -> None:
    draft, target = make_pair(body)
    with pytest.raises(ValueError, match=r"lacks 3 of 6, the first is 0: .*draft\.extend"):
        draft.retrim(vocabulary(MIXED))
    with pytest.raises(TypeError, match="must be a DraftVocabulary, got list"):
        draft.retrim([1, 2])
    with pytest.raises(TypeError, match="must be a DraftVocabulary, got list"):
        draft.extend([1, 2], target)
    for thing in (None, "me/target", nn.Linear(2, 2)):
        with pytest.raises(TypeError, match="target must be a loaded Transformers model"):
            draft.extend(vocabulary(MIXED), thing)
    with pytest.raises(ValueError, match=r"do not fit the draft's: 24 wide.* and 48 wide"):
        draft.extend(vocabulary(MIXED), make_tiny("llama", hidden_size=24))
    with pytest.raises(ValueError, match=r"has 200 rows, but the vocabulary keeps id 297"):
        draft.extend(vocabulary([1, 4, 297, 299]), make_tiny("llama", vocab_size=200))


# A draft knows its target.


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"num_hidden_layers": 3}, r"layers 2, .* has layers 3", id="depth"),
        pytest.param(
            {"hidden_size": 24}, r"of width 48, .* has hidden states of width 24", id="width"
        ),
    ],
)
def test_another_target_is_refused_before_the_first_token(change: Any, named: str) -> None:
    draft, _ = make_pair("eagle3")
    other = make_tiny("llama", **change)
    prompt = make_prompt()
    handle = other.register_forward_hook(lambda *_: pytest.fail("the target ran"))
    for call in (
        lambda: check_pair(other, draft),
        lambda: check_call(other, draft, input_ids=prompt),
        lambda: other.generate(prompt, assistant_model=draft, max_new_tokens=4),
    ):
        with pytest.raises(ValueError, match=named):
            call()
    handle.remove()
    standalone, _ = make_pair("standalone")
    check_pair(other, standalone)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged as a warning."""
    from vtrim_hf import compatibility

    heard: list[str] = []
    once = type(compatibility.logger).warning_once
    if hasattr(once, "cache_clear"):
        once.cache_clear()
    for name in ("warning", "warning_once"):
        monkeypatch.setattr(
            compatibility.logger, name, lambda text, *args, **more: heard.append(text % args)
        )
    return heard


def test_another_target_of_the_same_sizes_is_told(said: list[str], tmp_path: Any) -> None:
    target = make_tiny("llama")
    target.config.name_or_path = "me/model-1B"
    draft = make_eagle(target, KEPT)
    assert draft.config.target_name == "me/model-1B"
    check_pair(target, draft)
    for silent in ("", str(tmp_path), "me/model-1B"):  # a folder's name says nothing
        target.config.name_or_path = silent
        check_pair(target, draft)
    assert said == []
    target.config.name_or_path = "me/model-1B-Instruct"
    check_pair(target, draft)
    assert len(said) == 1
    assert "made for me/model-1B and is used with me/model-1B-Instruct" in said[0]
    nameless = make_eagle(make_tiny("llama"), KEPT)
    check_pair(target, nameless)
    assert len(said) == 1
    run = watch(target, draft, make_prompt(), max_new_tokens=5)
    assert len(run.new_ids) == 5


def test_another_tokenizer_is_refused(byte_tokenizer: Any) -> None:
    target = make_tiny("llama")
    words = vocabulary(KEPT, tokenizer=byte_tokenizer)
    draft = TrimmedDraftForCausalLM.for_target(target, words)
    assert draft.config.tokenizer_hash == words.tokenizer_hash
    check_pair(target, draft, tokenizer=byte_tokenizer)
    byte_tokenizer.add_tokens(["<new>"])
    with pytest.raises(ValueError, match="was made for the tokenizer"):
        check_pair(target, draft, tokenizer=byte_tokenizer)


def test_special_ids_are_the_targets() -> None:
    target = make_tiny("llama", bos_token_id=1, eos_token_id=[2, 5], pad_token_id=0)
    draft = make_eagle(target, KEPT)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(draft.config, name) == getattr(target.config, name)
        assert getattr(draft.generation_config, name) == getattr(target.config, name)


# Saving and loading an EAGLE-3 draft.


@pytest.fixture
def saved(tmp_path: Any) -> Any:
    """A saved draft, itself, and its target."""
    target = make_tiny("llama")
    target.config.name_or_path = "me/model-1B"
    draft = TrimmedDraftForCausalLM.for_target(
        target, vocabulary(KEPT, provenance={"domain": "sql"}), layers=(0, 1, 2)
    )
    draft.save_pretrained(tmp_path / "draft")
    return tmp_path / "draft", draft, target


def test_a_round_trip_is_bit_identical(saved: Any, tmp_path: Any) -> None:
    folder, draft, target = saved
    for loader in (TrimmedDraftForCausalLM, AutoModelForCausalLM):
        loaded: Any = loader.from_pretrained(folder)
        assert type(loaded) is TrimmedDraftForCausalLM
        assert not loaded.training
        state, again = draft.state_dict(), loaded.state_dict()
        assert state.keys() == again.keys()
        assert all(torch.equal(state[name], again[name]) for name in state)
        assert loaded.vocabulary == draft.vocabulary
        assert loaded.vocabulary.provenance == {"domain": "sql"}
        assert loaded.config.body == "eagle3"
        for name in EAGLE_FACTS:
            assert getattr(loaded.config, name) == getattr(draft.config, name) is not None
        body, other = (one.config.body_config.to_dict() for one in (loaded, draft))
        assert body == {**other, "dtype": "float32"}
        assert loaded.generation_config.to_dict() == draft.generation_config.to_dict()
        text = make_prompt(9)
        assert torch.equal(logits_of(loaded, target, text), logits_of(draft, target, text))
        runs = [watch(target, one, make_prompt(), max_new_tokens=12) for one in (loaded, draft)]
        assert runs[0].proposals == runs[1].proposals
    loaded.save_pretrained(tmp_path / "again")
    names = [place.relative_to(folder) for place in sorted(folder.rglob("*")) if place.is_file()]
    assert len(names) > 10
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name


def test_the_file_holds_no_embeddings(saved: Any) -> None:
    folder, _, _ = saved
    tensors = load_file(folder / "model.safetensors")
    assert not any("embed" in name or "rotary" in name for name in tensors)
    assert {tuple(value.shape) for value in tensors.values()}.isdisjoint({(300, 48)})
    facts = json.loads((folder / "config.json").read_text())
    assert facts["target_layer_ids"] == [0, 1, 2]
    assert facts["target_name"] == "me/model-1B"
    assert facts["vocab_size"] == 300
    assert facts["draft_vocab_size"] == len(KEPT)


@pytest.mark.parametrize(
    "key", ["kept_ids", "body.fc.weight", "body.midlayer.mlp.up_proj.weight", "body.norm.weight"]
)
def test_a_missing_weight_is_named(saved: Any, key: str) -> None:
    """transformers#48892: `from_pretrained` would fill it with whatever lay in memory."""
    place = saved[0] / "model.safetensors"
    tensors = load_file(place)
    del tensors[key]
    save_file(tensors, place, metadata={"format": "pt"})
    for loader in (TrimmedDraftForCausalLM, AutoModelForCausalLM):
        with pytest.raises(ValueError, match=rf"weights lack {key}"):
            loader.from_pretrained(saved[0])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        pytest.param({"target_layer_ids": [0, 1]}, "three ascending indices", id="two layers"),
        pytest.param({"target_layer_ids": [0, 2, 1]}, "three ascending indices", id="order"),
        pytest.param({"target_layer_ids": [0, 1, 3]}, r"in \[0, 2\], got \[0, 1, 3\]", id="depth"),
        pytest.param({"target_layer_ids": [0, 1, 2.0]}, "must be a whole number", id="float"),
        pytest.param({"target_layer_ids": None}, "three ascending indices", id="no layers"),
        pytest.param({"target_layer_ids": "012"}, "target_layer_ids must be a list", id="text"),
        pytest.param({"target_hidden_size": None}, "target_hidden_size must be", id="no width"),
        pytest.param({"target_num_hidden_layers": "2"}, "must be a whole number", id="depth text"),
        pytest.param({"target_name": 7}, "target_name must be a str", id="name"),
        pytest.param({"body": "eagle4"}, "body must be one of standalone, eagle3", id="body"),
        pytest.param({"draft_vocab_size": 11}, "do not have the shapes", id="rows"),
        pytest.param({"vocabulary_fingerprint": "0" * 64}, "different vocabularies", id="another"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(saved: Any, fields: Any, named: str) -> None:
    place = saved[0] / "config.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **fields}))
    with pytest.raises(ValueError, match=named):
        TrimmedDraftForCausalLM.from_pretrained(saved[0])


def test_other_layers_of_the_body_are_refused(saved: Any) -> None:
    place = saved[0] / "config.json"
    facts = json.loads(place.read_text())
    facts["body_config"]["num_key_value_heads"] = 1
    place.write_text(json.dumps(facts))
    with pytest.raises(ValueError, match=r"do not have the shapes.*k_proj"):
        TrimmedDraftForCausalLM.from_pretrained(saved[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16"], ids=str)
def test_loading_in_half_precision(saved: Any, dtype: Any) -> None:
    loaded = TrimmedDraftForCausalLM.from_pretrained(saved[0], dtype=dtype)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.bfloat16}
    assert loaded.kept_ids.tolist() == KEPT
    run = watch(saved[2], loaded, make_prompt(), max_new_tokens=12)
    assert run.proposed > 0
    assert run.proposed_ids <= set(KEPT)


@pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}], ids=str)
def test_device_maps(saved: Any, device_map: Any) -> None:
    pytest.importorskip("accelerate")
    if device_map == "auto" and torch.cuda.is_available():
        pytest.skip("here auto means a GPU, whose sums differ")
    folder, draft, target = saved
    loaded = TrimmedDraftForCausalLM.from_pretrained(folder, device_map=device_map)
    text = make_prompt(9)
    assert torch.equal(logits_of(loaded, target, text), logits_of(draft, target, text))
    run = watch(target, loaded, make_prompt(), max_new_tokens=12)
    assert run.proposals == watch(target, draft, make_prompt(), max_new_tokens=12).proposals


def test_shards(saved: Any, tmp_path: Any) -> None:
    _, draft, _ = saved
    draft.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 3
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path / "shards")
    assert all(torch.equal(draft.state_dict()[n], v) for n, v in loaded.state_dict().items())


def test_a_made_up_config_has_a_target() -> None:
    body = make_eagle(make_tiny("llama"), KEPT).config.body_config
    facts: dict[str, Any] = {
        "target_hidden_size": 48,
        "target_num_hidden_layers": 2,
        "target_layer_ids": [0, 1, 2],
    }
    config = TrimmedDraftConfig(vocab_size=300, body="eagle3", body_config=body, **facts)
    draft = TrimmedDraftForCausalLM(config)
    assert draft.kept_ids is None
    assert draft.lm_head.weight.shape == (300, 48)
    with pytest.raises(ValueError, match="target_layer_ids must be three ascending indices"):
        TrimmedDraftConfig(
            vocab_size=300, body="eagle3", body_config=body, **{**facts, "target_layer_ids": []}
        )


# Forward.


def eagle_inputs(draft: Any, target: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        found = target(ids[:, :-1], output_hidden_states=True).hidden_states
    features = torch.cat([found[i] for i in draft.config.target_layer_ids], dim=-1)
    embeds = target.get_input_embeddings()(ids[:, 1:]).detach()
    return {"inputs_embeds": embeds, "target_hidden_states": features}


def test_without_the_targets_states_forward_says_how_it_is_used() -> None:
    draft, target = make_pair("eagle3")
    ids = make_prompt(8)
    inputs = eagle_inputs(draft, target, ids)
    for given in ({"input_ids": ids}, *({name: inputs[name]} for name in inputs), {}):
        with pytest.raises(
            ValueError, match=r"assistant_model=draft\), or call it with\s+target_"
        ):
            draft(**given)
    with pytest.raises(ValueError, match=r"assistant_model=draft"):
        draft.generate(ids, max_new_tokens=4)
    with pytest.raises(NotImplementedError, match="no embeddings of its own"):
        draft.get_input_embeddings()
    with pytest.raises(ValueError, match="cannot be resized"):
        draft.resize_token_embeddings(400)


@pytest.mark.parametrize("keep", [0, 1, 3, torch.tensor([0, 4])], ids=["0", "1", "3", "tensor"])
def test_logits_have_the_targets_width(keep: Any) -> None:
    draft, target = make_pair("eagle3")
    inputs = eagle_inputs(draft, target, make_prompt(8, batch=2))
    output = draft(**inputs)
    assert output.logits.shape == (2, 7, 300)
    possible = output.logits.isfinite().any(dim=0).any(dim=0).nonzero()[:, 0]
    assert possible.tolist() == KEPT
    some = draft(**inputs, logits_to_keep=keep).logits
    rows = slice(-keep, None) if isinstance(keep, int) else keep
    torch.testing.assert_close(some, output.logits[:, rows])
    as_tuple = draft(**inputs, return_dict=False)
    assert torch.equal(as_tuple[0], output.logits)


def test_loss_is_the_cross_entropy_of_what_the_draft_can_say() -> None:
    """Labels are those of the embeddings: position t reads token t + 1 and scores token t + 2."""
    draft, target = make_pair("eagle3")
    ids = torch.tensor(KEPT)[torch.arange(24) * 7 % 10].view(2, 12).clone()
    ids[:, 5] = 100  # outside the vocabulary
    labels = ids[:, 1:].clone()
    labels[0, 8] = -100
    inputs = eagle_inputs(draft, target, ids)
    output = draft(**inputs, labels=labels)
    scores = output.logits[..., KEPT].log_softmax(dim=-1)
    losses = [
        -scores[text, t, KEPT.index(int(ids[text, t + 2]))]
        for text in range(2)
        for t in range(10)
        if int(ids[text, t + 2]) in KEPT and (text, t) != (0, 7)
    ]
    assert len(losses) == 17
    torch.testing.assert_close(output.loss, torch.stack(losses).mean())
    assert output.ignored_labels.item() == 2
    summed = draft(**inputs, labels=labels, num_items_in_batch=5).loss
    torch.testing.assert_close(summed, torch.stack(losses).sum() / 5)
    output.loss.backward()
    assert all(weight.grad is not None for weight in draft.parameters())
    assert draft(**inputs).loss is None


def test_what_forward_gives_is_what_drafting_proposes() -> None:
    draft, target = make_pair("eagle3")
    prompt = make_prompt()
    run = watch(target, draft, prompt, max_new_tokens=6)
    said = run.sequences[:, : run.known[1]]
    logits = draft(**eagle_inputs(draft, target, said)).logits
    assert int(logits[0, -1].argmax()) == run.proposals[1][0]


def test_stepwise_with_a_cache_equals_one_pass() -> None:
    draft, target = make_pair("eagle3")
    inputs = eagle_inputs(draft, target, make_prompt(12))
    whole = draft(**inputs).logits
    for name in ("cache", "past_key_values"):
        cache = DynamicCache(config=draft.config.body_config)
        got = []
        with torch.no_grad():
            for start, end in ((0, 6), (6, 7), (7, 11)):
                part = {key: value[:, start:end] for key, value in inputs.items()}
                output = draft(**part, **{name: cache})
                got.append(output.logits)
        assert cache.get_seq_length() == 11
        kept = (getattr(output, "cache", None), getattr(output, "past_key_values", None))
        assert any(one is cache for one in kept)
        torch.testing.assert_close(torch.cat(got, dim=1)[..., KEPT], whole[..., KEPT])


def test_bfloat16_and_deep_copies() -> None:
    draft, target = make_pair("eagle3")
    inputs = eagle_inputs(draft, target, make_prompt(9))
    exact = draft(**inputs).logits[..., KEPT]
    twin = copy.deepcopy(draft)
    assert torch.equal(twin(**inputs).logits[..., KEPT], exact)
    half = twin.to(torch.bfloat16)
    output = half(**{name: value.bfloat16() for name, value in inputs.items()})
    assert output.logits.dtype == torch.bfloat16
    assert (output.logits[..., KEPT].float() - exact).norm() < 0.2 * exact.norm()
    assert torch.equal(draft(**inputs).logits[..., KEPT], exact)


# With the rest of the package.


def test_of_a_standalone_draft_nothing_changed() -> None:
    target = make_tiny("llama")
    draft = TrimmedDraftForCausalLM.from_draft_model(perturbed(target), vocabulary(KEPT))
    assert draft.config.body == "standalone"
    assert all(getattr(draft.config, name) is None for name in EAGLE_FACTS)


@pytest.mark.parametrize("body", BODIES)
def test_another_vocabulary_keeps_the_tokenizer_and_loses_the_calibration(
    body: str, byte_tokenizer: Any
) -> None:
    """A head of other rows promises otherwise; an id means the same token as before."""
    target = make_tiny("llama")
    named = vocabulary(KEPT, tokenizer=byte_tokenizer)
    make = TrimmedDraftForCausalLM
    draft = (make.from_draft_model if body == "standalone" else make.for_target)(target, named)
    draft.generation_config.assistant_confidence_calibration = [0.5, -1.0]
    draft.generation_config.num_assistant_tokens = 7
    for other in (draft.retrim(vocabulary(PART)), draft.extend(vocabulary(MIXED), target)):
        assert other.config.tokenizer_hash == draft.config.tokenizer_hash is not None
        assert other.vocabulary.fingerprint == other.config.vocabulary_fingerprint
        assert other.generation_config.assistant_confidence_calibration is None
        assert other.generation_config.num_assistant_tokens == 7
    same = draft.retrim(vocabulary(KEPT))
    assert same.generation_config.assistant_confidence_calibration == [0.5, -1.0]
