"""Which vocabulary a training has, and whether target, vocabulary and draft fit each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .named_models import NamedModel

if TYPE_CHECKING:
    from .vocabulary import DraftVocabulary


FULL = "full"
"""Instead of a folder: all of the target's ids, to hold a trimmed draft against."""


def checked_vocabulary(
    target: NamedModel,
    folder: Path | None,
    start: NamedModel | None,
    layers: Sequence[int] | None,
) -> DraftVocabulary | Any:
    """Return the vocabulary of a training, before any model is loaded.

    Args:
        target: the model that will verify.
        folder: that holds a vocabulary, or `FULL` for all ids; not needed with `start`.
        start: a draft to train on.
        layers: which of the target's hidden states are read.

    Raises:
        ValueError: if there is none, or target, vocabulary and draft do not fit each other.
    """
    from .configuration_trimmed_draft import TrimmedDraftConfig
    from .eagle_target import target_facts
    from .vocabulary import DraftVocabulary, tokenizer_fingerprint

    given = None
    if folder is not None and (str(folder) != FULL or folder.exists()):
        given = DraftVocabulary.load(folder)
    elif folder is not None:
        every = range(target.vocab_size)
        given = DraftVocabulary.from_ids(
            every, vocab_size=target.vocab_size, tokenizer=target.tokenizer
        )
    if given is None and start is None:
        raise ValueError(
            "a new draft needs a vocabulary: name the folder that `vtrim search` wrote, or a "
            "draft to train on"
        )
    facts = target_facts(target, layers)  # refuses layers that the target does not have
    made_for, tokenizer_hash = getattr(given, "vocab_size", None), None
    if given is not None:
        tokenizer_hash = given.tokenizer_hash
    if start is not None:
        config = start.config
        if not isinstance(config, TrimmedDraftConfig) or config.body != "eagle3":
            raise ValueError(
                f"{start} is no draft with an EAGLE-3 body, which alone can be trained on here: "
                "name a folder that `vtrim train` wrote"
            )
        if given is not None and given.fingerprint != config.vocabulary_fingerprint:
            raise ValueError(
                f"the draft {start} has the vocabulary {str(config.vocabulary_fingerprint)[:12]} "
                f"of {config.draft_vocab_size} ids, {folder} holds {given.fingerprint[:12]} of "
                f"{len(given)}: training keeps a draft's vocabulary; change it first with "
                "draft.retrim(vocabulary) or draft.extend(vocabulary, target), or leave the "
                "vocabulary out"
            )
        if layers is not None and facts["target_layer_ids"] != config.target_layer_ids:
            raise ValueError(
                f"the draft {start} reads the hidden states {config.target_layer_ids}, got "
                f"layers {list(layers)}: leave them out, or train a new draft"
            )
        made_for, tokenizer_hash = config.vocab_size, config.tokenizer_hash
    if made_for != target.vocab_size:
        raise ValueError(
            f"the vocabulary is for a target of width {made_for}, {target} has "
            f"{target.vocab_size}: count and search again with --target {target}"
        )
    found = tokenizer_fingerprint(target.tokenizer)
    if tokenizer_hash not in (None, found):
        raise ValueError(
            f"the vocabulary is of the tokenizer {str(tokenizer_hash)[:12]}, {target} has "
            f"{found[:12]}: count and search again with --target {target}"
        )
    return given if given is not None else KnownVocabulary(start.config)  # type: ignore[union-attr]


class KnownVocabulary:
    """What is known of the vocabulary of a draft that is not loaded yet."""

    def __init__(self, config: Any) -> None:
        self.fingerprint: str = str(config.vocabulary_fingerprint)
