from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    BloomConfig,
    CohereConfig,
    Gemma3Config,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MambaConfig,
    MixtralConfig,
    OPTConfig,
    PhiConfig,
    SmolLM3Config,
    T5Config,
    T5ForConditionalGeneration,
)

from tiny_models import make_prompt, make_tiny
from vtrim_hf import DraftVocabulary, TrimmedDraftForCausalLM
from vtrim_hf.standalone_body import StandaloneSession, cut_body, load_source

KEPT = (3, 7, 8, 20, 41, 60, 63)
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SPECIAL: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
GQA: dict[str, Any] = {**SIZES, **SPECIAL, "intermediate_size": 48, "num_key_value_heads": 2}

# Heads with a bias, Conv1D layers, learned positions, alibi, experts, scaled logits, two configs.
OTHER_KINDS: dict[str, Any] = {
    "gpt2": lambda: GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, **SPECIAL),
    "gptj": lambda: GPTJConfig(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, **SPECIAL
    ),
    "phi": lambda: PhiConfig(**SIZES, **SPECIAL, intermediate_size=48),
    "opt": lambda: OPTConfig(**SIZES, **SPECIAL, ffn_dim=48, word_embed_proj_dim=32),
    "bloom": lambda: BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4, **SPECIAL),
    "mixtral": lambda: MixtralConfig(**GQA, num_local_experts=4),
    "cohere": lambda: CohereConfig(**GQA, logit_scale=0.25),
    "gemma3-of-two-parts": lambda: Gemma3Config(
        text_config={**GQA, "head_dim": 8, "sliding_window": 8},
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
    ),
}


def make_other(kind: str):
    model = AutoModelForCausalLM.from_config(OTHER_KINDS[kind](), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return model


def vocabulary(ids=KEPT, vocab_size=72) -> DraftVocabulary:
    return DraftVocabulary.from_ids(list(ids), vocab_size=vocab_size)


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_every_kind_of_head_is_cut_to_the_rows_that_are_kept(kind, tmp_path):
    """transformers#45307: target of 72, draft of 64 rows; the logits become 72 wide."""
    source = make_other(kind)
    draft = TrimmedDraftForCausalLM.from_draft_model(source, vocabulary())
    ids = torch.randint(3, 64, (2, 9))
    expected, got = source(ids).logits, draft(ids).logits
    assert got.shape == (2, 9, 72)
    torch.testing.assert_close(got[..., KEPT], expected[..., KEPT], rtol=1e-5, atol=1e-5)
    others = [i for i in range(72) if i not in KEPT]
    assert torch.isneginf(got[..., others]).all()
    head, old = draft.get_output_embeddings(), source.get_output_embeddings()
    assert head.weight.shape == (len(KEPT), 32)
    assert torch.equal(head.weight, old.weight[list(KEPT)])
    assert (head.bias is None) == (old.bias is None)
    if old.bias is not None:
        assert torch.equal(head.bias, old.bias[list(KEPT)])
    assert draft.config.head_bias == (kind in ("gptj", "phi"))
    draft.save_pretrained(tmp_path)
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(ids).logits, got)


def test_the_head_of_each_tiny_target_is_cut(tiny_target):
    """Tied or not, capped or not: everything the model does around its head stays."""
    width = tiny_target.config.vocab_size
    kept = [1, 2, 5, 77, 130, 255, 299]
    draft = TrimmedDraftForCausalLM.from_draft_model(tiny_target, vocabulary(kept, width))
    ids = make_prompt(20, batch=2)
    expected, got = tiny_target(ids).logits, draft(ids).logits
    assert got.shape == (2, 20, width)
    torch.testing.assert_close(got[..., kept], expected[..., kept], rtol=1e-5, atol=1e-5)
    assert int(torch.isfinite(got).sum()) == 2 * 20 * len(kept)


def test_a_cap_on_the_logits_stays():
    source = make_tiny("gemma-softcap", final_logit_softcapping=4.0)
    draft = TrimmedDraftForCausalLM.from_draft_model(source, vocabulary(vocab_size=300))
    ids = make_prompt(20)
    expected, got = (model(ids).logits[..., list(KEPT)] for model in (source, draft))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert 3 < got.abs().max() <= 4, "some are close to the cap"
    draft.body.config.final_logit_softcapping = None
    assert draft(ids).logits[..., list(KEPT)].abs().max() > 4, "only the cap held them"


