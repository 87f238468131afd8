"""`export_draft` and `vtrim export`: files that an independent reader can compute with."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.nn.functional import linear, scaled_dot_product_attention, silu
from transformers import AutoConfig
from typer.testing import CliRunner

import vtrim_hf.exporting
from tiny_models import KINDS, PADDED_VOCAB_SIZE, VOCAB_SIZE, make_prompt, make_tiny
from vtrim_hf import DraftVocabulary, TrimmedDraftForCausalLM
from vtrim_hf.cli_exporting import export
from vtrim_hf.eagle_format import EAGLE_WEIGHTS, OWN_KEY, eagle_tables
from vtrim_hf.exporting import export_draft

IDS = (*range(3), 7, 11, *range(40, 200, 3), 290)
LAYERS = (1, 5, 6)
NOT_THE_DEFAULTS: dict[str, Any] = {
    "num_hidden_layers": 8,
    "head_dim": 16,  # of 4 heads and 48 numbers
    "rms_norm_eps": 1e-3,
    "rope_parameters": {"rope_theta": 100_000.0, "rope_type": "default"},
}

app = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False)
app.command()(export)


def fault(*threads: str) -> Any:
    """Give the test the threads that it answers for as its id."""
    return pytest.mark.parametrize("thread", [", ".join(threads)], ids=str)


def make_draft(target: Any, ids: Any = IDS, layers: Any = LAYERS, **settings: Any) -> Any:
    vocabulary = DraftVocabulary.from_ids(ids, vocab_size=target.config.vocab_size)
    draft = TrimmedDraftForCausalLM.for_target(target, vocabulary, layers=layers, **settings)
    with torch.no_grad():  # norms of ones would hide one that is applied twice, or to another
        for name, weight in draft.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    return draft


@pytest.fixture
def target() -> Any:
    return make_tiny("llama", **NOT_THE_DEFAULTS)


@pytest.fixture
def draft(target: Any) -> Any:
    return make_draft(target)


def read_config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def reference_reader(
    folder: Path, features: torch.Tensor, embeds: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute logits [n, k] and states [n, d] of features [n, 3d] and embeddings [n, d].

    It knows the format's rules and the two files, and nothing of the package.
    """
    c, w = read_config(folder), load_file(folder / "model.safetensors")
    heads, key_heads, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return x * (mean_square + c["rms_norm_eps"]).rsqrt() * w[f"{name}.weight"]

    def project(x: torch.Tensor, name: str) -> torch.Tensor:
        return linear(x, w[f"midlayer.{name}_proj.weight"])

    def turned(x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(len(x), dtype=torch.float32)[:, None]
        angle = place / c["rope_theta"] ** (torch.arange(0, size, 2) / size)
        cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)

    state = linear(features, w["fc.weight"])
    both = torch.cat(
        [norm(embeds, "midlayer.input_layernorm"), norm(state, "midlayer.hidden_norm")], dim=-1
    )
    q, k, v = (project(both, f"self_attn.{part}").unflatten(-1, (-1, size)) for part in "qkv")
    k, v = (x.repeat_interleave(heads // key_heads, dim=1) for x in (turned(k), v))
    q, k, v = (x.transpose(0, 1) for x in (turned(q), k, v))
    found = scaled_dot_product_attention(q, k, v, is_causal=True)
    state = state + project(found.transpose(0, 1).flatten(1), "self_attn.o")
    inside = norm(state, "midlayer.post_attention_layernorm")
    inside = silu(project(inside, "mlp.gate")) * project(inside, "mlp.up")
    state = state + project(inside, "mlp.down")
    return linear(norm(state, "norm"), w["lm_head.weight"]), state


def as_vllm_reads(config: dict[str, Any]) -> list[int]:
    """Indices of Transformers' hidden states: after so many layers."""
    return list(config["eagle_aux_hidden_state_layer_ids"])


def as_sglang_reads(config: dict[str, Any]) -> list[int]:
    """The same: what goes into layer i + 1."""
    ids = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    return [index + 1 for index in ids]


@fault("SafeAILab/EAGLE#249, vllm-project/vllm#17957, vllm-project/vllm#54526")
def test_the_files_hold_what_engines_ask_for(thread: str, draft: Any, tmp_path: Path) -> None:
    folder = export_draft(draft, "eagle", tmp_path / "new" / "export", target_name="me/target")
    assert folder == tmp_path / "new" / "export"
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert [file.name for file in folder.parent.iterdir()] == ["export"]
    for file in folder.iterdir():
        assert file.stat().st_mode & 0o777 == 0o644
    found = load_file(folder / "model.safetensors")
    k, d, both = len(IDS), 48, 96
    assert {name: (tuple(value.shape), value.dtype) for name, value in found.items()} == {
        "d2t": ((k,), torch.int64),
        "t2d": ((VOCAB_SIZE,), torch.bool),
        "fc.weight": ((d, 3 * d), torch.float32),
        "midlayer.input_layernorm.weight": ((d,), torch.float32),
        "midlayer.hidden_norm.weight": ((d,), torch.float32),
        "midlayer.post_attention_layernorm.weight": ((d,), torch.float32),
        "midlayer.self_attn.q_proj.weight": ((4 * 16, both), torch.float32),
        "midlayer.self_attn.k_proj.weight": ((2 * 16, both), torch.float32),
        "midlayer.self_attn.v_proj.weight": ((2 * 16, both), torch.float32),
        "midlayer.self_attn.o_proj.weight": ((d, 4 * 16), torch.float32),
        "midlayer.mlp.gate_proj.weight": ((96, d), torch.float32),
        "midlayer.mlp.up_proj.weight": ((96, d), torch.float32),
        "midlayer.mlp.down_proj.weight": ((d, 96), torch.float32),
        "norm.weight": ((d,), torch.float32),
        "lm_head.weight": ((k, d), torch.float32),
    }
    assert found.keys() == {*EAGLE_WEIGHTS, "d2t", "t2d"}
    assert read_config(folder) == {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": d,
        "target_hidden_size": d,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-3,
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_theta": 100_000.0, "rope_type": "default"},
        "rope_theta": 100_000.0,
        "rope_scaling": None,
        "vocab_size": VOCAB_SIZE,
        "draft_vocab_size": k,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "eagle_aux_hidden_state_layer_ids": [1, 5, 6],
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [0, 4, 5],
            "use_aux_hidden_state": True,
        },
        "norm_before_residual": False,
        "dtype": "float32",
        "torch_dtype": "float32",
        OWN_KEY: {
            "export": "eagle",
            "target": "me/target",
            "target_num_hidden_layers": 8,
            "target_hidden_states": [1, 5, 6],
            "tokenizer_hash": None,
            "vocabulary_fingerprint": draft.config.vocabulary_fingerprint,
        },
    }


@pytest.mark.parametrize("reads", [as_vllm_reads, as_sglang_reads])
@pytest.mark.parametrize("packed", [False, True])
def test_an_independent_reader_computes_the_draft_s_logits(
    target: Any, draft: Any, tmp_path: Path, reads: Any, packed: bool
) -> None:
    if packed:  # as after a run of generate: queries, keys and values share one storage
        draft.body.pack()
    folder = export_draft(draft, "eagle", tmp_path / "export")
    config, ids = read_config(folder), make_prompt(24)
    with torch.no_grad():
        states = target(ids, output_hidden_states=True).hidden_states
        features = torch.cat([states[index][0, :-1] for index in reads(config)], dim=-1)
        embeds = target.get_input_embeddings()(ids[0, 1:])
        logits, state = reference_reader(folder, features, embeds)
        ours = draft(inputs_embeds=embeds[None], target_hidden_states=features[None])
    wide = torch.full((len(logits), config["vocab_size"]), -math.inf)
    d2t = load_file(folder / "model.safetensors")["d2t"]
    wide[:, torch.arange(len(d2t)) + d2t] = logits
    torch.testing.assert_close(wide, ours.logits[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state, ours.hidden_states[0][0], atol=1e-5, rtol=1e-5)
    rows = logits.argmax(-1)
    assert torch.equal(rows + d2t[rows], ours.logits[0].argmax(-1))
    assert len(set(rows.tolist())) > 3
    assert set((rows + d2t[rows]).tolist()) <= set(IDS)


@fault("SafeAILab/EAGLE#222, verl-project/verl-SpeCo#67")
@given(ids=st.sets(st.integers(0, 199), min_size=1, max_size=199))
def test_tables_give_the_ids_back(thread: str, ids: set[int]) -> None:
    kept = torch.tensor(sorted(ids))
    tables = eagle_tables(kept, 200)
    assert tables["d2t"].dtype == torch.int64
    assert torch.equal(torch.arange(len(ids)) + tables["d2t"], kept)
    assert tables["t2d"].dtype == torch.bool
    assert tables["t2d"].shape == (200,)
    assert int(tables["t2d"].sum()) == len(ids)
    assert torch.equal(tables["t2d"].nonzero().flatten(), kept)


@fault("SafeAILab/EAGLE#222")
def test_offsets_of_the_first_ids_are_all_zero(thread: str, target: Any, tmp_path: Path) -> None:
    folder = export_draft(make_draft(target, range(17)), "eagle", tmp_path / "export")
    tables = load_file(folder / "model.safetensors")
    assert tables["d2t"].tolist() == [0] * 17
    assert tables["t2d"].tolist() == [True] * 17 + [False] * (VOCAB_SIZE - 17)


def test_a_full_vocabulary_has_no_tables(target: Any, tmp_path: Path) -> None:
    folder = export_draft(make_draft(target, range(VOCAB_SIZE)), "eagle", tmp_path / "export")
    tensors, config = load_file(folder / "model.safetensors"), read_config(folder)
    assert tensors.keys() == set(EAGLE_WEIGHTS)
    assert tensors["lm_head.weight"].shape == (VOCAB_SIZE, 48)
    assert config["vocab_size"] == config["draft_vocab_size"] == VOCAB_SIZE


@pytest.mark.parametrize("kind", [*KINDS, "gemma3"])
def test_every_kind_of_target(kind: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"layer_types": ["full_attention"] * 8} if kind == "gemma3" else {}
    target = make_tiny(kind, num_hidden_layers=8, eos_token_id=[1, 2], **more)
    draft = make_draft(target)
    folder = export_draft(draft, "eagle", tmp_path / "export", dtype=torch.bfloat16)
    tensors, config = load_file(folder / "model.safetensors"), read_config(folder)
    width = PADDED_VOCAB_SIZE if kind == "qwen-padded" else VOCAB_SIZE
    assert config["vocab_size"] == tensors["t2d"].numel() == width
    assert config["eos_token_id"] == [1, 2]
    assert {tensors[name].dtype for name in EAGLE_WEIGHTS} == {torch.bfloat16}
    assert tensors["d2t"].dtype == torch.int64
    # What engines use to read a config takes it as it is, without a warning.
    loaded = AutoConfig.from_pretrained(folder)
    assert loaded.dtype == torch.bfloat16
    assert loaded.rope_parameters == draft.config.body_config.rope_parameters
    assert loaded.head_dim == draft.config.body_config.head_dim
    assert not loaded.tie_word_embeddings


ROTARY = {
    "rope_theta": 500_000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def test_scaled_positions_are_said_in_both_spellings(tmp_path: Path) -> None:
    target = make_tiny("llama", num_hidden_layers=8, rope_parameters=ROTARY)
    config = read_config(export_draft(make_draft(target), "eagle", tmp_path / "export"))
    assert config["rope_parameters"] == ROTARY
    assert config["rope_theta"] == 500_000.0
    assert config["rope_scaling"] == {k: v for k, v in ROTARY.items() if k != "rope_theta"}
    loaded = AutoConfig.from_pretrained(tmp_path / "export")
    assert loaded.rope_parameters == ROTARY


def test_the_embeddings_are_a_state_like_others(target: Any, tmp_path: Path) -> None:
    draft = make_draft(target, layers=(0, 4, 7))
    config = read_config(export_draft(draft, "eagle", tmp_path / "export"))
    assert as_vllm_reads(config) == as_sglang_reads(config) == [0, 4, 7]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [-1, 3, 6]


@pytest.mark.parametrize("dtype", ["float16", torch.float16])
def test_a_draft_is_exported_from_its_folder_too(draft: Any, tmp_path: Path, dtype: Any) -> None:
    draft.save_pretrained(tmp_path / "draft")
    before = {name: weight.clone() for name, weight in draft.named_parameters()}
    export_draft(str(tmp_path / "draft"), "eagle", tmp_path / "export", dtype=dtype)
    again = export_draft(draft, "eagle", tmp_path / "again", dtype=dtype)
    found, same = (
        load_file(tmp_path / name / "model.safetensors") for name in ("export", "again")
    )
    assert all(torch.equal(found[name], same[name]) for name in same)
    assert found["fc.weight"].dtype == torch.float16
    assert torch.equal(found["fc.weight"], draft.body.fc.weight.to(torch.float16))
    assert read_config(tmp_path / "export") == read_config(again)
    assert all(torch.equal(weight, before[name]) for name, weight in draft.named_parameters())


# Refusals: each says the rule, the value and the way out.


def refused(draft: Any, said: str, place: Path, **settings: Any) -> None:
    with pytest.raises(ValueError, match=said):
        export_draft(draft, settings.pop("format", "eagle"), place / "export", **settings)
    assert not list(place.iterdir())


def test_an_unknown_format_or_dtype_is_refused(draft: Any, tmp_path: Path) -> None:
    refused(draft, "must be one of eagle, got 'gguf'", tmp_path, format="gguf")
    refused(draft, "float32, bfloat16, float16, got int8", tmp_path, dtype=torch.int8)
    refused(draft, "float32, bfloat16, float16, got load", tmp_path, dtype="load")


def test_a_standalone_body_is_refused(target: Any, tmp_path: Path) -> None:
    vocabulary = DraftVocabulary.from_ids(IDS, vocab_size=VOCAB_SIZE)
    draft = TrimmedDraftForCausalLM.from_draft_model(target, vocabulary)
    refused(draft, "has a standalone one.*for_target", tmp_path)


@pytest.mark.parametrize("layers", [(1, 5, 8), (2, 7, 8)])
def test_the_state_behind_the_last_layer_is_refused(
    target: Any, tmp_path: Path, layers: tuple[int, ...]
) -> None:
    refused(make_draft(target, layers=layers), r"of which 8 is what the final.*below 8", tmp_path)
    export_draft(make_draft(target, layers=(1, 5, 7)), "eagle", tmp_path / "export")


@pytest.mark.parametrize("name", ["attention_bias", "mlp_bias"])
def test_biases_are_refused(target: Any, tmp_path: Path, name: str) -> None:
    draft = make_draft(target, **{name: True})
    refused(draft, rf"{name}=True: make and train one with for_target\(..., {name}=F", tmp_path)


def test_a_bias_of_the_head_is_refused(draft: Any, tmp_path: Path) -> None:
    draft.config.head_bias = True
    refused(draft, "head_bias=True: a draft for this target works in Transformers", tmp_path)
    draft.config.head_bias = False
    draft.body.lm_head.bias = torch.nn.Parameter(torch.zeros(len(IDS)))
    refused(draft, "lm_head.bias is none of them", tmp_path)


def test_another_activation_is_refused(draft: Any, tmp_path: Path) -> None:
    draft.config.body_config.hidden_act = "gelu"
    refused(draft, "with silu, this one has gelu", tmp_path)


def test_weights_that_are_not_there_are_refused(draft: Any, tmp_path: Path) -> None:
    table = draft.kept_ids
    draft.body.fc.to("meta")
    refused(draft, "fc.weight is not loaded.*without device_map", tmp_path)
    draft.kept_ids = table.to("meta")
    refused(draft, "the kept ids, which are not loaded", tmp_path)
    draft.kept_ids = torch.full_like(table, -1)
    refused(draft, "ascending, unique ids", tmp_path)
    draft.kept_ids = table.clone().index_fill_(0, torch.tensor([1]), 2).unique()
    refused(draft, "fingerprint", tmp_path)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_are_refused(draft: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(draft, peft.LoraConfig(target_modules=["q_proj"], r=2))
    refused(adapted, "q_proj.*merge adapters", tmp_path)
    export_draft(adapted.merge_and_unload(), "eagle", tmp_path / "export")


def test_numbers_that_are_not_finite_are_refused(draft: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        draft.body.fc.weight[3, 5] = 1e6
    refused(draft, "fc.weight are not in float16: export in float32", tmp_path, dtype="float16")
    export_draft(draft, "eagle", tmp_path / "export", dtype="bfloat16")


@pytest.mark.parametrize("other", [None, {}, torch.nn.Linear(1, 1), 3])
def test_what_is_no_draft_is_a_type_error(other: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"takes a TrimmedDraftForCausalLM.*for_target"):
        export_draft(other, "eagle", tmp_path / "export")


# The folder


def test_an_earlier_export_is_replaced(target: Any, draft: Any, tmp_path: Path) -> None:
    folder = export_draft(draft, "eagle", tmp_path / "export")
    export_draft(make_draft(target, range(VOCAB_SIZE), (2, 3, 4)), "eagle", folder)
    assert read_config(folder)["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]
    assert load_file(folder / "model.safetensors").keys() == set(EAGLE_WEIGHTS)
    assert [file.name for file in tmp_path.iterdir()] == ["export"]


@pytest.mark.parametrize("name", ["notes.txt", "config.json", "model.safetensors"])
def test_other_files_are_never_replaced(draft: Any, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match=rf"holds {name}: name a new folder"):
        export_draft(draft, "eagle", folder)
    assert [file.read_text() for file in folder.iterdir()] == ['{"model_type": "llama"}']
    (folder / name).unlink()
    export_draft(draft, "eagle", folder)
    (folder / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"holds notes\.txt"):
        export_draft(draft, "eagle", folder)


def test_files_and_the_current_folder_are_no_place(
    draft: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file: name another place"):
        export_draft(draft, "eagle", tmp_path / "file")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ValueError, match="is the current one"):
        export_draft(draft, "eagle", ".")
    assert export_draft(draft, "eagle", "inside") == Path("inside")
    assert read_config(tmp_path / "here" / "inside")["model_type"] == "llama"


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("stage", ["weights", "last rename"])
def test_an_export_that_fails_changes_nothing(
    target: Any, draft: Any, tmp_path: Path, stage: str, earlier: bool, monkeypatch: Any
) -> None:
    folder = tmp_path / "export"
    if earlier:
        export_draft(draft, "eagle", folder)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    if stage == "weights":
        monkeypatch.setattr(vtrim_hf.exporting, "save_file", fail)
    else:
        rename = Path.rename
        monkeypatch.setattr(
            Path, "rename", lambda old, new: (fail if old.name == "new" else rename)(old, new)
        )
    with pytest.raises(OSError, match="no space left"):
        export_draft(make_draft(target, layers=(2, 3, 4)), "eagle", folder)
    assert list(tmp_path.iterdir()) == [folder] * earlier
    if earlier:
        assert read_config(folder)["eagle_aux_hidden_state_layer_ids"] == list(LAYERS)


# The command


def run(*arguments: object, exit_code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + repr(result.exception)
    return result


def test_the_command_writes_the_same(draft: Any, tmp_path: Path) -> None:
    draft.save_pretrained(tmp_path / "draft")
    result = run(
        tmp_path / "draft",
        tmp_path / "export",
        *("--format", "eagle", "--dtype", "bfloat16", "--target", "me/target", "--json"),
    )
    assert json.loads(result.stdout) == {
        "output": str(tmp_path / "export"),
        "format": "eagle",
        "k": len(IDS),
        "vocab_size": VOCAB_SIZE,
        "target": "me/target",
        "layers": [1, 5, 6],
        "dtype": "bfloat16",
        "fingerprint": draft.config.vocabulary_fingerprint,
    }
    same = export_draft(
        draft, "eagle", tmp_path / "same", dtype="bfloat16", target_name="me/target"
    )
    assert read_config(tmp_path / "export") == read_config(same)
    files = [tmp_path / name / "model.safetensors" for name in ("export", "same")]
    assert files[0].read_bytes() == files[1].read_bytes()
    shown = run(tmp_path / "draft", tmp_path / "export").stdout
    assert "1, 5, 6" in shown
    assert "wrote" in shown


def test_the_command_answers_mistakes_in_a_sentence(target: Any, tmp_path: Path) -> None:
    export_to = tmp_path / "export"
    missing = run(tmp_path / "missing", export_to, exit_code=2)
    assert "missing" in missing.stderr
    vocabulary = DraftVocabulary.from_ids(IDS, vocab_size=VOCAB_SIZE)
    standalone = TrimmedDraftForCausalLM.from_draft_model(target, vocabulary)
    standalone.save_pretrained(tmp_path / "draft")
    for arguments, said in (
        ((tmp_path / "draft", export_to), "has a standalone one"),
        ((tmp_path / "draft", export_to, "--format", "gguf"), "must be one of eagle, got 'gguf'"),
        ((tmp_path / "draft", tmp_path / "draft"), "replaces nothing but an earlier export"),
    ):
        result = run(*arguments, exit_code=2)
        assert said in " ".join(result.stderr.split())
        assert "Traceback" not in result.output
    assert not export_to.exists()


def test_the_command_has_an_example() -> None:
    assert "Example: vtrim export" in " ".join(run("--help").stdout.replace("│", " ").split())
