from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import nn

from drafting import make_eagle
from tiny_models import VOCAB_SIZE, make_prompt, make_tiny
from vtrim_hf import DraftVocabulary, TrimmedDraftConfig, TrimmedDraftForCausalLM

KEPT = [1, 2, 5, 7, 20, 77, 130, 255, 298, 299]
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


def trim(model, ids=KEPT, **kwargs) -> TrimmedDraftForCausalLM:
    vocabulary = DraftVocabulary.from_ids(list(ids), vocab_size=model.config.vocab_size)
    return TrimmedDraftForCausalLM.from_draft_model(model, vocabulary, **kwargs)


@pytest.fixture
def draft(tiny_llama) -> TrimmedDraftForCausalLM:
    return trim(tiny_llama)


def mixed_labels(ids: torch.Tensor) -> torch.Tensor:
    """Labels of which a third are kept, a third lie outside, and a third do not count."""
    kept = torch.tensor(KEPT)[torch.arange(ids.numel()) % len(KEPT)].view_as(ids)
    kind = (torch.arange(ids.numel()) % 3).view_as(ids)
    outside = torch.full_like(ids, 100)
    return torch.where(kind == 0, kept, torch.where(kind == 1, outside, torch.tensor(-100)))


def test_logits_have_the_targets_width_and_only_kept_ids_are_possible(tiny_target):
    draft = trim(tiny_target)
    logits = draft(make_prompt(9, batch=2)).logits
    assert logits.shape == (2, 9, tiny_target.config.vocab_size)
    possible = torch.isfinite(logits).any(dim=0).any(dim=0).nonzero().flatten()
    assert possible.tolist() == KEPT
    assert torch.isfinite(logits[..., KEPT]).all()


def test_a_draft_writes_only_tokens_of_its_vocabulary(tiny_target):
    """vllm-ascend#16166: every way to get ids maps them."""
    draft = trim(tiny_target)
    with torch.no_grad():
        for sample in (False, True):
            said = draft.generate(make_prompt(6), max_new_tokens=12, do_sample=sample)[0, 6:]
            assert set(said.tolist()) <= set(KEPT)
    assert len(set(said.tolist())) > 2, "a sample that repeats one token would show nothing"


def test_the_right_row_stands_for_each_id(draft, tiny_llama):
    """Raising one row of the head raises that token and no other."""
    ids = make_prompt(4)
    before = draft(ids).logits
    for row, token in enumerate(KEPT):
        changed = copy.deepcopy(draft)
        with torch.no_grad():
            changed.lm_head.weight[row] += 1.0
        difference = (changed(ids).logits - before).nan_to_num(0.0)
        assert difference.abs().sum(dim=(0, 1)).nonzero().flatten().tolist() == [token]


def test_the_vocabulary_is_the_one_that_was_given(tiny_llama, byte_tokenizer):
    words = DraftVocabulary.from_ids(
        KEPT, vocab_size=300, tokenizer=byte_tokenizer, provenance={"domain": "sql"}
    )
    draft = TrimmedDraftForCausalLM.from_draft_model(tiny_llama, words)
    assert draft.vocabulary == words
    assert draft.vocabulary.provenance == {"domain": "sql"}
    assert draft.config.vocabulary_fingerprint == words.fingerprint
    assert draft.config.tokenizer_hash == words.tokenizer_hash
    assert draft.kept_ids.dtype == torch.int64
    assert draft.kept_ids.tolist() == KEPT


# k = V


def test_a_full_vocabulary_has_no_table_and_spreads_nothing(tiny_target):
    """vllm#53458: with k = V the logits are the head's own output."""
    width = tiny_target.config.vocab_size
    draft = trim(tiny_target, range(width))
    assert draft.kept_ids is None
    assert draft.vocabulary.is_full
    assert "kept_ids" not in draft.state_dict()
    made: list[torch.Tensor] = []
    draft.lm_head.register_forward_hook(lambda module, args, output: made.append(output))
    ids = make_prompt(5)
    logits = draft(ids).logits
    torch.testing.assert_close(logits, tiny_target(ids).logits, rtol=0, atol=0)
    if getattr(tiny_target.config, "final_logit_softcapping", None) is None:
        assert logits.data_ptr() == made[0].data_ptr()
    loss = draft(ids, labels=ids).loss
    torch.testing.assert_close(loss, tiny_target(ids, labels=ids).loss)


# Loss


