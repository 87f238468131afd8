"""Llama 3's tokenizer, the one of the paper's target, read out of the package llama-models."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vtrim_hf.embedded_models import cache_folder

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPECIAL = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    4: "<|finetune_right_pad_id|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    8: "<|eom_id|>",
    9: "<|eot_id|>",
    10: "<|python_tag|>",
}
LLAMA3_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
{{- message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""


def llama3_folder() -> Path:
    """Return a folder with Llama 3's tokenizer and the config of Llama-3.1-8B, made once.

    Raises:
        SystemExit: if the package llama-models is not installed.
    """
    from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

    try:
        package = importlib.metadata.distribution("llama-models")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(
            "the target llama3 is read out of the package llama-models, which is not installed: "
            "pip install --no-deps llama-models==0.3.0"
        ) from None
    data = Path(str(package.locate_file("llama_models/llama3/tokenizer.model"))).read_bytes()
    folder = cache_folder() / "models" / f"llama3-{hashlib.sha256(data).hexdigest()[:12]}-1"
    if (folder / "config.json").is_file():  # written last
        return folder
    lines = (line.split() for line in data.splitlines() if line)
    ranks = {base64.b64decode(piece): int(rank) for piece, rank in lines}
    names = [
        LLAMA3_SPECIAL.get(number, f"<|reserved_special_token_{number}|>") for number in range(256)
    ]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_pairs(ranks, LLAMA3_SPLIT, names),
        bos_token=names[0],
        eos_token=names[9],
        pad_token=names[4],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = LLAMA3_TEMPLATE
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    ends = [len(ranks) + number for number in (1, 8, 9)]
    GenerationConfig(bos_token_id=len(ranks), eos_token_id=ends).save_pretrained(folder)
    LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        bos_token_id=len(ranks),
        eos_token_id=ends,
    ).save_pretrained(folder)
    return folder


def byte_pairs(ranks: Mapping[bytes, int], split: str, special: Sequence[str]) -> Any:
    """Make a byte-level BPE tokenizer of pieces by their rank, which is the form of tiktoken.

    A piece may come of every pair of pieces that makes it; the earlier piece is merged first.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    letters = {byte: chr(byte) for byte in printed}
    letters |= {byte: chr(256 + number) for number, byte in enumerate(others)}

    def spelt(piece: bytes) -> str:
        return "".join(letters[byte] for byte in piece)

    merges = []
    for piece in sorted(ranks, key=ranks.__getitem__):
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [(left, right) for left, right in pairs if left in ranks and right in ranks]
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(spelt(left), spelt(right)) for left, right in pairs]
    vocabulary = {spelt(piece): rank for piece, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return tokenizer
