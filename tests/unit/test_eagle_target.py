from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    Gemma3Config,
    Gemma4TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
    OPTConfig,
    PhiConfig,
    SmolLM3Config,
    T5Config,
    T5ForConditionalGeneration,
)

from drafting import make_eagle
from tiny_models import KINDS, make_prompt, make_tiny
from vtrim_hf import DraftVocabulary, LatencyModel, TrimmedDraftForCausalLM
from vtrim_hf.eagle_target import eagle_config, rotary_settings, target_facts

EVEN = range(0, 300, 2)
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
SPECIAL: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 16.0,
}


def make_other(config: Any) -> Any:
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def layers_of(model: Any) -> Any:
    return model.get_decoder().layers


# Rotary settings.


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"rope_type": "default", "rope_theta": 100_000.0}, id="smollm2's theta"),
        pytest.param({"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, id="linear"),
        pytest.param(LLAMA3, id="llama3"),
        pytest.param(YARN, id="yarn"),
        pytest.param({**YARN, "attention_factor": 1.3, "truncate": False}, id="yarn, all said"),
    ],
)
def test_a_llamas_rotary_settings_are_kept(settings: dict[str, Any]) -> None:
    """The draft turns its heads by the same angles as the target itself."""
    target = make_tiny("llama", rope_parameters=dict(settings))
    draft = make_eagle(target, EVEN)
    config = draft.config.body_config
    for name, value in settings.items():
        assert config.rope_parameters[name] == value
    like, positions = torch.zeros(1, 40, 48), torch.arange(40)[None]
    cosines, sines = target.model.rotary_emb(like, positions)
    ours, signed = draft.body.rope(positions, like)
    assert torch.equal(ours[:, 0], cosines)
    assert torch.equal(signed[:, 0].abs(), sines.abs())
    plain = make_tiny("llama").model.rotary_emb(like, positions)[0]
    assert not torch.allclose(plain, cosines, atol=1e-2)


def test_of_several_kinds_of_layers_full_attention_counts() -> None:
    rotary = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    target = make_tiny("gemma3", rope_parameters=rotary)
    assert eagle_config(target).rope_parameters == rotary["full_attention"]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            PhiConfig(
                **SIZES,
                **SPECIAL,
                intermediate_size=48,
                rope_parameters={
                    "rope_type": "default",
                    "rope_theta": 20_000.0,
                    "partial_rotary_factor": 0.5,
                },
            ),
            id="a part of each head",
        ),
        pytest.param(
            LlamaConfig(
                **SIZES,
                intermediate_size=48,
                rope_parameters={
                    "rope_type": "linear",
                    "rope_theta": 20_000.0,
                    "factor": 2.0,
                    "partial_rotary_factor": 0.5,
                },
            ),
            id="a part of each head, scaled",
        ),
        pytest.param(
            LlamaConfig(
                **SIZES,
                intermediate_size=48,
                rope_parameters={"rope_type": "dynamic", "rope_theta": 20_000.0, "factor": 2.0},
            ),
            id="dynamic",
        ),
        pytest.param(
            LlamaConfig(
                **SIZES,
                intermediate_size=48,
                rope_parameters={
                    "rope_type": "longrope",
                    "rope_theta": 20_000.0,
                    "short_factor": [1.0] * 4,
                    "long_factor": [2.0] * 4,
                    "original_max_position_embeddings": 64,
                    "factor": 2.0,
                },
            ),
            id="longrope",
        ),
    ],
)
def test_what_a_llama_layer_cannot_do_becomes_plain_of_the_same_theta(config: Any) -> None:
    assert rotary_settings(config) == {"rope_theta": 20_000.0, "rope_type": "default"}


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(n_embd=32, n_layer=2, n_head=4),
        OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32),
        BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
    ],
    ids=lambda config: config.model_type,
)
def test_a_target_without_rotary_positions(config: Any) -> None:
    assert rotary_settings(config) == {"rope_theta": 10_000.0, "rope_type": "default"}


# Sizes.


@pytest.mark.parametrize("kind", [*KINDS, "gemma3"])
def test_sizes_are_the_targets(kind: str) -> None:
    target = make_tiny(kind, head_dim=20, rms_norm_eps=3e-4, max_position_embeddings=777)
    draft = make_eagle(target, EVEN)
    config, body = draft.config.body_config, draft.body
    assert config.num_hidden_layers == 1
    for name in (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "initializer_range",
        "vocab_size",
    ):
        assert getattr(config, name) == getattr(target.config, name), name
    assert body.fc.weight.shape == (48, 3 * 48)
    assert body.midlayer.self_attn.q_proj.weight.shape == (4 * 20, 2 * 48)
    assert body.midlayer.self_attn.k_proj.weight.shape == (2 * 20, 2 * 48)
    assert body.midlayer.self_attn.o_proj.weight.shape == (48, 4 * 20)
    assert body.midlayer.mlp.gate_proj.weight.shape == (96, 48)
    eps = {module.eps for module in body.modules() if isinstance(module, nn.RMSNorm)}
    assert eps == {3e-4}
    assert torch.equal(draft.lm_head.weight, target.get_output_embeddings().weight[list(EVEN)])
    assert draft.config.num_hidden_layers == 1
    assert draft.config.vocab_size == target.config.vocab_size
    embeddings = target.get_input_embeddings().weight
    assert all(weight.shape != embeddings.shape for weight in draft.parameters())


