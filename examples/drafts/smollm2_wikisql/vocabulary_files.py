"""The two files of a vocabulary, and writing any file in one step.

`vocabulary.json` holds the facts and the hash of the file with the tensors, whose name carries
that hash. The JSON is replaced last, so whenever a save is interrupted the folder still holds the
old vocabulary or already the new one. What the tensors mean is the business of `vocabulary.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

VOCABULARY_JSON = "vocabulary.json"

_KINDS: dict[str, type | tuple[type, ...]] = {
    "vocab_size": int,
    "size": int,
    "fingerprint": str,
    "tokenizer_hash": (str, type(None)),
    "tensors_sha256": str,
    "provenance": dict,
}


def write_vocabulary(
    folder: str | Path, facts: Mapping[str, Any], tensors: dict[str, torch.Tensor]
) -> None:
    """Write a vocabulary's facts and tensors into `folder`, which is made if need be."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    digest = hashlib.sha256(data).hexdigest()
    text = json.dumps({**facts, "tensors_sha256": digest}, indent=2, allow_nan=False) + "\n"
    place = folder / _tensors_name(digest)
    write_atomically(place, data)
    write_atomically(folder / VOCABULARY_JSON, text.encode())
    for old in folder.glob(_tensors_name("?" * 12)):
        if old != place:
            old.unlink(missing_ok=True)


def read_vocabulary(folder: str | Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Read a vocabulary's facts and tensors, proving that both files are of one save.

    Raises:
        FileNotFoundError: if one of the two files is missing.
        ValueError: if one of them is broken, lacks a fact, or was changed after it was saved.
    """
    facts = _read_facts(Path(folder) / VOCABULARY_JSON)
    place = Path(folder) / _tensors_name(facts["tensors_sha256"])
    data = _read_bytes(place)
    if hashlib.sha256(data).hexdigest() != facts["tensors_sha256"]:
        raise ValueError(
            f"{place} was changed or cut short after it was saved: save the vocabulary again"
        )
    try:
        return facts, load(data)
    except SafetensorError as error:
        raise ValueError(f"{place} is no safetensors file: {error}") from error


def _tensors_name(digest: str) -> str:
    return f"vocabulary-{digest[:12]}.safetensors"


def _read_bytes(place: Path) -> bytes:
    if not place.is_file():
        raise FileNotFoundError(
            f"{place.parent} holds no vocabulary: {place.name} is missing; "
            "write one with DraftVocabulary.save or `vtrim search`"
        )
    return place.read_bytes()


def _read_facts(place: Path) -> dict[str, Any]:
    """Read the JSON, proving that each fact is there and of its kind."""
    try:
        found = json.loads(_read_bytes(place))
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or nested without end
        raise ValueError(f"{place} is no JSON: {error}") from error
    facts: dict[str, Any] = found if isinstance(found, dict) else {}
    for name, kind in _KINDS.items():
        value = facts.get(name)
        if name not in facts or not isinstance(value, kind) or isinstance(value, bool):
            got = repr(facts[name]) if name in facts else "missing"
            raise ValueError(
                f"{place} describes no vocabulary: {name} is {got}; save the vocabulary again"
            )
    return facts


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the whole new one, never a part.

    That holds after a power cut, too: the content is on the disk before it gets the name.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Let the names in a folder outlast a power cut, where the system can."""
    with suppress(OSError):  # Windows opens no folders, and some file systems do not sync them
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
