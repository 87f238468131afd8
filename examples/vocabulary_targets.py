"""A target of the benchmarks of vocabularies: its tokenizer, and what a draft for it costs."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from llama3_tokenizer import llama3_folder

from vtrim_hf import LatencyModel, required_token_ids
from vtrim_hf.named_models import NamedModel
from vtrim_hf.vocabulary import tokenizer_fingerprint


def slug_of(name: str) -> str:
    """Return a target's short name, for a folder; different targets may have the same."""
    return re.sub(r"[^a-z0-9._-]+", "-", Path(name).name.lower())


class Target:
    """A target's tokenizer, and what a draft for it costs.

    Args:
        name: `llama3`, or what `NamedModel` takes.
        layer_of: the model whose config counts, where the target has none.
    """

    def __init__(self, name: str, layer_of: str | None = None) -> None:
        self.name = name
        self.model = NamedModel(str(llama3_folder()) if name == "llama3" else name)
        self.layer_of = layer_of

    @property
    def slug(self) -> str:
        """A short name for a folder."""
        return slug_of(self.name)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return self.model.tokenizer

    @cached_property
    def latency(self) -> LatencyModel:
        """The operations of one step of an EAGLE-3 draft, as in the paper."""
        source = NamedModel(self.layer_of) if self.layer_of else self.model
        try:
            config = source.config
        except (OSError, ValueError) as error:
            raise SystemExit(
                f"{source} has no config that says how large a draft's layer is: name a model "
                f"that has one, --layer-of MODEL ({str(error).splitlines()[0]})"
            ) from error
        width = len(self.tokenizer) if self.layer_of else self.model.vocab_size
        return LatencyModel.eagle3(config, vocab_size=width)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.latency.vocab_size

    @cached_property
    def required(self) -> Any:
        """Ids that every vocabulary keeps."""
        try:
            generation = self.model.generation_config
        except OSError:  # a folder with a tokenizer only has none
            generation = None
        return required_token_ids(self.tokenizer, generation, vocab_size=self.vocab_size)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What a result depends on, and a reader wants to know."""
        return {
            "target": self.name,
            "layer_of": self.layer_of,
            "vocab_size": self.vocab_size,
            "tokenizer_hash": tokenizer_fingerprint(self.tokenizer),
            "template_hash": hashlib.sha256(
                str(self.tokenizer.chat_template).encode()
            ).hexdigest(),
            "latency": self.latency.to_dict(),
            "required": len(self.required),
        }