def test_sizes_of_configs_with_other_names() -> None:
    gpt2 = eagle_config(make_other(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4)))
    assert (gpt2.hidden_size, gpt2.intermediate_size, gpt2.head_dim) == (32, 128, 8)
    assert gpt2.num_key_value_heads == 4
    assert gpt2.rms_norm_eps == 1e-5  # layer_norm_epsilon
    neox = eagle_config(make_other(GPTNeoXConfig(**SIZES, intermediate_size=48)))
    assert (neox.rms_norm_eps, neox.intermediate_size) == (1e-5, 48)  # layer_norm_eps
    experts = MixtralConfig(**SIZES, intermediate_size=48, num_key_value_heads=2)
    assert eagle_config(make_other(experts)).intermediate_size == 48, "of one expert"
    bare = make_tiny("llama")
    del bare.config.rms_norm_eps
    assert eagle_config(bare).rms_norm_eps == 1e-6


def test_biases_where_the_targets_config_has_them() -> None:
    target = make_tiny("llama", attention_bias=True, mlp_bias=True)
    names = dict(make_eagle(target, EVEN).named_parameters())
    for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"):
        assert f"body.midlayer.{name}.bias" in names
    assert not any(
        name.endswith("bias")
        for name, _ in make_eagle(make_tiny("llama"), EVEN).named_parameters()
    )
    phi = make_other(PhiConfig(**SIZES, **SPECIAL, intermediate_size=48))
    with torch.no_grad():
        phi.lm_head.bias.normal_()
    draft = make_eagle(phi, EVEN)
    assert draft.config.head_bias
    assert torch.equal(draft.lm_head.bias, phi.lm_head.bias[list(EVEN)])


def test_of_a_model_of_two_parts_the_text_counts() -> None:
    config = Gemma3Config(
        text_config={**SIZES, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8},
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
    )
    target = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    found = eagle_config(target)
    assert (found.hidden_size, found.vocab_size, found.intermediate_size) == (32, 300, 48)
    assert target_facts(target, None)["target_hidden_size"] == 32
    assert make_eagle(target, EVEN).config.target_num_hidden_layers == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_body_is_of_the_targets_dtype(dtype: torch.dtype) -> None:
    draft = make_eagle(make_tiny("llama").to(dtype), EVEN)
    assert {weight.dtype for weight in draft.parameters()} == {dtype}
    assert draft.config.dtype == dtype
    assert not draft.training


def test_settings_of_ones_own() -> None:
    target = make_tiny("llama")
    draft = make_eagle(target, EVEN, intermediate_size=200, num_key_value_heads=1)
    assert draft.body.midlayer.mlp.up_proj.weight.shape == (200, 48)
    assert draft.body.midlayer.self_attn.v_proj.weight.shape == (12, 96)


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "vocab_size", "colour"])
def test_settings_that_cannot_be_set(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} is no setting.*intermediate_size"):
        eagle_config(make_tiny("llama"), **{name: 7})


# Which states.


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (2, [0, 1, 2]),
        (3, [0, 1, 2]),
        (4, [1, 2, 3]),
        (5, [1, 2, 4]),
        (6, [1, 3, 5]),
        (7, [2, 3, 4]),
        (8, [2, 4, 5]),
        (24, [2, 12, 21]),
        (30, [2, 15, 27]),
        (32, [2, 16, 29]),
    ],
)
def test_default_layers(depth: int, expected: list[int]) -> None:
    target = make_tiny("llama", num_hidden_layers=2)
    target.config.num_hidden_layers = depth
    facts = target_facts(target, None)
    assert facts["target_layer_ids"] == expected
    assert facts["target_num_hidden_layers"] == depth


@pytest.mark.parametrize(
    "layers",
    [(0, 1), (0, 1, 2, 3), (1, 0, 2), (1, 1, 2), (-1, 1, 2), (0, 4, 9), ()],
    ids=str,
)
def test_layers_that_are_not_three_states(layers: Any) -> None:
    named = r"3 ascending indices of the target's hidden states, 0 .* to 8 .* got \["
    with pytest.raises(ValueError, match=named):
        target_facts(make_tiny("llama", num_hidden_layers=8), layers)
    assert target_facts(make_tiny("llama", num_hidden_layers=8), (0, 4, 8))


