"""The public names and the calls that scripts outside this repository rely on.

A call may grow: new parameters are keyword-only and have defaults. Anything else is a break.
"""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import vtrim_hf

if TYPE_CHECKING:
    from collections.abc import Callable

PUBLIC = {
    "DecodeReport",
    "DecodingModel",
    "DraftTrainer",
    "DraftTrainingArguments",
    "DraftVocabulary",
    "LatencyModel",
    "SearchResult",
    "TokenCounts",
    "TrimmedDraftConfig",
    "TrimmedDraftForCausalLM",
    "__version__",
    "build_report",
    "calibrate_confidence",
    "check_call",
    "check_pair",
    "find_drafts",
    "measure_decoding",
    "export_draft",
    "publish",
    "required_token_ids",
    "search_vocabulary",
}


def _search_vocabulary(
    counts: Any,
    latency: Any,
    *,
    required: Any = (),
    alpha: float = 0.5,
    min_coverage: float = 0.0,
    k_min: int = 50,
    k_max: int | None = None,
    method: str | None = None,
    objective: str = "utility",
    decoding: Any = None,
    trials: int = 100,
    seed: int = 42,
    storage: Any = None,
) -> None: ...


CALLS: dict[str, Callable[..., Any]] = {
    "build_report": lambda run_dir, output=None: ...,
    "check_pair": lambda target, draft, *, tokenizer=None, draft_tokenizer=None: ...,
    "required_token_ids": lambda tokenizer, generation_config=None, *, extra=(): ...,
    "search_vocabulary": _search_vocabulary,
    "measure_decoding": lambda target, draft, prompts, *, compare=None, max_new_tokens=128: ...,
    "publish": lambda draft, repo_id, *, tokenizer=None, search=None, report=None, license=None: (
        ...
    ),
    "find_drafts": lambda target=None, domain=None, *, author=None, k_max=None, license=None: ...,
    "TrimmedDraftForCausalLM.from_hub_for": lambda target_id, domain=None: ...,
    "TokenCounts.from_dataset": lambda dataset, tokenizer, *, vocab_size=None, heldout=0.2: ...,
    "TokenCounts.from_counts": lambda array: ...,
    "TokenCounts.array": lambda self, part="search", domain=None: ...,
    "TokenCounts.coverage": lambda self, vocabulary, part="search", domain=None: ...,
    "TokenCounts.merge": lambda *counts, weights=None: ...,
    "TokenCounts.save": lambda self, path: ...,
    "TokenCounts.load": lambda path: ...,
    "LatencyModel.eagle3": lambda target_config: ...,
    "LatencyModel.standalone": lambda draft_config: ...,
    "LatencyModel.cost": lambda self, k: ...,
    "LatencyModel.reduction": lambda self, k: ...,
    "SearchResult.save": lambda self, path: ...,
    "SearchResult.load": lambda path: ...,
    "SearchResult.plot": lambda self, path: ...,
    "DraftVocabulary.from_ids": lambda ids, *, vocab_size, tokenizer=None: ...,
    "DraftVocabulary.to_draft": lambda self, ids: ...,
    "DraftVocabulary.to_target": lambda self, rows: ...,
    "DraftVocabulary.save": lambda self, folder: ...,
    "DraftVocabulary.load": lambda folder: ...,
    "TrimmedDraftForCausalLM.from_draft_model": lambda model_or_name, vocabulary: ...,
    "TrimmedDraftForCausalLM.for_target": lambda target, vocabulary, layers=None: ...,
    "TrimmedDraftForCausalLM.retrim": lambda self, vocabulary: ...,
    "TrimmedDraftForCausalLM.extend": lambda self, vocabulary, target: ...,
    "calibrate_confidence": lambda target, draft, prompts: ...,
    "export_draft": lambda draft, format, folder: ...,
    "DecodeReport.to_json": lambda self: ...,
    "DecodeReport.table": lambda self: ...,
    "DecodeReport.plot": lambda self, path: ...,
}

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "DraftVocabulary": ("ids", "vocab_size", "tokenizer_hash", "fingerprint", "provenance"),
    "TokenCounts": ("vocab_size", "tokenizer_hash", "template_hash", "fingerprint", "domains"),
    "LatencyModel": ("measured", "vocab_size", "unit"),
    "SearchResult": (
        "k",
        "vocabulary",
        "utility",
        "coverage",
        "coverage_interval",
        "heldout_coverage",
        "per_domain",
        "reduction",
        "front",
        "gap_to_exact",
        "study",
    ),
    "TrimmedDraftForCausalLM": (
        "from_pretrained",
        "from_hub_for",
        "save_pretrained",
        "push_to_hub",
        "coverage_metadata",
        "vocabulary",
    ),
    "DecodeReport": ("speedup", "acceptance_length", "acceptance_rate", "identical", "rows"),
}


def find(path: str) -> Any:
    found: Any = vtrim_hf
    for name in path.split("."):
        found = getattr(found, name)
    return found


def check_growth_only(fixed: inspect.Signature, real: inspect.Signature) -> None:
    """Fail unless every call that fits `fixed` fits `real` and means the same."""
    have = dict(real.parameters)
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [name for name, parameter in have.items() if parameter.kind in by_position]
    for place, (name, wanted) in enumerate(fixed.parameters.items()):
        got = have.pop(name, None)
        assert got is not None, f"{name} is gone, got {real}"
        assert got.default == wanted.default, f"default of {name}, got {real}"
        if wanted.kind in by_position:
            assert places[place : place + 1] == [name], f"place of {name}, got {real}"
        elif wanted.kind == inspect.Parameter.VAR_POSITIONAL:
            assert got.kind == wanted.kind, f"kind of {name}, got {real}"
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for name, parameter in have.items():
        if parameter.kind not in variadic:
            assert parameter.kind == inspect.Parameter.KEYWORD_ONLY, f"{name} must follow the *"
            assert parameter.default is not inspect.Parameter.empty, f"{name} needs a default"


def test_names() -> None:
    assert set(vtrim_hf.__all__) == PUBLIC
    assert len(vtrim_hf.__all__) == len(PUBLIC)


def test_version_is_the_distribution_s() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    assert vtrim_hf.__version__ == project["project"]["version"]


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_every_name_is_documented(name: str) -> None:
    assert (inspect.getdoc(find(name)) or "").strip()


@pytest.mark.parametrize("path", sorted(CALLS))
def test_call(path: str) -> None:
    check_growth_only(inspect.signature(CALLS[path]), inspect.signature(find(path)))


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in ATTRIBUTES.items() for name in names]
)
def test_attribute(owner: str, name: str) -> None:
    cls = find(owner)
    assert hasattr(cls, name) or name in getattr(cls, "__dataclass_fields__", {})


@pytest.mark.parametrize(
    "changed",
    [
        lambda a, *, c=1: ...,
        lambda a, b=3, *, c=1: ...,
        lambda b=2, a=None, *, c=1: ...,
        lambda a, b=2, d=4, *, c=1: ...,
        lambda a, b=2, *, c=1, d: ...,
        lambda a, *, b=2, c=1: ...,
    ],
    ids=["gone", "default", "order", "positional", "required", "keyword-only"],
)
def test_a_break_is_seen(changed: Callable[..., Any]) -> None:
    fixed = inspect.signature(lambda a, b=2, *, c=1: ...)
    check_growth_only(fixed, inspect.signature(lambda a, b=2, *, c=1, d=4: ...))
    with pytest.raises(AssertionError):
        check_growth_only(fixed, inspect.signature(changed))
