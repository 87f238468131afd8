"""What comes after a training's last step: the draft as it is saved, and what is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .named_models import NamedModel

if TYPE_CHECKING:
    from .token_counts import TokenCounts

SEARCH_JSON = "search.json"


def ready_to_save(
    trainer: Any,
    target: NamedModel,
    dtype: str,
    draft_length: int | None,
    calibration_prompts: int,
) -> Any:
    """Return the trained draft as it is saved, its confidence calibrated.

    Args:
        trainer: which has trained it.
        target: the model that will verify.
        dtype: of its weights.
        draft_length: tokens drafted a round; None leaves what it has.
        calibration_prompts: held-out prompts to calibrate on at most; 0 for none.
    """
    import torch

    from .training_calibration import calibrate_on_held_out

    draft: Any = trainer.model
    draft = draft.cpu().to(getattr(torch, dtype)).eval()
    if draft_length is not None:
        draft.generation_config.num_assistant_tokens = draft_length
    if draft.config.target_name is None:
        draft.config.target_name = target.hub_id  # an embedded target's, which its folder hides
    if calibration_prompts and trainer.args.should_save:
        with trainer.report.timed("calibration"):
            trainer.report.data["calibration"] = calibrate_on_held_out(
                draft, trainer.target, trainer.eval_dataset, calibration_prompts
            )
    trainer.report.save()
    return draft


def set_metadata(
    draft: Any,
    target: NamedModel,
    vocabulary: Path | None,
    datasets: Sequence[str],
    counts: TokenCounts | None,
) -> None:
    """Let what is known of the search go with the draft, or of one that was trained on.

    Args:
        draft: the trained draft.
        target: the model that will verify.
        vocabulary: the folder that its vocabulary came from, and `search.json` with it.
        datasets: Hub ids of the data.
        counts: what was searched.
    """
    from .coverage_metadata import make_metadata
    from .search_result import SearchResult

    common: dict[str, Any] = {"datasets": datasets, "recorded": draft.coverage_metadata}
    if vocabulary is not None and (vocabulary / SEARCH_JSON).is_file():
        draft.coverage_metadata = make_metadata(
            draft,
            search=SearchResult.load(vocabulary / SEARCH_JSON),
            counts=counts,
            target_id=target.hub_id,
            tokenizer=target.tokenizer,
            **common,
        )
    elif draft.coverage_metadata is not None:
        draft.coverage_metadata = make_metadata(draft, **common)
