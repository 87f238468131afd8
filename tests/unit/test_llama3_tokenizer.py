"""Llama 3's tokenizer for the benchmarks: made of pieces by rank, out of a package, once."""

from __future__ import annotations

import base64
import importlib
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.newest


@pytest.fixture
def llama3(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("llama3_tokenizer")


def test_pieces_by_rank_make_a_tokenizer(llama3: Any) -> None:
    ranks = {bytes([byte]): byte for byte in range(256)}
    for piece in (b"ab", b"bc", b"abc", " é".encode(), b"\x00\xff"):
        ranks[piece] = len(ranks)
    made = llama3.byte_pairs(ranks, llama3.LLAMA3_SPLIT, ["<|a|>", "<|b|>"])

    def encoded(text: str) -> list[int]:
        return list(made.encode(text, add_special_tokens=False).ids)

    assert encoded("ab") == [256]
    assert encoded("abc") == [258]
    assert encoded("xbc") == [120, 257]
    assert encoded(" é") == [259]  # a whole piece, though no two pieces make it, as in tiktoken
    assert encoded("é") == list("é".encode())
    assert encoded("<|b|>a") == [262, 97]
    assert made.decode(encoded("añ abc\n"), skip_special_tokens=False) == "añ abc\n"


def test_the_package_that_is_missing_is_named(
    llama3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = llama3.importlib.metadata.PackageNotFoundError

    def absent(name: str) -> Any:
        raise missing(name)

    monkeypatch.setattr(llama3.importlib.metadata, "distribution", absent)
    with pytest.raises(SystemExit, match="pip install --no-deps llama-models"):
        llama3.llama3_folder()


def test_it_is_read_out_of_a_package(
    llama3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [bytes([byte]) for byte in range(256)] + [b"hi", b"ok"]
    lines = [f"{base64.b64encode(piece).decode()} {rank}" for rank, piece in enumerate(ranks)]
    (tmp_path / "tokenizer.model").write_text("\n".join(lines) + "\n", "utf-8")

    class Package:
        def locate_file(self, name: str) -> Path:
            return tmp_path / Path(name).name

    monkeypatch.setattr(llama3.importlib.metadata, "distribution", lambda name: Package())
    monkeypatch.setattr(llama3, "cache_folder", lambda: tmp_path / "cache")
    folder = llama3.llama3_folder()
    assert folder == llama3.llama3_folder()
    target = importlib.import_module("vocabulary_targets").Target("llama3")
    assert (target.slug, target.vocab_size) == ("llama3", 258 + 256)
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": " ok "}]
    ids = target.tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]
    assert target.tokenizer.decode(ids) == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nok<|eot_id|>"
    )
    ends = {258 + number for number in (1, 8, 9)}
    assert ends <= set(target.required)
    sizes = target.latency.settings["layer"]
    assert (sizes["hidden_size"], sizes["num_key_value_heads"]) == (4096, 8)
