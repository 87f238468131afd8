"""What comes after a training's last step: the draft as it is saved, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .named_models import NamedModel

if TYPE_CHECKING:
    from .search_result import SearchResult
    from .token_counts import TokenCounts


def checked_search(folder: Path | None, fingerprint: str) -> SearchResult | None:
    """Return the search that a vocabulary came out of, before anything is trained.

    Args:
        folder: that the vocabulary came from; None for none.
        fingerprint: of the vocabulary.

    Raises:
        ValueError: if `search.json` in the folder is none, or of another vocabulary.
    """
    from .search_result import SEARCH_JSON, SearchResult

    if folder is None or not (folder / SEARCH_JSON).is_file():
        return None
    search = SearchResult.load(folder / SEARCH_JSON)
    if search.vocabulary.fingerprint != fingerprint:
        raise ValueError(
            f"{folder / SEARCH_JSON} is of the vocabulary {search.vocabulary.fingerprint[:12]}, "
            f"the one in {folder} is {fingerprint[:12]}: search again, or remove the file"
        )
    return search


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
    search: SearchResult | None,
    datasets: Sequence[str],
    counts: TokenCounts | None,
) -> None:
    """Let what is known of the search go with the draft, or of one that was trained on.

    Args:
        draft: the trained draft.
        target: the model that will verify.
        search: that its vocabulary came out of.
        datasets: Hub ids of the data.
        counts: what was searched.
    """
    from .coverage_metadata import make_metadata

    common: dict[str, Any] = {"datasets": datasets, "recorded": draft.coverage_metadata}
    if search is not None:
        draft.coverage_metadata = make_metadata(
            draft,
            search=search,
            counts=counts,
            target_id=target.hub_id,
            tokenizer=target.tokenizer,
            **common,
        )
    elif draft.coverage_metadata is not None:
        draft.coverage_metadata = make_metadata(draft, **common)


def save_trained(draft: Any, tokenizer: Any, report: Mapping[str, Any], folder: Path) -> None:
    """Save a trained draft with its report, which names the weights that it is of.

    Args:
        draft: the draft.
        tokenizer: the target's.
        report: what `training_report.json` is to hold.
        folder: where to.
    """
    from .training_facts import TRAINING_JSON, weights_hash
    from .training_report import TrainingReport

    draft.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    saved = TrainingReport(folder / TRAINING_JSON)
    saved.data = {**report, "weights": weights_hash(folder)}
    saved.save()
