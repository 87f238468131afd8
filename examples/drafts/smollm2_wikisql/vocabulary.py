"""The kept ids: the meaning of each row of a trimmed head.

A `DraftVocabulary` is made here and nowhere else, and nothing after it changes it: its fingerprint
travels in the config, the report and the card, so that a head and a table that do not belong
together are noticed. This module knows nothing about models, counting or searching.

Draft space numbers the rows of the trimmed head, 0 to k - 1. Target space numbers the target's
tokens, 0 to V - 1, V being the target's (padded) width. Row i of the head stands for `ids[i]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from .kept_ids import (
    WIDEST,
    HasVocabulary,
    first_bad_position,
    kept_ids_fingerprint,
    rank_ids,
    refuse_rounding,
    rows_of,
    tokenizer_fingerprint,
    whole_ids,
    whole_number,
)
from .vocabulary_files import read_vocabulary, write_atomically, write_vocabulary

__all__ = [
    "DraftVocabulary",
    "HasVocabulary",
    "first_bad_position",
    "kept_ids_fingerprint",
    "rank_ids",
    "rows_of",
    "tokenizer_fingerprint",
    "write_atomically",
]


class HasCounts(Protocol):
    """What a `TokenCounts` offers to a vocabulary."""

    def array(self) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """The tokens that a draft can say, in the order of its head's rows.

    Build one with `from_ids` or `from_counts` (or let `search_vocabulary` choose it).

    Attributes:
        ids: int64 [k], ascending and unique: row i of the head stands for token `ids[i]`.
        vocab_size: V, the target's width as in its config, padding included.
        tokenizer_hash: `tokenizer_fingerprint` of the target's tokenizer, or None if unknown.
        ranks: int64 [k] or None: `ranks[i]` is the place of `ids[i]` in the order of need (0
            first), which is what `cut` goes by.
        provenance: JSON-able facts about where the vocabulary came from.

    Raises:
        ValueError: if the ids are not ascending, unique int64 inside [0, V), the ranks are not a
            permutation of 0..k-1, or the provenance is not JSON.
    """

    ids: torch.Tensor
    vocab_size: int
    tokenizer_hash: str | None = None
    ranks: torch.Tensor | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.ids.dtype != torch.int64 or self.ids.ndim != 1:
            raise ValueError(
                f"kept ids must be an int64 tensor of shape [k], got {self.ids.dtype} "
                f"{list(self.ids.shape)}: use DraftVocabulary.from_ids"
            )
        width = whole_number(self.vocab_size, "vocab_size")
        if width > WIDEST:
            raise ValueError(
                f"vocab_size must be at most {WIDEST}, got {width}: pass the target's width "
                "(target.config.get_text_config().vocab_size)"
            )
        object.__setattr__(self, "vocab_size", width)
        bad = first_bad_position(self.ids, width)
        if bad is not None:
            raise ValueError(
                "kept ids must be ascending, unique and inside the target's width "
                f"{self.vocab_size}: at position {bad[0]} {bad[1]}"
            )
        if self.ranks is not None and (
            self.ranks.dtype != torch.int64
            or self.ranks.sort().values.tolist() != list(range(len(self.ids)))
        ):
            raise ValueError(
                f"ranks must hold each of 0..{len(self.ids) - 1} once, as many as there are ids"
            )
        try:
            facts = json.dumps(dict(self.provenance), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"provenance must be plain JSON, but {error}: use str, int, float, list and dict"
            ) from error
        # Copies: what its maker does to his tensors and dicts later changes no vocabulary.
        object.__setattr__(self, "ids", self.ids.detach().cpu().clone())
        if self.ranks is not None:
            object.__setattr__(self, "ranks", self.ranks.detach().cpu().clone())
        object.__setattr__(self, "provenance", json.loads(facts))

    @classmethod
    def from_ids(
        cls,
        ids: Iterable[int] | torch.Tensor | np.ndarray,
        *,
        vocab_size: int,
        tokenizer: HasVocabulary | None = None,
        tokenizer_hash: str | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> DraftVocabulary:
        """Make a vocabulary of the given token ids.

        Args:
            ids: token ids of the target, in any order. If it is not ascending it is taken as the
                order of need, most needed first, and kept as `ranks`.
            vocab_size: the target's width V (`target.config.get_text_config().vocab_size`).
            tokenizer: the target's tokenizer, to fingerprint it.
            tokenizer_hash: its fingerprint, if known already.
            provenance: JSON-able facts to travel along.

        Raises:
            ValueError: for an empty list, a repeated id, an id outside [0, V), anything but whole
                numbers, or a `tokenizer` that does not have the `tokenizer_hash`.

        Example:
            >>> vocabulary = DraftVocabulary.from_ids([7, 2, 5], vocab_size=10)
            >>> vocabulary.ids.tolist()
            [2, 5, 7]
            >>> vocabulary.to_draft(torch.tensor([5, 6])).tolist()
            [1, -1]
        """
        given = whole_ids(ids, "kept ids")
        ordered, order = given.sort(stable=True)
        ranks = None if torch.equal(ordered, given) else order
        if tokenizer is not None:
            found = tokenizer_fingerprint(tokenizer)
            if tokenizer_hash not in (None, found):
                raise ValueError(
                    f"the ids belong to the tokenizer {str(tokenizer_hash)[:12]}, the one given "
                    f"is {found[:12]}: count with the tokenizer that the target uses"
                )
            tokenizer_hash = found
        return cls(ordered, vocab_size, tokenizer_hash, ranks, provenance or {})

    @classmethod
    def from_counts(
        cls,
        counts: HasCounts | np.ndarray,
        size: int,
        *,
        required: Iterable[int] = (),
        vocab_size: int | None = None,
        tokenizer: HasVocabulary | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> DraftVocabulary:
        """Take the `size` most needed ids: required ones first, then the most counted.

        Args:
            counts: a `TokenCounts`, or int64 [V].
            size: k, required ids included.
            required: ids that must stay.
            vocab_size: V if it is wider than the counts.
            tokenizer: the target's tokenizer; a `TokenCounts` knows its own.
            provenance: JSON-able facts to travel along.

        Raises:
            ValueError: if `size` is smaller than the number of required ids or larger than the
                number of ids that were counted or required.
        """
        array = counts if isinstance(counts, np.ndarray) else counts.array()
        size = whole_number(size, "size")
        first = whole_ids(required, "required ids").unique()
        ranked, needed = rank_ids(array, first.tolist()), first.numel()
        if not max(1, needed) <= size <= ranked.size:
            raise ValueError(
                f"a vocabulary from these counts holds from {max(1, needed)} (the required ids) "
                f"to {ranked.size} ids (all that were counted or required), got size={size}"
            )
        return cls.from_ids(
            ranked[:size],
            vocab_size=vocab_size or array.size,
            tokenizer=tokenizer,
            tokenizer_hash=getattr(counts, "tokenizer_hash", None),
            provenance=provenance,
        )

    def cut(self, size: int) -> DraftVocabulary:
        """Keep the `size` most needed of these ids.

        Raises:
            ValueError: if there is no ranking to go by, or `size` is not in [1, k].
        """
        if self.ranks is None:
            raise ValueError(
                "this vocabulary has no ranking to cut by: make it with from_counts or "
                "search_vocabulary, or give from_ids the ids in order of need"
            )
        size = whole_number(size, "size")
        if not 1 <= size <= len(self):
            raise ValueError(f"size must lie in [1, {len(self)}], got {size}")
        kept = self.ranks < size
        by_need = self.ids[kept][self.ranks[kept].argsort()]
        origin = {"size": len(self), "fingerprint": self.fingerprint}
        return DraftVocabulary.from_ids(
            by_need,
            vocab_size=self.vocab_size,
            tokenizer_hash=self.tokenizer_hash,
            provenance={**self.provenance, "cut_from": origin},
        )

    def __len__(self) -> int:
        return self.ids.numel()

    def __contains__(self, token_id: int) -> bool:
        return int(self.to_draft(torch.tensor([token_id]))[0]) >= 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DraftVocabulary) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return (
            f"DraftVocabulary(k={len(self)}, vocab_size={self.vocab_size}, "
            f"fingerprint={self.fingerprint[:12]})"
        )

    @property
    def is_full(self) -> bool:
        """Whether every id of the target is kept (k = V), so that no table is needed."""
        return len(self) == self.vocab_size

    @property
    def fingerprint(self) -> str:
        """The sha256 (hex) of the ids, the width and the tokenizer."""
        return kept_ids_fingerprint(self.ids, self.vocab_size, self.tokenizer_hash)

    def to_draft(self, ids: torch.Tensor) -> torch.Tensor:
        """Map token ids of the target, any shape, to rows of the head; -1 where it has none.

        Raises:
            ValueError: for a tensor of anything but whole numbers.
        """
        refuse_rounding(ids, "token ids")
        return rows_of(ids, self.ids.to(ids.device))

    def to_target(self, rows: torch.Tensor) -> torch.Tensor:
        """Map rows of the head, any shape, to token ids of the target.

        Raises:
            ValueError: for a row outside [0, k), or a tensor of anything but whole numbers.
        """
        refuse_rounding(rows, "rows of a head")
        if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= len(self)):
            raise ValueError(
                f"rows of this head lie in [0, {len(self)}), got values from {int(rows.min())} to "
                f"{int(rows.max())}"
            )
        return self.ids.to(rows.device)[rows.long()]

    def save(self, folder: str | Path) -> None:
        """Write `vocabulary.json` (facts) and `vocabulary-HASH.safetensors` (ids, ranks).

        The JSON names the other file, whose name is its content's, and is replaced last and in one
        step: whenever a save is interrupted, the folder holds the old vocabulary or the new one.
        """
        facts = {
            "vocab_size": self.vocab_size,
            "size": len(self),
            "fingerprint": self.fingerprint,
            "tokenizer_hash": self.tokenizer_hash,
            "provenance": dict(self.provenance),
        }
        ranks = {} if self.ranks is None else {"ranks": self.ranks}
        write_vocabulary(folder, facts, {"ids": self.ids, **ranks})

    @classmethod
    def load(cls, folder: str | Path) -> DraftVocabulary:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: if one of the two files is missing.
            ValueError: if they do not fit each other or hold no valid vocabulary.
        """
        facts, tensors = read_vocabulary(folder)
        try:
            vocabulary = cls(
                tensors["ids"],
                facts["vocab_size"],
                facts["tokenizer_hash"],
                tensors.get("ranks"),
                facts["provenance"],
            )
        except (KeyError, ValueError) as error:
            raise ValueError(f"{folder} holds no valid vocabulary: {error}") from error
        if vocabulary.fingerprint != facts["fingerprint"]:
            raise ValueError(
                f"the ids in {folder} have the fingerprint {vocabulary.fingerprint[:12]}, its "
                f"JSON names {facts['fingerprint'][:12]}: one was changed; save it again"
            )
        if facts["size"] != len(vocabulary):
            raise ValueError(
                f"{folder} holds {len(vocabulary)} ids, but its JSON says size={facts['size']}: "
                "one was changed; save it again"
            )
        return vocabulary
