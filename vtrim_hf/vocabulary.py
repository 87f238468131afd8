"""The kept ids: the meaning of each row of a trimmed head.

A `DraftVocabulary` is made here and nowhere else, and nothing after it changes it: its fingerprint
travels in the config, the report and the card, so that a head and a table that do not belong
together are noticed. This module knows nothing about models, counting or searching.

Draft space numbers the rows of the trimmed head, 0 to k - 1. Target space numbers the target's
tokens, 0 to V - 1, V being the target's (padded) width. Row i of the head stands for token `ids[i]`.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

VOCABULARY_JSON = "vocabulary.json"
VOCABULARY_TENSORS = "vocabulary.safetensors"


class HasVocabulary(Protocol):
    """The one thing that is asked of a tokenizer here."""

    def get_vocab(self) -> dict[str, int]: ...


class HasCounts(Protocol):
    """What a `TokenCounts` offers to a vocabulary."""

    def array(self) -> np.ndarray: ...


def tokenizer_fingerprint(tokenizer: HasVocabulary) -> str:
    """Return the sha256 (hex) of a tokenizer's token-to-id table, added tokens included.

    Two tokenizers with the same fingerprint give every id the same meaning, which is all that a
    kept-id table depends on.
    """
    digest = hashlib.sha256()
    for token, index in sorted(tokenizer.get_vocab().items(), key=lambda pair: (pair[1], pair[0])):
        digest.update(f"{index}\t{token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def rank_ids(counts: np.ndarray, required: Iterable[int] = ()) -> np.ndarray:
    """Order token ids by the claim they have on a place in the vocabulary.

    Required ids come first (ascending), then every counted id by falling count, ties by id, so that
    the order is the same on every machine. Ids that were never counted and are not required have no
    rank: there is no evidence for them.

    Args:
        counts: int64 [V], how often the target said each token.
        required: ids that must stay whatever their count.

    Returns:
        int64 array of at most V ids, the first k of which are the vocabulary of size k.

    Raises:
        ValueError: if `counts` is not one-dimensional, holds a negative number, or a required id
            lies outside [0, V).
    """
    if counts.ndim != 1:
        raise ValueError(
            f"counts must have one number a token id, shape [V], got shape {counts.shape}: "
            "pass TokenCounts.array()"
        )
    if counts.size and counts.min() < 0:
        raise ValueError(
            f"counts must not be negative, got {counts.min()} for id {int(counts.argmin())}"
        )
    first = np.unique(np.fromiter(required, dtype=np.int64))
    if first.size and (first[0] < 0 or first[-1] >= counts.size):
        wrong = first[(first < 0) | (first >= counts.size)][0]
        raise ValueError(
            f"required ids must lie in [0, {counts.size}), got {wrong}: "
            "count with the target's own tokenizer and width (vocab_size)"
        )
    rest = np.flatnonzero(counts)
    rest = rest[~np.isin(rest, first, assume_unique=True)]
    # Stable sort on the negated counts keeps ascending ids within a tie.
    rest = rest[np.argsort(-counts[rest], kind="stable")]
    return np.concatenate([first, rest]).astype(np.int64)


def first_bad_position(ids: torch.Tensor, vocab_size: int) -> tuple[int, str] | None:
    """Find the first position at which `ids` is no valid kept-id table, and say why."""
    if ids.numel() == 0:
        return 0, "the table is empty"
    out = (ids < 0) | (ids >= vocab_size)
    not_ascending = torch.zeros_like(out)
    not_ascending[1:] = ids[1:] <= ids[:-1]
    bad = torch.nonzero(out | not_ascending)
    if bad.numel() == 0:
        return None
    position = int(bad[0])
    value = int(ids[position])
    if bool(out[position]):
        return position, f"id {value} lies outside [0, {vocab_size})"
    before = int(ids[position - 1])
    kind = "repeats" if value == before else "comes after the larger"
    return position, f"id {value} {kind} id {before}"


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """The tokens that a draft can say, in the order of its head's rows.

    Build one with `from_ids` or `from_counts` (or let `search_vocabulary` choose it); the constructor
    itself checks everything too.

    Attributes:
        ids: int64 [k], ascending and unique: row i of the head stands for token `ids[i]`.
        vocab_size: V, the target's width as in its config, padding included.
        tokenizer_hash: `tokenizer_fingerprint` of the target's tokenizer, or None if unknown.
        ranks: int64 [k] or None: `ranks[i]` is the place of `ids[i]` in the order of need (0 first),
            which is what `cut` goes by.
        provenance: JSON-able facts about where the vocabulary came from.
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
        bad = first_bad_position(self.ids, self.vocab_size)
        if bad is not None:
            raise ValueError(
                "kept ids must be ascending, unique and inside the target's width "
                f"{self.vocab_size}: at position {bad[0]} {bad[1]}"
            )
        if self.ranks is not None and not torch.equal(
            self.ranks.sort().values, torch.arange(len(self.ids))
        ):
            raise ValueError(
                f"ranks must hold each of 0..{len(self.ids) - 1} once, as many as there are ids"
            )

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
            ids: token ids of the target, in any order. If the order is not ascending it is taken as
                the order of need, most needed first, and kept as `ranks`.
            vocab_size: the target's width V (`target.config.get_text_config().vocab_size`).
            tokenizer: the target's tokenizer, to fingerprint it.
            tokenizer_hash: its fingerprint, if known already.
            provenance: JSON-able facts to travel along.

        Raises:
            ValueError: for an empty list, a repeated id, or an id outside [0, V).

        Example:
            >>> vocabulary = DraftVocabulary.from_ids([7, 2, 5], vocab_size=10)
            >>> vocabulary.ids.tolist()
            [2, 5, 7]
            >>> vocabulary.to_draft(torch.tensor([5, 6])).tolist()
            [1, -1]
        """
        given = torch.as_tensor(
            ids if isinstance(ids, torch.Tensor | np.ndarray) else list(ids), dtype=torch.int64
        ).flatten()
        ordered, order = given.sort(stable=True)
        ranks = None if torch.equal(ordered, given) else order
        if tokenizer is not None and tokenizer_hash is None:
            tokenizer_hash = tokenizer_fingerprint(tokenizer)
        return cls(ordered, int(vocab_size), tokenizer_hash, ranks, dict(provenance or {}))

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
        ranked = rank_ids(array, required)
        needed = len(set(required)) if not isinstance(required, Iterator) else 0
        if not max(1, needed) <= size <= ranked.size:
            raise ValueError(
                f"a vocabulary from these counts holds between {max(1, needed)} (the required ids) "
                f"and {ranked.size} ids (all that were counted or required), got size={size}"
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
        if not 1 <= size <= len(self):
            raise ValueError(f"size must lie in [1, {len(self)}], got {size}")
        kept = self.ranks < size
        by_need = self.ids[kept][self.ranks[kept].argsort()]
        return DraftVocabulary.from_ids(
            by_need,
            vocab_size=self.vocab_size,
            tokenizer_hash=self.tokenizer_hash,
            provenance={**self.provenance, "cut_from": {"size": len(self), "fingerprint": self.fingerprint}},
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
        """Map token ids of the target, any shape, to rows of the head; -1 where it has none."""
        return rows_of(ids, self.ids.to(ids.device))

    def to_target(self, rows: torch.Tensor) -> torch.Tensor:
        """Map rows of the head, any shape, to token ids of the target.

        Raises:
            ValueError: for a row outside [0, k).
        """
        if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= len(self)):
            raise ValueError(
                f"rows of this head lie in [0, {len(self)}), got values from {int(rows.min())} to "
                f"{int(rows.max())}"
            )
        return self.ids.to(rows.device)[rows]

    def save(self, folder: str | Path) -> None:
        """Write `vocabulary.json` (facts) and `vocabulary.safetensors` (ids, ranks) into `folder`.

        Each file is written beside its place and moved there, the JSON last, so that an interrupted
        save leaves what was there before or nothing that loads.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"ids": self.ids.contiguous()}
        if self.ranks is not None:
            tensors["ranks"] = self.ranks.contiguous()
        facts = {
            "vocab_size": self.vocab_size,
            "size": len(self),
            "fingerprint": self.fingerprint,
            "tokenizer_hash": self.tokenizer_hash,
            "provenance": dict(self.provenance),
        }
        text = json.dumps(facts, indent=2, allow_nan=False) + "\n"
        write_atomically(folder / VOCABULARY_TENSORS, save(tensors))
        write_atomically(folder / VOCABULARY_JSON, text.encode())

    @classmethod
    def load(cls, folder: str | Path) -> DraftVocabulary:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: if one of the two files is missing.
            ValueError: if they do not fit each other or hold no valid vocabulary.
        """
        folder = Path(folder)
        for name in (VOCABULARY_JSON, VOCABULARY_TENSORS):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"{folder} holds no vocabulary: {name} is missing; "
                    "write one with DraftVocabulary.save or `vtrim search`"
                )
        try:
            facts = json.loads((folder / VOCABULARY_JSON).read_text("utf-8"))
            tensors = load_file(folder / VOCABULARY_TENSORS)
            ids, ranks = tensors["ids"], tensors.get("ranks")
            vocab_size, fingerprint = int(facts["vocab_size"]), facts["fingerprint"]
            tokenizer_hash, provenance = facts["tokenizer_hash"], facts.get("provenance") or {}
        except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:
            raise ValueError(f"the vocabulary in {folder} cannot be read: {error}") from error
        except (KeyError, TypeError) as error:
            raise ValueError(f"the vocabulary in {folder} lacks the field {error}") from error
        vocabulary = cls(ids, vocab_size, tokenizer_hash, ranks, provenance)
        if vocabulary.fingerprint != fingerprint:
            raise ValueError(
                f"the ids in {folder / VOCABULARY_TENSORS} have the fingerprint "
                f"{vocabulary.fingerprint[:12]}, but {VOCABULARY_JSON} names {str(fingerprint)[:12]}: "
                "the two files are of different vocabularies; save it again"
            )
        return vocabulary


def kept_ids_fingerprint(ids: torch.Tensor, vocab_size: int, tokenizer_hash: str | None) -> str:
    """Return the sha256 (hex) of a kept-id table, the width it belongs to and the tokenizer."""
    digest = hashlib.sha256(f"{vocab_size}\n{tokenizer_hash or ''}\n".encode())
    digest.update(ids.cpu().numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def rows_of(ids: torch.Tensor, kept_ids: torch.Tensor) -> torch.Tensor:
    """Find each id's row in an ascending table of kept ids; -1 where it is not kept."""
    rows = torch.searchsorted(kept_ids, ids.contiguous()).clamp_(max=kept_ids.numel() - 1)
    return torch.where(kept_ids[rows] == ids, rows, -1)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the whole new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
