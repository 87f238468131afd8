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


def make_training(draft: Any, evaluations: int = 6) -> dict[str, Any]:
    """What a training report of a draft holds, as `DraftTrainer` writes it."""

    def point(step: int, length: float) -> dict[str, Any]:
        return {
            "step": step,
            "epoch": step / 10,
            "tokens": 1_000 * step,
            "seconds": 6.0 * step,
            "loss": 3.0,
            "acceptance_length": length,
            "masked_share": 0.03,
            "acceptance": [0.7, (length - 1.7)],
        }

    points = [point(10 * n, 2 + 0.05 * n) for n in range(1, evaluations + 1)]
    best = points[-2] | {"acceptance_length": 2.5}
    points[-2] = best
    data = {
        "conversations": 1200,
        "sequences": 1201,
        "tokens": 150_000,
        "assistant_tokens": 60_000,
        "longest": 99,
        "skipped_rows": 0,
        "silent_conversations": 0,
        "cut_sequences": 0,
        "fingerprint": "a" * 64,
    }
    return {
        "schema": 1,
        "settings": {
            "unroll_steps": 2,
            "step_decay": 0.8,
            "max_minutes": None,
            "bf16": True,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "num_train_epochs": 10.0,
            "max_steps": -1,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "cosine",
            "seed": 42,
        },
        "fingerprints": {
            "vocabulary": draft.config.vocabulary_fingerprint,
            "target": "b" * 64,
            "layers": "1,2,3",
            "tokenizer": None,
            "train": "a" * 64,
            "evaluation": "c" * 64,
        },
        "data": {"train": data, "evaluation": {**data, "conversations": 60}},
        "datasets": ["me/chats", "/home/me/secret.jsonl", "answers.jsonl"],
        "seconds": {"answers": 0.0, "features": 60.0, "training": 300.0, "evaluation": 30.0},
        "tokens_seen": 60_000,
        "masked_share": 0.01,
        "best": {"step": best["step"], "acceptance_length": best["acceptance_length"]},
        "curve": [point(10 * evaluations, 2.0)],
        "evaluations": points,
        "finished": True,
        "call": "d" * 64,
        "calibration": {
            "prompts": 16,
            "slope": 0.9,
            "offset": 0.1,
            "proposals": 400,
            "accepted": 200,
            "log_loss_before": 0.5,
            "log_loss_after": 0.4,
        },
    }
