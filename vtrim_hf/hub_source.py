"""The draft that is published, in memory or in a folder, and the tokenizer that lies beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def check_source(draft: Any, tokenizer: Any) -> None:
    """Raise unless a draft and a tokenizer can be published; nothing is loaded.

    Args:
        draft: a `TrimmedDraftForCausalLM`, or a folder that one was saved in.
        tokenizer: a tokenizer, its folder or Hub id, or None.

    Raises:
        TypeError: if it is neither.
        ValueError: if the folder holds no model.
    """
    if isinstance(draft, str | Path):
        if not (Path(draft) / "config.json").is_file():
            several = any(Path(draft).glob("*/config.json")) or (Path(draft) / "domains").is_dir()
            raise ValueError(
                f"a draft is published from a folder that it was saved in, {draft} holds no "
                "config.json: save one with draft.save_pretrained or `vtrim trim`"
                + (
                    "; drafts of several domains are a family: write {domain} in the repository's "
                    "name and use publish_family, or `vtrim publish` with that or --layout"
                    if several
                    else ""
                )
            )
    elif not hasattr(draft, "coverage_metadata") or not hasattr(draft, "check_kept_ids"):
        raise TypeError(
            f"publish takes a TrimmedDraftForCausalLM or its folder, got {type(draft).__name__}: "
            "cut one with TrimmedDraftForCausalLM.from_draft_model"
        )
    if not (
        tokenizer is None
        or isinstance(tokenizer, str | Path)
        or hasattr(tokenizer, "save_pretrained")
    ):
        raise TypeError(
            f"tokenizer must be the target's, or its folder or Hub id, got {tokenizer!r:.80}: "
            "load it with AutoTokenizer.from_pretrained"
        )


def load_source(draft: Any) -> tuple[Any, Path | None]:
    """Return the draft, and the folder that it was loaded from, if it was."""
    if not isinstance(draft, str | Path):
        return draft, None
    from .modeling_trimmed_draft import TrimmedDraftForCausalLM

    return TrimmedDraftForCausalLM.from_pretrained(draft), Path(draft).absolute()


def tokenizer_of(draft: Any, given: Any, source: Path | None) -> Any:
    """Return the tokenizer to publish: the given one, or the folder's if there is one.

    Raises:
        ValueError: if it is not the one that the draft was made with.
    """
    from transformers import AutoTokenizer

    from .vocabulary import tokenizer_fingerprint

    if given is None and source is not None and (source / "tokenizer_config.json").is_file():
        given = source
    tokenizer = given
    if isinstance(given, str | Path):
        tokenizer = AutoTokenizer.from_pretrained(given)
    if tokenizer is None or draft.config.tokenizer_hash is None:
        return tokenizer
    found = tokenizer_fingerprint(tokenizer)
    if found != draft.config.tokenizer_hash:
        raise ValueError(
            f"the draft is of the tokenizer {draft.config.tokenizer_hash[:12]}, the one given is "
            f"{found[:12]}: give the target's own, or save it in the draft's folder"
        )
    return tokenizer
