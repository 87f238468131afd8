"""The trimmed head of a draft: k rows, and the table that says which token each row stands for.

The table is part of the weights. One that is missing, broken or of another vocabulary is an error
before its first use, because a wrong table changes nothing that anyone would see but the speed.
This module knows nothing about how the model around the head works.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .kept_ids import first_bad_position, kept_ids_fingerprint
from .vocabulary import DraftVocabulary

TABLE = "kept_ids"


class TrimmedHead(nn.Module):
    """What `TrimmedDraftForCausalLM` has because its head is trimmed.

    Attributes:
        kept_ids: int64 [k], the token of each row, or None if the head has all V rows.
        body: the language model whose head is meant.
    """

    config: Any
    kept_ids: torch.Tensor | None
    body: Any
    _table_is_proven = False

    def _register_table(self) -> None:
        size = int(self.config.draft_vocab_size or self.config.vocab_size)
        # Filled with an impossible id: a table that nothing was loaded into cannot pass for one.
        table = torch.full((size,), -1) if size != self.config.vocab_size else None
        self.register_buffer(TABLE, table, persistent=True)

    @property
    def vocabulary(self) -> DraftVocabulary:
        """The kept ids with what they mean."""
        ids = torch.arange(self.config.vocab_size) if self.kept_ids is None else self.kept_ids
        return DraftVocabulary(
            ids,
            self.config.vocab_size,
            self.config.tokenizer_hash,
            provenance=self.config.vocabulary_provenance or {},
        )

    def check_kept_ids(self) -> None:
        """Raise unless the table of kept ids is valid and the one the head was cut for.

        Raises:
            ValueError: naming the table, the first bad position and the way out.
        """
        width, named = self.config.vocab_size, self.config.vocabulary_fingerprint
        ids = torch.arange(width) if self.kept_ids is None else self.kept_ids
        bad = first_bad_position(ids, width)
        if bad is not None:
            raise ValueError(
                f"{TABLE} must hold ascending, unique ids inside [0, {width}): at position "
                f"{bad[0]} {bad[1]}; make the draft with from_draft_model, or fetch its weights "
                "again"
            )
        found = kept_ids_fingerprint(ids, width, self.config.tokenizer_hash)
        if named not in (None, found):
            raise ValueError(
                f"{TABLE} has the fingerprint {found[:12]}, the config names {str(named)[:12]}: "
                "head and table belong to different vocabularies; take both files from one save"
            )

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load weights as `nn.Module` does; the table is proven again before it is used."""
        self._table_is_proven = False
        return super().load_state_dict(*args, **kwargs)

    def _prove_table_once(self) -> None:
        # Before the first use, not at each: on a GPU looking at the table stops the stream.
        if not self._table_is_proven and (self.kept_ids is None or not self.kept_ids.is_meta):
            self.check_kept_ids()
            self._table_is_proven = True

    def get_input_embeddings(self) -> nn.Module:
        """Return the body's input embeddings."""
        embeddings: nn.Module = self.body.get_input_embeddings()
        return embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the body's input embeddings."""
        self.body.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Linear:
        """Return the trimmed head, a linear layer with k rows."""
        head: nn.Linear = self.body.get_output_embeddings()
        return head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the trimmed head.

        Raises:
            ValueError: if the new head does not have k rows.
        """
        weight: Any = new_embeddings.weight
        if weight.shape[0] != self.config.draft_vocab_size:
            raise ValueError(
                f"the head must have one row for each of {self.config.draft_vocab_size} kept ids, "
                f"got {weight.shape[0]}: for another vocabulary cut the draft model again with "
                "from_draft_model"
            )
        self.body.set_output_embeddings(new_embeddings)

    @property
    def lm_head(self) -> nn.Linear:
        """The trimmed head, under its usual name."""
        return self.get_output_embeddings()

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:  # noqa: ARG002
        """Refuse: the rows of the head are the kept ids.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "a trimmed head cannot be resized, its rows are the kept ids: resize the draft model "
            "first and cut it again with from_draft_model"
        )


def remove_other_weights(folder: str | Path, variant: str | None) -> None:
    """Remove the weights of an earlier save that was sharded where the last one was not, or so.

    Transformers removes old shards, but neither an old single file, which would be loaded instead
    of the new shards, nor an old index. So shards that are there are those of the last save.

    Args:
        folder: where the draft was saved.
        variant: of the last save; files of other variants stay.
    """
    stem = f"model.{variant}" if variant else "model"
    shard = re.compile(re.escape(stem) + r"-\d{5}-of-\d{5}\.safetensors")
    sharded = any(shard.fullmatch(file.name) for file in Path(folder).iterdir())
    single, index = f"{stem}.safetensors", "model.safetensors.index"
    index = f"{index}.{variant}.json" if variant else f"{index}.json"
    (Path(folder) / (single if sharded else index)).unlink(missing_ok=True)


def refuse_unfit_weights(info: dict[str, Any]) -> None:
    """Raise if loaded weights are missing, mis-shaped, or hold a table that nothing asked for.

    Args:
        info: the loading info of `PreTrainedModel.from_pretrained`.

    Raises:
        ValueError: naming the weights.
    """
    mismatched = [f"{name} ({list(a)} for {list(b)})" for name, a, b in info["mismatched_keys"]]
    stray = [TABLE] if TABLE in info["unexpected_keys"] else []
    for names, fault in (
        (info["missing_keys"], "lack"),
        (mismatched, "do not have the shapes that the config says:"),
        (stray, "hold a table, but by the config all ids are kept:"),
    ):
        if names:
            raise ValueError(
                f"the draft's weights {fault} {', '.join(sorted(names)[:5])}"
                f"{' and more' if len(names) > 5 else ''}. Without the right ones the draft would "
                "guess at random: save or publish it again with save_pretrained, or take config "
                "and weights from one save"
            )
