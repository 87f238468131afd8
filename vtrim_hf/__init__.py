"""Draft models with the vocabulary that a domain really uses, for Hugging Face Transformers."""

from __future__ import annotations

from .compatibility import check_call, check_pair
from .configuration_trimmed_draft import TrimmedDraftConfig
from .modeling_trimmed_draft import TrimmedDraftForCausalLM
from .vocabulary import DraftVocabulary

__version__ = "0.1.0"

__all__ = [
    "DraftVocabulary",
    "TrimmedDraftConfig",
    "TrimmedDraftForCausalLM",
    "__version__",
    "check_call",
    "check_pair",
]
