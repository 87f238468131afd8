"""Whether a draft can be trained as a recipe wants it, told from configs, before any work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .named_models import NamedModel
from .recipe import TrainChoice
from .recipe_training import training_settings

_FEW = 64  # rows of the head that is made to see whether a draft can be


def check_states(target: NamedModel, layers: Sequence[int] | None) -> None:
    """Raise ValueError unless `layers` are three of the target's hidden states."""
    from .eagle_target import target_facts

    target_facts(target, layers)


def check_trainable(target: NamedModel) -> None:
    """Make a draft for a target without weights.

    Raises:
        ValueError: if an EAGLE-3 draft cannot read this target's states, take its head's rows, or
            be taken back to an earlier token with it.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from .modeling_trimmed_draft import TrimmedDraftForCausalLM
    from .training_features import TargetReader
    from .vocabulary import DraftVocabulary

    width = target.vocab_size
    few = DraftVocabulary.from_ids(range(min(_FEW, width)), vocab_size=width)
    with torch.device("meta"):
        shape: Any = AutoModelForCausalLM.from_config(target.config)
    head = shape.get_output_embeddings()
    if type(head) is torch.nn.Linear:  # a few rows that are there, for those are copied
        rows = torch.nn.Linear(head.in_features, len(few), head.bias is not None)
        shape.set_output_embeddings(rows)
    draft: Any = TrimmedDraftForCausalLM.for_target(shape, few)
    TargetReader(shape, draft.config.target_layer_ids, torch.bfloat16)


def check_settings(wish: TrainChoice) -> None:
    """Take a recipe's settings for a training that does not begin yet.

    Raises:
        ValueError: or ImportError, if they cannot be trained with here.
    """
    from .training_arguments import DraftTrainingArguments

    settings = {name: v for name, v in training_settings(wish).items() if v is not None}
    DraftTrainingArguments("unused", **settings)