def test_labels_outside_the_vocabulary_are_left_out_and_reported(draft):
    """transformers#36840: a third outside gives the cross-entropy over kept rows of the others."""
    ids = make_prompt(12, batch=2)
    labels = mixed_labels(ids)
    output = draft(ids, labels=labels)
    scores = output.logits[:, :-1][..., KEPT].log_softmax(dim=-1)
    losses = [
        -scores[b, t, KEPT.index(int(labels[b, t + 1]))]
        for b in range(2)
        for t in range(11)
        if int(labels[b, t + 1]) in KEPT
    ]
    assert 4 < len(losses) < 12
    torch.testing.assert_close(output.loss, torch.stack(losses).mean())
    assert output.ignored_labels.item() == int((labels[:, 1:] == 100).sum()) > 0
    assert draft(ids).loss is None
    assert draft(ids).ignored_labels is None


@pytest.mark.parametrize("fill", [100, -100], ids=["all outside", "all ignored"])
def test_a_batch_in_which_no_label_counts_has_loss_zero(draft, fill):
    """EAGLE#248: 0 with a gradient, not NaN."""
    ids = make_prompt(5)
    output = draft(ids, labels=torch.full_like(ids, fill))
    assert output.loss.item() == 0.0
    output.loss.backward()
    gradients = [parameter.grad for parameter in draft.parameters()]
    assert all(gradient is not None for gradient in gradients)
    assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients if g is not None)
    assert output.ignored_labels.item() == (4 if fill == 100 else 0)


def test_gradients_do_not_depend_on_how_a_batch_is_split(draft):
    """transformers#47688: 1x8 against 4x2 with num_items_in_batch."""
    ids = make_prompt(7, batch=8)
    labels = mixed_labels(ids)
    labels[:3] = -100  # uneven parts, so that a mean of means would differ
    items = (labels[:, 1:] != -100).sum()

    def gradients(parts: int, **kwargs) -> list[torch.Tensor]:
        draft.zero_grad()
        for some, wanted in zip(ids.chunk(parts), labels.chunk(parts), strict=True):
            draft(some, labels=wanted, **kwargs).loss.backward()
        return [parameter.grad.clone() for parameter in draft.parameters()]

    whole, split = gradients(1, num_items_in_batch=items), gradients(4, num_items_in_batch=items)
    for one, other in zip(whole, split, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert any(one.abs().max() > 1e-3 for one in whole)
    without = gradients(4)
    assert any(not torch.allclose(a, b, atol=1e-3) for a, b in zip(whole, without, strict=True))
    as_number = gradients(1, num_items_in_batch=int(items))
    for one, other in zip(whole, as_number, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("keep", [2, torch.tensor([0, 3])])
def test_labels_need_logits_at_every_position(draft, keep):
    ids = make_prompt(6)
    with pytest.raises(ValueError, match=r"labels \[1, 6\].*leave logits_to_keep unset"):
        draft(ids, labels=ids, logits_to_keep=keep)


# Forward, as any causal language model of Transformers


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("keep", [0, 1, 3, torch.tensor([0, 4, 5])], ids=["0", "1", "3", "tensor"])
def test_logits_to_keep(tiny_target, training, keep):
    """trl#2770: honoured in training too, and the head sees the kept positions only."""
    draft = trim(tiny_target).train(training)
    seen: list[int] = []
    draft.lm_head.register_forward_hook(lambda module, args, out: seen.append(args[0].shape[1]))
    ids = make_prompt(8, batch=2)
    every = draft(ids).logits
    some = draft(ids, logits_to_keep=keep).logits
    rows = slice(-keep, None) if isinstance(keep, int) else keep
    torch.testing.assert_close(some, every[:, rows], **CLOSE)
    assert seen == [8, {0: 8, 1: 1}.get(keep, 3) if isinstance(keep, int) else 3]


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_stepwise_with_either_cache_name_equals_one_pass(tiny_target, name):
    """transformers#44816: the argument was renamed between the two ends of the range."""
    draft = trim(tiny_target)
    ids = make_prompt(24)
    expected = draft(ids).logits
    with torch.no_grad():
        output = draft(ids[:, :10], use_cache=True)
        got = [output.logits]
        for position in range(10, 24):
            state = getattr(output, "cache", None) or output.past_key_values
            assert state.get_seq_length() == position
            output = draft(ids[:, position : position + 1], **{name: state}, use_cache=True)
            got.append(output.logits)
    torch.testing.assert_close(torch.cat(got, dim=1)[..., KEPT], expected[..., KEPT], **CLOSE)


def test_left_padding_changes_nothing(tiny_target):
    draft = trim(tiny_target)
    ids = make_prompt(9)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.int64), ids], dim=1)
    mask = torch.tensor([[0] * 4 + [1] * 9])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    got = draft(padded, attention_mask=mask, position_ids=positions).logits[:, 4:]
    torch.testing.assert_close(got[..., KEPT], draft(ids).logits[..., KEPT], **CLOSE)
    unmasked = draft(padded).logits[:, 4:]
    assert not torch.allclose(unmasked[..., KEPT], draft(ids).logits[..., KEPT], atol=1e-2)


