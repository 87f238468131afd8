"""Draft models with the vocabulary that a domain really uses, for Hugging Face Transformers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .calibrating import calibrate_confidence
from .compatibility import check_call, check_pair
from .configuration_trimmed_draft import TrimmedDraftConfig
from .decode_report import DecodeReport
from .decoding_model import DecodingModel
from .exporting import export_draft
from .hub import publish
from .latency import LatencyModel
from .measuring import measure_decoding
from .modeling_trimmed_draft import TrimmedDraftForCausalLM
from .required_tokens import required_token_ids
from .search import search_vocabulary
from .search_result import SearchResult
from .token_counts import TokenCounts
from .vocabulary import DraftVocabulary

if TYPE_CHECKING:
    from .catalogue import find_drafts
    from .report_page import build_report
    from .training import DraftTrainer
    from .training_arguments import DraftTrainingArguments

__version__ = "0.1.0"

__all__ = [
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
    "export_draft",
    "find_drafts",
    "measure_decoding",
    "publish",
    "required_token_ids",
    "search_vocabulary",
]

# Transformers' trainer brings accelerate and datasets along: loaded when first asked for.
_LATER = {
    "DraftTrainer": "training",
    "DraftTrainingArguments": "training_arguments",
    "build_report": "report_page",
    "find_drafts": "catalogue",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        globals()[name] = getattr(import_module(f".{_LATER[name]}", __name__), name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