def test_the_source_is_left_as_it_was_and_shares_nothing(tiny_target):
    before = {name: value.clone() for name, value in tiny_target.state_dict().items()}
    config, head = tiny_target.config.to_dict(), tiny_target.get_output_embeddings()
    tied = tiny_target.config.tie_word_embeddings
    draft = TrimmedDraftForCausalLM.from_draft_model(
        tiny_target, vocabulary(vocab_size=tiny_target.config.vocab_size), layers=1
    )
    ours = {tensor.data_ptr() for tensor in (*draft.parameters(), *draft.buffers())}
    theirs = {tensor.data_ptr() for tensor in (*tiny_target.parameters(), *tiny_target.buffers())}
    assert not ours & theirs
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.zero_()
    assert all(torch.equal(before[n], value) for n, value in tiny_target.state_dict().items())
    assert tiny_target.config.to_dict() == config
    assert tiny_target.get_output_embeddings() is head
    assert tiny_target.config.num_hidden_layers == 2
    assert (tiny_target.get_input_embeddings().weight is head.weight) == tied


def test_a_vocabulary_shares_no_storage_with_the_draft(tiny_llama):
    words = vocabulary(vocab_size=300)
    draft = TrimmedDraftForCausalLM.from_draft_model(tiny_llama, words)
    assert draft.kept_ids.data_ptr() != words.ids.data_ptr()
    draft.kept_ids[0] = 0
    assert words.ids[0] == KEPT[0]


def test_a_cut_body_is_not_tied_any_more():
    source = make_tiny("qwen-padded")
    body = cut_body(source, torch.tensor(KEPT), None)
    assert source.config.tie_word_embeddings
    assert not body.config.tie_word_embeddings
    assert not body.training


def test_half_precision_stays_half(tiny_llama):
    draft = TrimmedDraftForCausalLM.from_draft_model(
        tiny_llama.to(torch.bfloat16), vocabulary(vocab_size=300)
    )
    assert draft.dtype == draft.config.dtype == torch.bfloat16
    assert draft(make_prompt(4)).logits.dtype == torch.bfloat16


def test_padded_widths_differ_either_way():
    """vllm#13849: 151,936 against 152,064 rows; the kept ids exist in both."""
    wide = make_tiny("qwen-padded")
    narrow = TrimmedDraftForCausalLM.from_draft_model(wide, vocabulary(vocab_size=320))
    ids = make_prompt(6)
    assert narrow(ids).logits.shape[-1] == narrow.config.vocab_size == 320
    expected = wide(ids).logits[..., list(KEPT)]
    torch.testing.assert_close(narrow(ids).logits[..., list(KEPT)], expected, rtol=1e-5, atol=1e-5)
    # The target may speak ids of its padding that the draft's embeddings lack.
    padding = torch.tensor([[3, 71, 70]])
    draft = TrimmedDraftForCausalLM.from_draft_model(make_other("gpt2"), vocabulary())
    assert torch.isfinite(draft(padding).logits[..., list(KEPT)]).all()


def test_first_layers_only():
    source = make_tiny("llama", num_hidden_layers=4)
    draft = TrimmedDraftForCausalLM.from_draft_model(source, vocabulary(vocab_size=300), layers=2)
    shorter = copy.deepcopy(source)
    shorter.model.layers = shorter.model.layers[:2]
    ids = make_prompt(9)
    expected = shorter(ids).logits[..., list(KEPT)]
    torch.testing.assert_close(draft(ids).logits[..., list(KEPT)], expected, rtol=1e-5, atol=1e-5)
    assert draft.config.num_hidden_layers == 2
    different = source(ids).logits[..., list(KEPT)]
    assert not torch.allclose(expected, different, atol=1e-2)


@pytest.mark.parametrize("kind", ["gemma-softcap", "mistral-sliding", "smollm3"])
def test_first_layers_of_a_model_with_kinds_of_layers_survive_a_round_trip(kind, tmp_path):
    if kind == "smollm3":
        config = SmolLM3Config(**{**GQA, "num_hidden_layers": 8})
        source = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    else:
        source = make_tiny(kind, num_hidden_layers=4)
    width = source.config.vocab_size
    draft = TrimmedDraftForCausalLM.from_draft_model(
        source, vocabulary(vocab_size=width), layers=3
    )
    draft.save_pretrained(tmp_path)
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path)
    ids = torch.randint(3, width, (1, 30))
    assert torch.equal(loaded(ids).logits, draft(ids).logits)
    kinds = getattr(loaded.config.body_config, "layer_types", None)
    assert kinds is None or len(kinds) == loaded.config.num_hidden_layers == 3