def test_sdpa_and_eager_agree(tiny_target):
    draft = trim(tiny_target)
    ids = make_prompt(20, batch=2)
    if not draft.body._supports_sdpa:  # a cap on the attention's logits
        assert draft.body.config._attn_implementation == "eager"
        with pytest.raises(ValueError, match="does not support"):
            draft.set_attn_implementation("sdpa")
        return
    logits = {}
    for kind in ("sdpa", "eager"):
        draft.set_attn_implementation(kind)
        assert draft.body.config._attn_implementation == kind
        output = draft(ids, output_attentions=kind == "eager")
        logits[kind] = output.logits[..., KEPT]
    assert output.attentions[0].shape[-2:] == (20, 20)
    torch.testing.assert_close(logits["sdpa"], logits["eager"], **CLOSE)


def test_inputs_embeds_stand_for_ids(tiny_target):
    draft = trim(tiny_target)
    ids = make_prompt(6)
    vectors = draft.get_input_embeddings()(ids)
    expected, got = draft(ids).logits, draft(inputs_embeds=vectors).logits
    torch.testing.assert_close(got[..., KEPT], expected[..., KEPT], **CLOSE)


def test_hidden_states_are_those_of_the_source(tiny_target):
    draft = trim(tiny_target)
    ids = make_prompt(6)
    ours = draft(ids, output_hidden_states=True).hidden_states
    theirs = tiny_target(ids, output_hidden_states=True).hidden_states
    assert len(ours) == len(theirs) == 3
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert draft(ids).hidden_states is None


def test_a_plain_tuple_on_request(draft):
    ids = make_prompt(5)
    output = draft(ids, labels=ids)
    loss, logits, *rest = draft(ids, labels=ids, return_dict=False)
    assert torch.equal(loss, output.loss)
    assert torch.equal(logits, output.logits)
    assert torch.equal(rest[-1], output.ignored_labels)
    draft.config.return_dict = False
    assert isinstance(draft(ids), tuple)
    assert not isinstance(draft(ids, return_dict=True), tuple)


def test_the_signature_shows_its_arguments():
    """`Trainer` drops columns by it and looks for **kwargs in it."""
    parameters = inspect.signature(TrimmedDraftForCausalLM.forward).parameters
    for name in ("input_ids", "labels", "logits_to_keep", "num_items_in_batch", "kwargs"):
        assert name in parameters


def test_gradient_checkpointing_gives_the_same_gradients(tiny_target):
    draft = trim(tiny_target).train()
    ids = make_prompt(6, batch=2)

    def gradients() -> dict[str, torch.Tensor]:
        draft.zero_grad()
        draft(ids, labels=mixed_labels(ids), use_cache=False).loss.backward()
        return {n: p.grad.clone() for n, p in draft.named_parameters() if p.grad is not None}

    plain = gradients()
    calls: list[object] = []
    draft.activation_checkpointing_enable()
    decoder = draft.body.get_decoder().layers[0]
    assert decoder.gradient_checkpointing
    decoder.self_attn.register_forward_hook(lambda *args: calls.append(args))
    checkpointed = gradients()
    assert len(calls) == 2, "the layer ran again on the way back"
    assert plain.keys() == checkpointed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(gradient, checkpointed[name], rtol=1e-4, atol=1e-5)


def test_bfloat16(draft):
    ids = make_prompt(6, batch=2)
    expected = draft(ids).logits[..., KEPT]
    half = copy.deepcopy(draft).to(torch.bfloat16)
    output = half(ids, labels=mixed_labels(ids))
    assert output.logits.dtype == torch.bfloat16
    assert output.loss.dtype == torch.float32, "the loss is computed in float32"
    assert half.kept_ids.dtype == torch.int64
    relative = (output.logits[..., KEPT].float() - expected).norm() / expected.norm()
    assert 0 < relative < 0.2


@pytest.mark.parametrize("convert", [lambda d: d.half(), lambda d: d.to(torch.float64)])
def test_kept_ids_stay_whole_numbers_in_every_dtype(draft, convert):
    changed = convert(draft)
    assert changed.kept_ids.dtype == torch.int64
    assert changed.kept_ids.tolist() == KEPT
    assert changed.lm_head.weight.dtype != torch.float32