@pytest.mark.parametrize("layer", [1.0, "1", True, None])
def test_layers_are_never_rounded(layer: Any) -> None:
    with pytest.raises(ValueError, match="a layer must be a whole number"):
        target_facts(make_tiny("llama"), (0, layer, 2))


def test_a_target_of_one_layer_has_no_three_states() -> None:
    with pytest.raises(ValueError, match="1 layers has 2: use a draft with a standalone body"):
        make_eagle(make_tiny("llama", num_hidden_layers=1), EVEN)


@pytest.mark.parametrize("listed", [(0, 1, 2), (2, 4, 5), (1, 4, 8), (0, 3, 7)], ids=str)
@pytest.mark.parametrize("kind", [*KINDS, "gemma3"])
def test_state_i_is_what_layer_i_reads(kind: str, listed: tuple[int, ...]) -> None:
    """Transformers' numbering, and its answer to a list of them, at both ends of the range."""
    types: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"] * 4}
    target = make_tiny(kind, num_hidden_layers=8, **(types if kind == "gemma3" else {}))
    read: dict[int, torch.Tensor] = {}
    last: list[torch.Tensor] = []
    for index, layer in enumerate(layers_of(target)):
        layer.register_forward_pre_hook(
            lambda module, args, kwargs, index=index: read.update(
                {index: args[0] if args else kwargs["hidden_states"]}
            ),
            with_kwargs=True,
        )
    target.get_decoder().norm.register_forward_hook(lambda module, args, out: last.append(out))
    with torch.no_grad():
        states = target(make_prompt(20), output_hidden_states=list(listed)).hidden_states
    assert len(states) == 9
    for index, state in enumerate(states):
        if index not in listed:
            assert state is None, "what was not asked for is not kept"
        elif index < 8:
            assert torch.equal(state, read[index])
        else:
            assert torch.equal(state, last[0]), "the last state is the normed one"
    assert len({tuple(state[0, -1, :4].tolist()) for state in read.values()}) == 8


@pytest.mark.parametrize("kind", ["smollm3", "gpt_neox"])
def test_state_i_is_what_layer_i_reads_in_other_families(kind: str) -> None:
    config: Any = {"smollm3": SmolLM3Config, "gpt_neox": GPTNeoXConfig}[kind]
    target = make_other(
        config(**{**SIZES, **SPECIAL, "num_hidden_layers": 5}, intermediate_size=48)
    )
    read = {}
    for index, layer in enumerate(layers_of(target)):
        layer.register_forward_pre_hook(
            lambda module, args, index=index: read.update({index: args[0]})
        )
    with torch.no_grad():
        states = target(make_prompt(6), output_hidden_states=[1, 2, 4]).hidden_states
    assert [index for index, state in enumerate(states) if state is not None] == [1, 2, 4]
    assert all(torch.equal(states[index], read[index]) for index in (1, 2, 4))


# The facts a draft keeps of its target, and targets that it cannot have.


def test_only_a_public_name_is_kept(tmp_path: Any) -> None:
    target = make_tiny("llama")
    for name, expected in (
        ("me/model-1B", "me/model-1B"),
        ("", None),
        (str(tmp_path), None),
        ("/a/folder/that/is/gone", None),
    ):
        target.config.name_or_path = name
        assert make_eagle(target, EVEN).config.target_name == expected


def test_random_weights_differ_and_follow_the_seed() -> None:
    target = make_tiny("llama")
    torch.manual_seed(4)
    one, two = make_eagle(target, EVEN), make_eagle(target, EVEN)
    torch.manual_seed(4)
    again = make_eagle(target, EVEN)
    assert torch.equal(one.body.fc.weight, again.body.fc.weight)
    assert not torch.equal(one.body.fc.weight, two.body.fc.weight)
    assert one.body.fc.weight.std().item() == pytest.approx(0.5, rel=0.1)
    assert bool((one.body.norm.weight == 1).all())


def test_the_target_is_left_as_it_was_and_shares_nothing() -> None:
    target = make_tiny("qwen-padded")
    before = {name: value.clone() for name, value in target.state_dict().items()}
    config = copy.deepcopy(target.config.to_dict())
    draft = make_eagle(target, EVEN)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.zero_()
    assert all(torch.equal(before[name], value) for name, value in target.state_dict().items())
    assert target.config.to_dict() == config


def test_an_encoder_decoder_is_refused() -> None:
    config = T5Config(vocab_size=300, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="T5ForConditionalGeneration is an encoder-decoder"):
        make_eagle(T5ForConditionalGeneration(config), EVEN)


def test_a_recurrent_target_is_refused() -> None:
    target = make_other(MambaConfig(vocab_size=300, hidden_size=16, num_hidden_layers=3))
    with pytest.raises(ValueError, match="cannot return to an earlier token"):
        make_eagle(target, EVEN)


