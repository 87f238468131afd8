"""Counts on disk: one safetensors file, and the cache that keeps the same inputs from being
counted twice.

The file's metadata is JSON. Nothing of a file is believed: every tensor's type, shape, order and
range is checked, and so is the fingerprint over all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .batch_counting import CountRules
from .counted_blocks import DomainCounts
from .vocabulary import tokenizer_fingerprint, write_atomically

FORMAT = 1
COUNTING = 1
"""Part of every cache key: raise it when the same rows would be counted differently."""

METADATA_KEY = "vtrim_counts"
_MAX_WIDTH, _MAX_BLOCKS = 1 << 26, 1 << 12
_TENSORS = ("keys", "counts", "conversations")


def write_counts(
    path: Path, domains: Mapping[str, DomainCounts], facts: Mapping[str, Any]
) -> None:
    """Write counts and what is known about them, atomically.

    Args:
        path: the file; its folder is made if need be.
        domains: counts by domain.
        facts: JSON-able; must hold "fingerprint".
    """
    tensors = {
        f"{number}.{name}": np.ascontiguousarray(getattr(counts, name), dtype=np.int64)
        for number, counts in enumerate(domains.values())
        for name in _TENSORS
    }
    header = {
        **facts,
        "format": FORMAT,
        "domains": [
            {"name": name, "blocks": counts.blocks, "hashed": counts.hashed}
            for name, counts in domains.items()
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(header, ensure_ascii=False, allow_nan=False)
    write_atomically(path, save(tensors, {METADATA_KEY: text}))


def read_counts(path: Path) -> tuple[dict[str, DomainCounts], dict[str, Any]]:
    """Read what `write_counts` wrote.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no file of counts, or anything in it is not as it must be; the text
            names it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file of counts at {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            header = _header(path, file.metadata())
            tensors = _tensors(path, file, len(header["domains"]))
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file of counts: {error}") from error
    width = header["vocab_size"]
    domains = {
        facts["name"]: _domain(path, tensors, number, facts, width)
        for number, facts in enumerate(header["domains"])
    }
    return domains, header


def _header(path: Path, metadata: Mapping[str, str] | None) -> dict[str, Any]:
    text = (metadata or {}).get(METADATA_KEY)
    if text is None:
        raise ValueError(f"{path} is no file of counts: its metadata lacks {METADATA_KEY!r}")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: the metadata {METADATA_KEY!r} is no JSON: {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else type(header).__name__
        raise ValueError(f"{path}: format must be {FORMAT}, got {found!r}; count again")
    _check_whole(path, header, "vocab_size", _MAX_WIDTH)
    wanted: dict[str, tuple[type, ...]] = {
        "fingerprint": (str,),
        "tokenizer_hash": (str, type(None)),
        "template_hash": (str, type(None)),
        "settings": (dict,),
        "weights": (dict,),
        "skipped": (list,),
        "skipped_number": (int,),
        "domains": (list,),
    }
    for key, types in wanted.items():
        if not isinstance(header.get(key, ...), types):
            raise ValueError(f"{path}: {key!r} is missing or of the wrong type")
    _check_settings(path, header["settings"])
    names = []
    for number, facts in enumerate(header["domains"]):
        if not isinstance(facts, dict) or not isinstance(facts.get("name"), str):
            raise ValueError(f"{path}: 'domains' entry {number} has no name")
        if not isinstance(facts.get("hashed"), bool):
            raise ValueError(f"{path}: 'domains' entry {number} does not say whether it is hashed")
        _check_whole(path, facts, "blocks", _MAX_BLOCKS)
        names.append(facts["name"])
    if not names or len(set(names)) != len(names):
        raise ValueError(f"{path}: 'domains' must name each domain once, got {names}")
    weights = header["weights"]
    if set(weights) != set(names) or not all(
        type(w) in (int, float) and 0 <= w < float("inf") for w in weights.values()
    ):
        raise ValueError(f"{path}: 'weights' must hold one number for each domain, got {weights}")
    return header


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Prove of each domain what `TokenCounts.shapes` and merging read of it, where it is told."""
    domains = settings.get("domains", {})
    if not isinstance(domains, dict) or not all(isinstance(f, dict) for f in domains.values()):
        raise ValueError(
            f"{path}: 'settings' must hold an object of facts for each of its 'domains', got "
            f"{domains!r:.80}; count again"
        )
    for name, facts in domains.items():
        # Counted data tells all of them, given counts none.
        told = {*_FACTS} if "rows" in facts else {*_FACTS} & facts.keys()
        for fact in sorted(told):
            if not _FACTS[fact](facts.get(fact)):
                raise ValueError(
                    f"{path}: 'settings' of the domain {name!r}: {fact!r} is "
                    f"{facts.get(fact)!r:.80}, which no count wrote; count again"
                )


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _are_counts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{1,64}", value) is not None


_FACTS: Mapping[str, Callable[[object], bool]] = {
    "rows": _is_count,
    "skipped": _is_count,
    "without_assistant": _is_count,
    "shapes": _are_counts,
    "tokens": _are_counts,
    "data_fingerprint": _is_hash,
}


def _check_whole(path: Path, facts: Mapping[str, Any], key: str, most: int) -> None:
    value = facts.get(key)
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{path}: {key!r} must be a whole number from 1 to {most}, got {value!r}")


def _tensors(path: Path, file: Any, domains: int) -> dict[str, np.ndarray]:
    wanted = {f"{number}.{name}" for number in range(domains) for name in _TENSORS}
    found = set(file.keys())
    if found != wanted:
        odd = sorted(found ^ wanted)[0]
        state = "missing" if odd in wanted else "unknown"
        raise ValueError(f"{path}: the tensor {odd!r} is {state}")
    for key in sorted(wanted):
        view = file.get_slice(key)
        if view.get_dtype() != "I64" or len(view.get_shape()) != 1:
            raise ValueError(
                f"{path}: {key!r} must be int64 with one dimension, got {view.get_dtype()} "
                f"{list(view.get_shape())}"
            )
    return {key: file.get_tensor(key) for key in wanted}


def _domain(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    number: int,
    facts: Mapping[str, Any],
    width: int,
) -> DomainCounts:
    keys, counts, conversations = (tensors[f"{number}.{name}"] for name in _TENSORS)
    blocks = facts["blocks"]
    if keys.size and (keys[0] < 0 or keys[-1] >= 2 * blocks * width or (np.diff(keys) <= 0).any()):
        raise ValueError(
            f"{path}: '{number}.keys' must be ascending, unique and lie in [0, "
            f"{2 * blocks * width})"
        )
    if counts.shape != keys.shape or (counts < 1).any():
        raise ValueError(
            f"{path}: '{number}.counts' must hold one positive number for each key, got "
            f"{counts.size} for {keys.size} keys"
        )
    if conversations.size != 2 * blocks or (conversations < 0).any():
        raise ValueError(
            f"{path}: '{number}.conversations' must hold {2 * blocks} numbers from 0 on, got "
            f"{conversations.size}"
        )
    return DomainCounts(width, blocks, keys, counts, conversations, facts["hashed"])


def tokenizer_facts(tokenizer: Any) -> tuple[str, str]:
    """Give (`tokenizer_fingerprint`, a hash of how the tokenizer splits text).

    The second takes in merges, normalizer and pre-tokenizer, but none of the state that a call
    leaves behind, such as truncation: the same tokenizer has the same hash before and after it is
    used.
    """
    digest = hashlib.sha256(type(tokenizer).__name__.encode())
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        for part in (backend.model, backend.normalizer, backend.pre_tokenizer):
            digest.update(b"\0" + (part.__getstate__() if part is not None else b""))
        digest.update(str(backend.encode_special_tokens).encode())
    else:
        digest.update(json.dumps(tokenizer.init_kwargs, sort_keys=True, default=repr).encode())
    added = [
        (index, repr(token)) for index, token in sorted(tokenizer.added_tokens_decoder.items())
    ]
    digest.update(repr((added, tokenizer.eos_token)).encode("utf-8", "surrogatepass"))
    return tokenizer_fingerprint(tokenizer), digest.hexdigest()


def cached_path(
    cache_dir: str | os.PathLike[str] | bool | None,
    identity: str | None,
    rules: CountRules,
    hashes: Sequence[str | None],
) -> Path | None:
    """Name the file that holds the counts of exactly these inputs, or None if they cannot be
    known.

    Args:
        cache_dir: a folder; None for `counts` in the package's cache; False for no cache.
        identity: of the data.
        rules: settings.
        hashes: of tokenizer and template.
    """
    if cache_dir is False or identity is None:
        return None
    if cache_dir is None or cache_dir is True:
        from .embedded_models import cache_folder

        folder = cache_folder() / "counts"
    else:
        folder = Path(cache_dir).expanduser()
    # A strict count that succeeds is the same as a lenient one that skipped rows only if none was.
    key = json.dumps([COUNTING, FORMAT, identity, asdict(rules), list(hashes)], sort_keys=True)
    return (
        folder / f"{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}.safetensors"
    )