def test_a_deep_copy_is_its_own(draft):
    ids = make_prompt(5)
    twin = copy.deepcopy(draft)
    assert torch.equal(twin(ids).logits, draft(ids).logits)
    assert twin.vocabulary == draft.vocabulary
    with torch.no_grad():
        twin.lm_head.weight.zero_()
        twin.kept_ids.zero_()
    assert draft.lm_head.weight.abs().sum() > 0
    assert draft.kept_ids.tolist() == KEPT


def test_padding_ids_of_the_target_are_read_without_an_error():
    source = make_tiny("llama", vocab_size=280)
    words = DraftVocabulary.from_ids([1, 2, 270], vocab_size=VOCAB_SIZE)
    draft = TrimmedDraftForCausalLM.from_draft_model(source, words)
    logits = draft(torch.tensor([[1, 299, 281]])).logits
    assert logits.shape[-1] == VOCAB_SIZE
    assert torch.isfinite(logits[..., [1, 2, 270]]).all()


# The table


def unset(draft: TrimmedDraftForCausalLM) -> TrimmedDraftForCausalLM:
    return TrimmedDraftForCausalLM(draft.config).eval()


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda d, t: d(make_prompt(3)), id="forward"),
        pytest.param(lambda d, t: d.generate(make_prompt(3), max_new_tokens=2), id="generate"),
        pytest.param(
            lambda d, t: t.generate(make_prompt(3), max_new_tokens=9, assistant_model=d),
            id="assisted",
        ),
        pytest.param(lambda d, t: d.vocabulary, id="vocabulary"),
        pytest.param(lambda d, t: d.check_kept_ids(), id="check"),
    ],
)
def test_a_draft_without_ids_cannot_be_used(draft, tiny_llama, use):
    """verl-SpeCo#66: never silently the first k ids."""
    with pytest.raises(ValueError, match=r"at position 0 id -1 lies outside \[0, 300\)"):
        use(unset(draft), tiny_llama)


def test_a_draft_without_ids_is_not_saved(draft, tmp_path):
    with pytest.raises(ValueError, match="id -1 lies outside"):
        unset(draft).save_pretrained(tmp_path / "draft")
    assert not (tmp_path / "draft").exists(), "nothing half-written"


@pytest.mark.parametrize(
    ("position", "value", "named"),
    [
        (3, -5, "position 3 id -5 lies outside"),
        (9, 300, "position 9 id 300 lies outside"),
        (1, 1, "position 1 id 1 repeats id 1"),
        (4, 6, "position 4 id 6 comes after the larger id 7"),
        (4, 21, "fingerprint"),
    ],
)
def test_a_table_that_was_damaged_is_not_saved(draft, tmp_path, position, value, named):
    draft.kept_ids[position] = value
    with pytest.raises(ValueError, match=named):
        draft.save_pretrained(tmp_path / "draft")


def test_loading_the_weights_of_another_vocabulary_is_noticed(draft, tiny_llama):
    """SpecForge#764: equal size, other ids; the error shows both fingerprints."""
    other = trim(tiny_llama, [i + 1 if i == 20 else i for i in KEPT])
    draft(make_prompt(3))
    draft.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="different vocabularies") as error:
        draft(make_prompt(3))
    for vocabulary in (other.vocabulary.fingerprint, draft.config.vocabulary_fingerprint):
        assert vocabulary[:12] in str(error.value)


def test_a_fresh_model_is_whole_once_weights_are_loaded(draft):
    empty = unset(draft)
    empty.load_state_dict(draft.state_dict())
    ids = make_prompt(5)
    assert torch.equal(empty(ids).logits, draft(ids).logits)


def test_meta_tensors_are_not_looked_at(draft):
    with torch.device("meta"):
        empty = TrimmedDraftForCausalLM(draft.config)
    ids = torch.zeros(1, 3, dtype=torch.int64, device="meta")
    assert empty(ids).logits.shape == (1, 3, 300)


# Embeddings and head


@pytest.mark.parametrize("size", [10, 300, 400])
def test_resizing_is_refused(draft, size):
    before = draft.get_input_embeddings().weight.shape
    with pytest.raises(ValueError, match="cannot be resized, its rows are the kept ids"):
        draft.resize_token_embeddings(size)
    assert draft.get_input_embeddings().weight.shape == before


def test_the_head_can_be_replaced_by_one_of_its_size_only(draft):
    draft.set_output_embeddings(nn.Linear(48, 10, bias=False))
    with pytest.raises(ValueError, match="one row for each of 10 kept ids, got 300"):
        draft.set_output_embeddings(nn.Linear(48, 300, bias=False))
    assert draft.get_output_embeddings() is draft.lm_head is draft.body.lm_head


