"""A draft of a search, with counts, search result and decode report, for tests of publishing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from search_samples import step
from tiny_models import make_byte_tokenizer, make_tiny, perturbed
from vtrim_hf import (
    DecodeReport,
    SearchResult,
    TokenCounts,
    TrimmedDraftForCausalLM,
    search_vocabulary,
)

TEXTS = {"sql": "SELECT name FROM singers WHERE age = {}", "chat": "The fox | sleeps `{}` times."}


@dataclass(frozen=True)
class Pair:
    """A target, a trimmed draft, and all that is known of them."""

    target: Any
    tokenizer: Any
    draft: TrimmedDraftForCausalLM
    counts: TokenCounts
    search: SearchResult
    report: DecodeReport


@cache
def _counts() -> TokenCounts:
    tokenizer = make_byte_tokenizer()
    parts = []
    for domain, text in TEXTS.items():
        rows = [
            {
                "messages": [
                    {"role": "user", "content": f"Question {index}?"},
                    {"role": "assistant", "content": text.format(index)},
                ]
            }
            for index in range(30)
        ]
        parts.append(TokenCounts.from_dataset(rows, tokenizer, domain=domain, progress=False))
    return TokenCounts.merge(*parts)


@cache
def _search() -> SearchResult:
    return search_vocabulary(
        _counts(), step(300, body=10.0), required=[0, 1, 2], k_min=5, k_max=24, progress=False
    )


def make_report(k: int, vocab_size: int = 300) -> DecodeReport:
    """A report of two prompts as `measure_decoding` would give it."""

    def cell(tokens: int, seconds: float, *, drafting: bool) -> dict[str, Any]:
        parts = ("draft_body", "draft_head", "draft_other", "prefill", "verification", "rest")
        return {
            "tokens": tokens,
            "seconds": seconds,
            "target_forwards": tokens // 2 if drafting else tokens,
            "verified_drafts": 4 if drafting else 0,
            "drafted": [4, 4, 3] if drafting else [],
            "accepted": [3, 2, 1] if drafting else [],
            "step_seconds": 0.01,
            "step_tokens": 10 if drafting else 0,
            "parts": dict.fromkeys(parts, seconds / len(parts)),
            "identical": drafting or None,
            "difference": None,
            "missing": [[40, 3, "|x"], [41, 1, "\\n`"]] if drafting else [],
            "drafted_outside": 0,
        }

    rows = [
        {
            "prompt": index,
            "plain_tokens": 12,
            "digest": str(index),
            "entries": {
                "plain float32": cell(12, 1.0, drafting=False),
                "draft": cell(12, 0.5 + index / 10, drafting=True),
                "full": cell(12, 0.8, drafting=True),
            },
        }
        for index in range(2)
    ]
    model = {"class": "Tiny", "name": "/home/me/tiny", "dtype": "float32", "parameters": 1}
    drafting = {"num_assistant_tokens": 4, "assistant_confidence_threshold": 0.4}
    facts = {
        "plain float32": {"kind": "plain", **model, "vocab_size": vocab_size},
        "draft": {"kind": "assistant", **model, **drafting, "draft_vocab_size": k},
        "full": {"kind": "assistant", **model, **drafting, "draft_vocab_size": vocab_size},
    }
    settings = {
        "max_new_tokens": 12,
        "do_sample": False,
        "generate_kwargs": {"prefix": "/home/me/secret"},
        "plain_dtypes": ["float32"],
        "identity_dtype": "float32",
        "seed": 0,
    }
    machine = {
        "cpu": "Test CPU",
        "cores": 2,
        "threads": 1,
        "gpu": None,
        "device": "cpu",
        "versions": {"torch": "2.13.0", "vtrim-hf": None},
    }
    return DecodeReport.from_rows(rows, facts, settings=settings, machine=machine)


def make_pair(seed: int = 0) -> Pair:
    """Return a new pair; its counts and search result are shared, so leave them as they are."""
    search = _search()
    target = make_tiny("llama")
    draft = TrimmedDraftForCausalLM.from_draft_model(
        perturbed(target, 0.02, seed=seed), search.vocabulary
    )
    return Pair(target, make_byte_tokenizer(), draft, _counts(), search, make_report(search.k))
