"""Draft models with the vocabulary that a domain really uses, for Hugging Face Transformers."""

from __future__ import annotations

from .compatibility import check_call, check_pair
from .configuration_trimmed_draft import TrimmedDraftConfig
from .decode_report import DecodeReport
from .hub import publish
from .latency import LatencyModel
from .measuring import measure_decoding
from .modeling_trimmed_draft import TrimmedDraftForCausalLM
from .required_tokens import required_token_ids
from .search import search_vocabulary
from .search_result import SearchResult
from .token_counts import TokenCounts
from .vocabulary import DraftVocabulary

__version__ = "0.1.0"

__all__ = [
    "DecodeReport",
    "DraftVocabulary",
    "LatencyModel",
    "SearchResult",
    "TokenCounts",
    "TrimmedDraftConfig",
    "TrimmedDraftForCausalLM",
    "__version__",
    "check_call",
    "check_pair",
    "measure_decoding",
    "publish",
    "required_token_ids",
    "search_vocabulary",
]