@pytest.mark.parametrize("kind", ["qwen-padded", "gemma-softcap"])
def test_the_head_of_a_tied_source_is_its_own(kind):
    """transformers#48154: an inherited tie map would put the embedding in the head's place."""
    draft = trim(make_tiny(kind))
    draft.tie_weights()
    head, embedding = draft.lm_head.weight, draft.get_input_embeddings().weight
    assert head.shape[0] == len(KEPT) == draft.config.draft_vocab_size
    assert head.data_ptr() != embedding.data_ptr()
    assert draft.config.vocab_size == draft.config.get_text_config().vocab_size
    with torch.no_grad():
        embedding[KEPT[0]] += 1
    assert not torch.equal(head[0], embedding[KEPT[0]])


def test_tied_keys_are_an_empty_dict(draft):
    """prime-rl#1998: Transformers 5 asks for .keys()."""
    assert TrimmedDraftForCausalLM._tied_weights_keys == {}
    assert dict(draft.all_tied_weights_keys) == {}


# How it is made


def test_special_ids_come_from_the_target_where_there_is_one(tiny_llama):
    target = make_tiny("llama", eos_token_id=[2, 5], bos_token_id=1, pad_token_id=0, seed=1)
    draft = trim(tiny_llama, target=target)
    for config in (draft.config, draft.generation_config):
        assert config.eos_token_id == [2, 5]
        assert config.bos_token_id == 1
        assert config.pad_token_id == 0
    assert trim(tiny_llama).config.eos_token_id is None


@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_a_draft_attends_as_its_source_does(tiny_llama, kind):
    tiny_llama.set_attn_implementation(kind)
    draft = trim(tiny_llama)
    for config in (draft.config, draft.body.config):
        assert config._attn_implementation == kind


def test_a_target_of_another_width_is_refused(tiny_llama):
    with pytest.raises(ValueError, match=r"vocabulary of 384.*made for 300"):
        trim(tiny_llama, target=make_tiny("qwen-padded"))


def test_drafting_settings_are_our_own(tiny_llama):
    """transformers#40739: `generate` reads them from the draft, so they must be there."""
    tiny_llama.generation_config.num_assistant_tokens = 17
    settings = trim(tiny_llama).generation_config
    assert settings.num_assistant_tokens == 4
    assert settings.num_assistant_tokens_schedule == "constant"
    assert settings.assistant_confidence_threshold == 0.4
    eagle = make_eagle(make_tiny("llama", num_hidden_layers=4), range(40)).generation_config
    assert eagle.num_assistant_tokens == 4
    assert eagle.assistant_confidence_threshold == 0.0


def test_a_config_alone_makes_a_model_of_its_sizes(draft):
    config = TrimmedDraftConfig.from_dict(draft.config.to_dict())
    for made in (TrimmedDraftForCausalLM(config), TrimmedDraftForCausalLM._from_config(config)):
        assert made.lm_head.out_features == config.draft_vocab_size == len(KEPT)
        assert made.config.vocab_size == 300
        assert made.get_input_embeddings().num_embeddings == 300


@pytest.mark.parametrize("variant", [None, "fp16"])
@pytest.mark.parametrize("sizes", [("1GB", "20KB"), ("20KB", "1GB"), ("20KB", "60KB")])
def test_the_last_save_is_what_loads(tiny_llama, tmp_path, sizes, variant):
    """A single file of an earlier save would be loaded instead of the new shards."""
    folder = tmp_path / "draft"
    for seed, size in enumerate(sizes):
        draft = trim(make_tiny("llama", seed=seed))
        draft.save_pretrained(folder, max_shard_size=size, variant=variant)
        alone = tmp_path / f"alone {seed}"
        draft.save_pretrained(alone, max_shard_size=size, variant=variant)
    loaded = TrimmedDraftForCausalLM.from_pretrained(folder, variant=variant)
    ids = make_prompt(5)
    assert torch.equal(loaded(ids).logits, draft(ids).logits)
    found = {file.name for file in folder.iterdir()}
    assert found == {file.name for file in alone.iterdir()}
    assert any("-of-" in name for name in found) == (sizes[-1] != "1GB")


def test_a_process_that_does_not_save_removes_nothing(draft, tmp_path):
    draft.save_pretrained(tmp_path, max_shard_size="20KB")
    (tmp_path / "model.safetensors").touch()
    draft.save_pretrained(tmp_path, is_main_process=False)
    assert (tmp_path / "model.safetensors").exists()


def test_a_target_by_name_is_refused(tiny_llama):
    with pytest.raises(TypeError, match="the target must be a loaded Transformers model"):
        trim(tiny_llama, target="org/target")
