"""The `measure` step of a recipe: its prompts, none of which the draft was trained on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .measuring_step import (
    REPORT_JSON,
    ExtendedDraft,
    FullDraft,
    Loadable,
    measure_draft,
    prompt_keys,
    read_prompts,
)
from .named_models import NamedModel
from .recipe import Domain, DraftChoice, Recipe
from .recipe_plan import Piece
from .run_folder import RunFolder

if TYPE_CHECKING:
    from .recipe_work import Workshop


def measure(shop: Workshop, piece: Piece) -> tuple[list[Path], dict[str, Any]]:
    """Measure a draft.

    Returns:
        The report's file, and facts to record.
    """
    recipe, run = shop.recipe, shop.folder
    wish = recipe.measure
    if wish is None:
        raise ValueError("this recipe measures nothing")
    prompts: list[Any] = []
    ranges: dict[str, list[int]] = {}
    found = read_measured(
        recipe, run, shop.target.tokenizer, piece.scope, limit=wish.prompts, say=shop.say
    )
    for name, of_one in found.items():
        if len(of_one) < wish.prompts:
            shop.say(f"{name} has only {len(of_one)} prompts of {wish.prompts}")
        ranges[name] = [len(prompts), len(prompts) + len(of_one)]
        prompts += of_one
    place = run.place(piece)
    report = measure_draft(
        shop.target,
        NamedModel(str(run.folder_of(recipe.making, piece.scope)), is_folder=True),
        prompts,
        compare={"full": _full(shop, piece.scope)} if wish.compare_full else {},
        max_new_tokens=wish.max_new_tokens,
        draft_length=wish.draft_length,
        dtype=wish.dtype,
        plain_dtypes=wish.plain_dtypes,
        output=place,
        progress=shop.progress,
        on_resumed=lambda done: shop.say(f"{done} prompts were measured before"),
    )
    shop.plot(report, place / "decode_report.png")
    # Of calls that were given up: nobody else is at work here, for the folder is locked.
    for stale in place.glob("*.rows.jsonl"):
        stale.unlink()
    return [place / REPORT_JSON], {"prompts": ranges}


def read_measured(
    recipe: Recipe,
    run: RunFolder,
    tokenizer: Any,
    scope: str | None,
    *,
    limit: int,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, list[Any]]:
    """Read the prompts that a draft is measured on, by domain.

    A prompt that a draft was trained on, or that chose its checkpoint, is passed over.

    Args:
        recipe: the recipe.
        run: its folder.
        tokenizer: the target's.
        scope: of the draft.
        limit: prompts of a domain at most.
        say: takes remarks.

    Raises:
        RecipeError: if a domain has none that can be measured.
    """
    domains = recipe.domains_of(scope)
    seen: frozenset[str] = frozenset()
    if recipe.train is not None:
        files = [file(one.name) for one in domains for file in _trained_on(run)]
        seen = prompt_keys(files, tokenizer)
    found = {}
    for domain in domains:
        data: Any = domain.test
        if data is None:  # counted, perhaps, when nothing was to be measured yet
            data = run.heldout_file(domain.name)
            check_prompts(recipe, domain, data, tokenizer)

        def left_out(number: int, name: str = domain.name) -> None:
            say(f"{name}: {number} prompts are passed over, for the draft is trained on them")

        try:
            found[domain.name] = read_prompts(
                data,
                tokenizer,
                limit,
                split=domain.test_split,
                without=seen,
                on_left_out=left_out,
            )
        except ValueError as error:
            place = "train" if domain.test is None else "test"
            raise recipe.mistake(
                f"domains.{domain.name}.{place}", f"domains.{domain.name}.{place}: {error}"
            ) from error
    return found


def check_prompts(recipe: Recipe, domain: Domain, heldout: Path, tokenizer: Any) -> None:
    """Say now, and not after hours of other work, that there is nothing to measure.

    Raises:
        RecipeError: if there is nothing.
    """
    try:
        read_prompts(heldout, tokenizer, 1)
    except ValueError as error:
        raise recipe.mistake(
            f"domains.{domain.name}",
            f"none of the held-out conversations of {domain.name!r} is a prompt to measure it "
            "on: give test, more data or a greater heldout, or measure: false",
        ) from error


def _trained_on(run: RunFolder) -> tuple[Callable[[str], Path], ...]:
    return run.training_file, run.evaluation_file


def _full(shop: Workshop, scope: str | None) -> Loadable:
    """Return the same draft with all of the target's ids, to compare with."""
    cut = shop.recipe.draft
    if isinstance(cut, DraftChoice) and shop.draft is not None:
        return FullDraft(
            shop.draft,
            shop.target,
            layers=cut.layers,
            dtype=cut.dtype,
            draft_length=cut.draft_length,
        )
    trained = str(shop.folder.folder_of(shop.recipe.making, scope))
    return ExtendedDraft(NamedModel(trained, is_folder=True), shop.target)
