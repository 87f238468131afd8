"""The `train` step of a recipe: its settings, its data, and the draft that comes out of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .recipe import EagleChoice, Recipe, TrainChoice, is_place
from .recipe_measuring import read_measured
from .recipe_plan import Piece
from .run_folder import files_in, replaced_folder
from .training_ending import save_trained
from .training_facts import TRAINING_JSON
from .training_step import train_draft
from .training_workplace import tensorboard_folder

if TYPE_CHECKING:
    from .recipe_work import Workshop


def training_settings(wish: TrainChoice) -> dict[str, Any]:
    """Return what a recipe says as arguments of `DraftTrainingArguments`; None for a default."""
    return {
        "max_minutes": wish.minutes,
        "num_train_epochs": wish.epochs,
        "unroll_steps": wish.unroll,
        "unroll_warmup": wish.unroll_warmup,
        "learning_rate": wish.learning_rate,
        "per_device_train_batch_size": wish.batch_size,
        "gradient_accumulation_steps": wish.accumulate,
        "max_length": wish.max_length,
        "bf16": wish.bf16,
        "seed": wish.seed,
        "feature_cache": None if wish.feature_cache == "none" else wish.feature_cache,
        "report_to": "tensorboard" if wish.tensorboard else None,
    }


def train(shop: Workshop, piece: Piece) -> tuple[list[Path], dict[str, Any]]:
    """Train a draft, from the last checkpoint on where a run was interrupted.

    Returns:
        The files of the draft, and facts to record.
    """
    recipe, run = shop.recipe, shop.folder
    draft, wish = recipe.draft, recipe.train
    if wish is None or not isinstance(draft, EagleChoice):
        raise ValueError("this recipe trains nothing: its draft is cut")
    domains = recipe.domains_of(piece.scope)
    if recipe.measure is not None:
        # Now, and not after the training.
        read_measured(recipe, run, shop.target.tokenizer, piece.scope, limit=1)
    workplace = run.workplace(piece.scope)
    if wish.tensorboard:
        shop.say(f"{piece.name}: logs for TensorBoard go to {tensorboard_folder(workplace)}")
    trained = train_draft(
        shop.target,
        [str(run.training_file(domain.name)) for domain in domains],
        workplace,
        vocabulary=run.folder_of("search", piece.scope),
        evaluation=[str(run.evaluation_file(domain.name)) for domain in domains],
        layers=draft.layers,
        mlp_width=draft.mlp_width,
        target_dtype=wish.target_dtype,
        dtype=draft.dtype,
        draft_length=draft.draft_length,
        settings=training_settings(wish),
        datasets=data_on_hub(recipe, piece.scope),
        counts=shop.counts(piece.scope),
        progress=shop.progress,
        on_resumed=lambda step: shop.say(f"{piece.name}: going on from step {step}"),
        on_evaluation=lambda line: shop.tell(f"{piece.name}: {line}"),
    )
    place = run.place(piece)
    with replaced_folder(place) as new:
        save_trained(trained.draft, shop.target.tokenizer, trained.report, new)
    # How long it took is no part of what was made: the same draft need not be measured again.
    files = [path for path in files_in(place) if path.name != TRAINING_JSON]
    return files, training_summary(trained.report)


def data_on_hub(recipe: Recipe, scope: str | None) -> list[str]:
    """Return the Hub ids of the data that a draft is for."""
    domains = recipe.domains_of(scope)
    return [name for domain in domains for name in domain.train if not is_place(name)]


def training_summary(report: dict[str, Any]) -> dict[str, Any]:
    """Return what a run's own report tells of a training, out of the training's."""
    best = report["best"] or {}
    points = [point for point in report["evaluations"] if point["step"] == best.get("step")]
    return {
        "acceptance_length": best.get("acceptance_length"),
        "acceptance": points[-1]["acceptance"] if points else [],
        "best_step": best.get("step"),
        "steps": report["curve"][-1]["step"] if report["curve"] else None,
        "sequences": report["data"]["train"]["sequences"],
        "tokens_seen": report["tokens_seen"],
        "masked_share": report["masked_share"],
        "minutes": {
            part: round(seconds / 60, 2) for part, seconds in report["seconds"].items() if seconds
        },
    }