def test_embeddings_of_another_width_are_refused() -> None:
    target = make_other(OPTConfig(**SIZES, **SPECIAL, ffn_dim=48, word_embed_proj_dim=16))
    with pytest.raises(ValueError, match=r"16 and 32 wide.*from_draft_model"):
        make_eagle(target, EVEN)


class Quantised(nn.Linear):
    """Stands for a bitsandbytes or torchao layer, whose weight is no plain tensor."""


def test_a_head_that_cannot_be_cut_is_refused() -> None:
    target = make_tiny("llama")
    target.lm_head = Quantised(48, 300, bias=False)
    with pytest.raises(ValueError, match="its head is a Quantised"):
        make_eagle(target, EVEN)
    target.lm_head = nn.Linear(48, 300, bias=False, device="meta")
    with pytest.raises(ValueError, match=r"head of LlamaForCausalLM is offloaded.*device_map"):
        make_eagle(target, EVEN)


@pytest.mark.parametrize("wide", [False, True])
def test_a_vocabulary_of_another_width_is_refused(wide: bool) -> None:
    vocabulary = DraftVocabulary.from_ids([1, 2], vocab_size=400 if wide else 200)
    with pytest.raises(ValueError, match=r"has a vocabulary of 300, draft .* is made for"):
        TrimmedDraftForCausalLM.for_target(make_tiny("llama"), vocabulary)


@pytest.mark.parametrize("thing", [None, "me/model", nn.Linear(2, 2)])
def test_what_is_no_model_is_refused(thing: Any) -> None:
    vocabulary = DraftVocabulary.from_ids([1, 2], vocab_size=300)
    with pytest.raises(TypeError, match="the target must be a loaded Transformers model"):
        TrimmedDraftForCausalLM.for_target(thing, vocabulary)
    with pytest.raises(TypeError, match="must be a DraftVocabulary, got list"):
        TrimmedDraftForCausalLM.for_target(make_tiny("llama"), [1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads, got 4 and 3"),
        ({"intermediate_size": 0}, "from 1 on, got 0"),
        ({"head_dim": 12.0}, r"from 1 on, got 12\.0"),
        ({"attention_bias": 1}, "True or False, got 1"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_parameters is no setting"),
        ({"hidden_size": 64}, "hidden_size is no setting"),
        ({"layers": 5}, "layers must be 3 whole numbers, got 5"),
        ({"layers": "012"}, "layers must be 3 whole numbers, got '012'"),
    ],
    ids=str,
)
def test_settings_that_no_layer_can_have_are_refused(settings: dict[str, Any], named: str) -> None:
    kept = DraftVocabulary.from_ids(EVEN, vocab_size=300)
    with pytest.raises(ValueError, match=named):
        TrimmedDraftForCausalLM.for_target(make_tiny("llama"), kept, **settings)


def test_a_wider_mlp_is_possible() -> None:
    kept = DraftVocabulary.from_ids(EVEN, vocab_size=300)
    target = make_tiny("llama")
    draft = TrimmedDraftForCausalLM.for_target(target, kept, intermediate_size=200)
    assert draft.body.midlayer.mlp.up_proj.out_features == 200
    prompt = make_prompt()
    ids = target.generate(prompt, max_new_tokens=6, assistant_model=draft)
    assert torch.equal(ids, target.generate(prompt, max_new_tokens=6))


def test_wrapped_targets_are_seen_through_and_encoders_refused() -> None:
    kept = DraftVocabulary.from_ids(EVEN, vocab_size=300)
    target = make_tiny("llama")
    draft = TrimmedDraftForCausalLM.for_target(nn.DataParallel(target), kept)
    assert draft.config.target_num_hidden_layers == 2
    encoder = BertForMaskedLM(BertConfig(**SIZES, intermediate_size=48))
    with pytest.raises(ValueError, match="must be able to generate, which a BertForMaskedLM"):
        TrimmedDraftForCausalLM.for_target(encoder, kept)


def test_a_target_whose_layers_differ_gives_its_full_attention() -> None:
    """Gemma 4: heads of full attention are wider than those of sliding layers."""
    sizes: dict[str, Any] = {
        **SIZES,
        "hidden_size": 48,
        "num_hidden_layers": 4,
        "intermediate_size": 96,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "global_head_dim": 24,
        "hidden_size_per_layer_input": 0,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    }
    config = Gemma4TextConfig(**sizes)
    target: Any = AutoModelForCausalLM.from_config(config).eval()
    draft = make_eagle(target, EVEN)
    assert draft.config.body_config.head_dim == 24
    assert LatencyModel.eagle3(config).cost(10) > 0
    prompt = make_prompt()
    ids = target.generate(prompt, max_new_tokens=6, assistant_model=draft)
    assert torch.equal(ids, target.generate(prompt, max_new_tokens=6))
