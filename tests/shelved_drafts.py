"""Repositories that look like published drafts, without weights: what finding them reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import CommitOperationAdd, HfApi
from safetensors.torch import save

from vtrim_hf import DraftVocabulary
from vtrim_hf.coverage_metadata import check_metadata
from vtrim_hf.model_card import TAGS
from vtrim_hf.plain_facts import domain_tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TARGET, WIDTH = "team/target", 300


def make_facts(
    *,
    k: int = 100,
    target: str | None = TARGET,
    domains: Mapping[str, float] | None = None,
    overall: float | None = None,
    speedup: float | None = None,
    ids: Sequence[int] | None = None,
    tokenizer_hash: str | None = None,
    width: int = WIDTH,
) -> dict[str, Any]:
    """Return facts of a draft as `vtrim/coverage.json` has them."""
    kept = range(k) if ids is None else ids
    vocabulary = DraftVocabulary(torch.tensor([*kept]), width, tokenizer_hash)
    facts: dict[str, Any] = {
        "format_version": 1,
        "target": {"vocab_size": width},
        "draft": {
            "body": "standalone",
            "k": len(vocabulary),
            "share_of_vocabulary": len(vocabulary) / width,
            "fingerprint": vocabulary.fingerprint,
            "parameters": 1000,
        },
    }
    if target is not None:
        facts["target"]["id"] = target
    if tokenizer_hash is not None:
        facts["target"]["tokenizer_hash"] = tokenizer_hash
    if domains is not None:
        parts = {
            name: {"heldout": {"share": share, "interval": [share - 0.01, min(1.0, share)]}}
            for name, share in domains.items()
        }
        facts["coverage"] = {"domains": parts}
        if overall is not None:
            facts["coverage"]["heldout"] = {"share": overall}
    if speedup is not None:
        facts["decoding"] = {
            "prompts": 12,
            "speedup": {"median": speedup, "low": speedup - 0.1, "high": speedup + 0.1},
            "acceptance_length": 3.5,
            "plain": {"tokens_per_second": 10.0},
            "machine": {"cpu": "Test CPU", "device": "cpu", "threads": 2},
            "settings": {},
        }
    check_metadata(facts)
    return facts


def shelve(
    repo_id: str,
    facts: Mapping[str, Any] | bytes | None = None,
    *,
    ids: Sequence[int] | None = None,
    license: str = "mit",
    tags: Sequence[str] = (),
    private: bool = False,
    more: Mapping[str, bytes] | None = None,
) -> str:
    """Put a repository of these facts on the Hub; return its commit."""
    api = HfApi()
    api.create_repo(repo_id, private=private, exist_ok=True)
    named: list[str] = []
    if isinstance(facts, dict):
        named = [domain_tag(name) for name in facts.get("coverage", {}).get("domains", {})]
    listed = "".join(f"- {tag}\n" for tag in [*TAGS, *named, *tags])
    files = {"README.md": f"---\nlicense: {license}\ntags:\n{listed}---\n# Draft\n".encode()}
    if facts is not None:
        text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
        files["vtrim/coverage.json"] = text
    if ids is not None:
        table = {"kept_ids": torch.tensor([*ids], dtype=torch.int32)}
        files["vtrim/vocabulary.safetensors"] = save(table)
    files |= more or {}
    made = api.create_commit(
        repo_id,
        [CommitOperationAdd(name, data) for name, data in files.items()],
        commit_message="Shelve",
    )
    return str(made.oid)
