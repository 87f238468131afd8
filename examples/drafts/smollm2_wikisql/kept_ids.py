"""Arithmetic of a kept-id table: ranking, mapping, fingerprints, and what makes a table invalid.

A table is an ascending, unique int64 tensor of the target's token ids; its row i is what row i of
a trimmed head stands for. These are plain functions of tensors and arrays: `DraftVocabulary` gives
them a name and a file, the model keeps the table among its weights. This module imports no other.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch

WIDEST = (1 << 31) - 1
"""The largest width that is believed; real ones are a thousandth of it."""

_FINGERPRINTS: WeakKeyDictionary[Any, tuple[int | None, str]] = WeakKeyDictionary()


class HasVocabulary(Protocol):
    """The one thing that is asked of a tokenizer here."""

    def get_vocab(self) -> dict[str, int]: ...


def tokenizer_fingerprint(tokenizer: HasVocabulary) -> str:
    """Return the sha256 (hex) of a tokenizer's token-to-id table, added tokens included.

    Two tokenizers with the same fingerprint give every id the same meaning, which is all that a
    kept-id table depends on. Reading 150,000 tokens takes half a second, so a tokenizer is read
    once as long as its length stays.
    """
    try:
        size, known = _FINGERPRINTS.get(tokenizer, (None, ""))
        if size != len(tokenizer):  # type: ignore[arg-type]
            known = _table_digest(tokenizer)
            _FINGERPRINTS[tokenizer] = (len(tokenizer), known)  # type: ignore[arg-type]
    except TypeError:  # No length, or no place in a weak table.
        return _table_digest(tokenizer)
    return known


def _table_digest(tokenizer: HasVocabulary) -> str:
    digest = hashlib.sha256()
    for token, index in sorted(tokenizer.get_vocab().items(), key=lambda pair: (pair[1], pair[0])):
        data = token.encode("utf-8", "surrogatepass")
        # The length keeps a token that holds a line break from passing for two tokens.
        digest.update(b"%d %d %b\n" % (index, len(data), data))
    return digest.hexdigest()


def kept_ids_fingerprint(ids: torch.Tensor, vocab_size: int, tokenizer_hash: str | None) -> str:
    """Return the sha256 (hex) of a kept-id table, the width it belongs to and the tokenizer."""
    digest = hashlib.sha256(f"{vocab_size}\n{tokenizer_hash or ''}\n".encode())
    digest.update(ids.cpu().numpy().astype("<i8").tobytes())
    return digest.hexdigest()


def rank_ids(counts: np.ndarray, required: Iterable[int] = ()) -> np.ndarray:
    """Order token ids by the claim they have on a place in the vocabulary.

    Required ids come first (ascending), then every counted id by falling count, ties by id, so
    that the order is the same on every machine. Ids that were never counted and are not required
    have no rank: there is no evidence for them.

    Args:
        counts: int64 [V], how often the target said each token.
        required: ids that must stay whatever their count.

    Returns:
        int64 array of at most V ids, the first k of which are the vocabulary of size k.

    Raises:
        ValueError: if `counts` is not one-dimensional, holds anything but whole numbers from 0 up,
            or a required id is no whole number in [0, V).
    """
    if counts.ndim != 1 or counts.dtype.kind not in "iu":
        raise ValueError(
            "counts must be whole numbers, one a token id, shape [V], got "
            f"{counts.dtype} {list(counts.shape)}: pass TokenCounts.array()"
        )
    if counts.size and counts.min() < 0:
        raise ValueError(
            f"counts must not be negative, got {counts.min()} for id {int(counts.argmin())}"
        )
    first = np.unique(whole_ids(required, "required ids").numpy())
    if first.size and (first[0] < 0 or first[-1] >= counts.size):
        wrong = first[(first < 0) | (first >= counts.size)][0]
        raise ValueError(
            f"required ids must lie in [0, {counts.size}), got {wrong}: "
            "count with the target's own tokenizer and width (vocab_size)"
        )
    rest = np.flatnonzero(counts)
    rest = rest[~np.isin(rest, first, assume_unique=True)]
    # Stable sort on the negated counts keeps ascending ids within a tie.
    rest = rest[np.argsort(-counts[rest].astype(np.int64), kind="stable")]
    return np.concatenate([first, rest]).astype(np.int64)


def whole_ids(ids: Iterable[int] | torch.Tensor | np.ndarray, what: str) -> torch.Tensor:
    """Return `ids` as a new int64 tensor [n], refusing whatever would have to be rounded.

    Raises:
        ValueError: for anything but a flat list of whole numbers.
    """
    listed = ids if isinstance(ids, torch.Tensor | np.ndarray) else list(ids)
    try:
        given = torch.as_tensor(listed)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"{what} must be a flat list of whole numbers, but {error}: pass token ids"
        ) from error
    if given.ndim != 1 or not _is_whole(given):
        raise ValueError(
            f"{what} must be a flat list of whole numbers, got {given.dtype} {list(given.shape)}: "
            "pass token ids (of a mask: mask.nonzero().flatten())"
        )
    return given.to("cpu", torch.int64, copy=True)


def whole_number(value: object, what: str) -> int:
    """Return `value` as an int, refusing whatever would have to be rounded.

    Raises:
        ValueError: for anything but a whole number, such as 2.7, "2" or True.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ValueError(f"{what} must be a whole number, got {value!r}: pass an int")
    return number


def refuse_rounding(ids: torch.Tensor, what: str) -> None:
    """Raise unless a tensor of any shape holds whole numbers.

    Raises:
        ValueError: for floats, complex numbers and truth values.
    """
    if not _is_whole(ids):
        raise ValueError(f"{what} must be whole numbers, got {ids.dtype}: pass an int64 tensor")


def _is_whole(given: torch.Tensor) -> bool:
    # What is empty holds nothing to round; torch.tensor([]) is a tensor of floats.
    other = given.is_floating_point() or given.is_complex() or given.dtype == torch.bool
    return not (given.numel() and other)


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


def rows_of(ids: torch.Tensor, kept_ids: torch.Tensor) -> torch.Tensor:
    """Find each id's row in an ascending table of kept ids; -1 where it is not kept."""
    ids = ids.to(torch.int64).contiguous()
    rows = torch.searchsorted(kept_ids, ids).clamp_(max=kept_ids.numel() - 1)
    return torch.where(kept_ids[rows] == ids, rows, -1)