@pytest.mark.parametrize("layers", [0, 3, -1])
def test_layers_out_of_range(tiny_llama, layers):
    with pytest.raises(ValueError, match=rf"layers must lie in \[1, 2\], got {layers}"):
        cut_body(tiny_llama, torch.tensor([3]), layers)


def test_layers_of_a_stack_with_another_name_are_refused():
    with pytest.raises(ValueError, match=r"layers=1 needs a model whose decoder has `layers`"):
        cut_body(make_other("gpt2"), torch.tensor([3]), 1)


def test_layers_that_read_the_caches_of_others_are_refused(tiny_llama):
    tiny_llama.config.num_kv_shared_layers = 1
    with pytest.raises(ValueError, match="last 1 layers read the caches of earlier ones"):
        cut_body(tiny_llama, torch.tensor([3]), 1)


class Quantised(nn.Linear):
    """Stands for a bitsandbytes or torchao layer, whose weight is no plain tensor."""


def test_a_quantised_head_is_refused_plainly(tiny_llama):
    """transformers#23686"""
    tiny_llama.lm_head = Quantised(48, 300, bias=False)
    with pytest.raises(ValueError, match=r"its head is a Quantised: load the model unquantised"):
        TrimmedDraftForCausalLM.from_draft_model(tiny_llama, vocabulary(vocab_size=300))


@pytest.mark.parametrize("mark", ["is_quantized", "hf_quantizer"])
def test_a_quantised_model_is_refused_plainly(tiny_llama, mark):
    setattr(tiny_llama, mark, True)
    with pytest.raises(ValueError, match=r"LlamaForCausalLM is quantised"):
        TrimmedDraftForCausalLM.from_draft_model(tiny_llama, vocabulary(vocab_size=300))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_are_refused_however_they_are_held(tiny_llama):
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(tiny_llama, peft.LoraConfig(target_modules=["q_proj"]))
    for model in (wrapped, wrapped.get_base_model()):
        with pytest.raises(ValueError, match=r"holds adapters.*merge_and_unload"):
            TrimmedDraftForCausalLM.from_draft_model(model, vocabulary(vocab_size=300))
    merged = wrapped.merge_and_unload()
    assert TrimmedDraftForCausalLM.from_draft_model(merged, vocabulary(vocab_size=300))


def test_an_encoder_decoder_is_refused():
    config = T5Config(vocab_size=72, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is an encoder-decoder"):
        TrimmedDraftForCausalLM.from_draft_model(T5ForConditionalGeneration(config), vocabulary())


def test_a_recurrent_model_is_refused():
    model = AutoModelForCausalLM.from_config(
        MambaConfig(vocab_size=72, hidden_size=16, num_hidden_layers=1)
    )
    with pytest.raises(ValueError, match="cannot return to an earlier token"):
        TrimmedDraftForCausalLM.from_draft_model(model, vocabulary())


def test_a_model_without_a_head_is_refused(tiny_llama):
    headless = tiny_llama.model
    classifier = AutoModelForSequenceClassification.from_config(tiny_llama.config)
    for model in (headless, classifier):
        with pytest.raises(ValueError, match="no language-model head to cut"):
            TrimmedDraftForCausalLM.from_draft_model(model, vocabulary(vocab_size=300))


def test_a_trimmed_draft_is_not_cut_again(tiny_llama):
    draft = TrimmedDraftForCausalLM.from_draft_model(tiny_llama, vocabulary(vocab_size=300))
    with pytest.raises(ValueError, match=r"trimmed already.* rows for 7 kept ids only"):
        TrimmedDraftForCausalLM.from_draft_model(draft, vocabulary((0, 1), 300))


def test_an_id_beyond_the_heads_rows_is_refused():
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel has 64 rows, but .* keeps id 70"):
        TrimmedDraftForCausalLM.from_draft_model(make_other("gpt2"), vocabulary((3, 70)))


@pytest.mark.parametrize("thing", [None, nn.Linear(2, 2), SimpleNamespace(config=None), 7])
def test_what_is_no_model_is_refused(thing):
    with pytest.raises(TypeError, match="must be a Transformers model or the name of one"):
        load_source(thing)


def test_settings_for_loading_need_a_name(tiny_llama):
    with pytest.raises(TypeError, match="dtype is for loading a model by name"):
        load_source(tiny_llama, dtype=torch.bfloat16)


def test_a_folder_is_loaded_with_its_settings(tiny_llama, tmp_path):
    tiny_llama.save_pretrained(tmp_path)
    for name in (tmp_path, str(tmp_path)):
        assert load_source(name, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_what_is_given_as_a_vocabulary_must_be_one(tiny_llama):
    with pytest.raises(TypeError, match="must be a DraftVocabulary, got list"):
        TrimmedDraftForCausalLM.from_draft_model(tiny_llama, [1, 2])  # type: ignore[arg-type]


def rows_after(draft, ids):
    """Draft-space logits after `ids` by one plain forward pass."""
    return draft(ids).logits[:, -1, draft.kept_ids]


def test_a_session_follows_the_target_through_acceptance_and_rejection(tiny_target):
    width = tiny_target.config.vocab_size
    draft = TrimmedDraftForCausalLM.from_draft_model(tiny_target, vocabulary(vocab_size=width))
    session = StandaloneSession(draft.body, None, width)
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
    said = make_prompt(18)
    with torch.no_grad():
        torch.testing.assert_close(session.catch_up(said), rows_after(draft, said), **close)
        for accepted in (2, 0, 1, 2):
            guesses = make_prompt(2, seed=accepted)
            longer = said
            for guess in guesses.split(1, dim=1):
                longer = torch.cat([longer, guess], dim=1)
                torch.testing.assert_close(session.step(guess), rows_after(draft, longer), **close)
            said = torch.cat([longer[:, : said.shape[1] + accepted], make_prompt(1, seed=9)], 1)
            torch.testing.assert_close(session.catch_up(said), rows_after(draft, said), **close)
        # Asked again for the same text: nothing may be read twice.
        torch.testing.assert_close(session.catch_up(said), rows_after(draft, said), **close)


def test_a_session_skips_left_padding(tiny_target):
    width = tiny_target.config.vocab_size
    draft = TrimmedDraftForCausalLM.from_draft_model(tiny_target, vocabulary(vocab_size=width))
    ids = make_prompt(8)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.int64), ids], dim=1)
    mask = torch.tensor([[0] * 3 + [1] * 8])
    session = StandaloneSession(draft.body, mask, width)
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}
    with torch.no_grad():
        torch.testing.assert_close(session.catch_up(padded), rows_after(draft, ids), **close)
        token = torch.tensor([[7]])
        longer = torch.cat([ids, token], dim=1)
        torch.testing.assert_close(session.step(token), rows_after(draft, longer), **close)
        without = StandaloneSession(draft.body, None, width).catch_up(padded)
        assert not torch.allclose(without, rows_after(draft, ids), atol=1e-2), "padding matters"


def test_a_session_reads_only_what_is_new(tiny_llama):
    draft = TrimmedDraftForCausalLM.from_draft_model(tiny_llama, vocabulary(vocab_size=300))
    widths: list[int] = []
    draft.body.model.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    session = StandaloneSession(draft.body, None, 300)
    said = make_prompt(12)
    session.catch_up(said)
    session.step(torch.tensor([[7]]))
    session.catch_up(torch.cat([said, torch.tensor([[7, 8]])], dim=1))
    session.catch_up(torch.cat([said, torch.tensor([[9]])], dim=1))
    assert widths == [12, 1, 1, 1]


def encoder(**fields: Any) -> Any:
    return BertConfig(**SIZES, intermediate_size=48, **fields)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        pytest.param(
            lambda: BertForMaskedLM(encoder()),
            "forward of BertForMaskedLM takes neither",
            id="mlm",
        ),
        pytest.param(
            lambda: BertLMHeadModel(encoder()), "BertLMHeadModel is an encoder", id="lm head"
        ),
    ],
)
def test_encoders_are_no_drafts(make, named):
    with pytest.raises(ValueError, match=named):
        load_source(make())


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: BertLMHeadModel(encoder(is_decoder=True)), id="bert that decodes"),
        pytest.param(
            lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, intermediate_size=48)),
            id="gpt-neox, which says is_decoder=False",
        ),
    ],
)
def test_decoders_of_any_family_are_drafts(make):
    model = make()
    assert load_source(model) is model


@pytest.mark.parametrize("layers", [1.5, 1.0, "1", True])
def test_layers_are_never_rounded(tiny_llama, layers):
    with pytest.raises(ValueError, match="layers must be a whole number, got"):
        cut_body(tiny_llama, torch.tensor([3]), layers)
