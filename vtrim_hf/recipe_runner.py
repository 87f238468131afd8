"""`run_recipe`: count, search, trim or train, measure, publish, each only where inputs changed.

A run that was killed goes on where it was: finished pieces are kept, the target's answers, the
last checkpoint of a training and the measured prompts as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .decode_report import DecodeReport
from .recipe import STEPS, Recipe
from .recipe_plan import Piece, plan
from .recipe_preflight import open_models
from .recipe_publishing import check_publishing
from .recipe_report import run_summary, summary_markdown, versions
from .recipe_work import Workshop
from .run_folder import RunFolder
from .run_lock import RunLock
from .steps import REPORT_JSON

KEPT, DONE, WITHHELD = "kept", "done", "withheld"
WILL_RUN, MAY_RUN = "will run", "may run"


@dataclass(frozen=True)
class PieceOutcome:
    """What became of one piece.

    Attributes:
        piece: its name.
        step: its step.
        status: "kept" or "done"; "withheld" for a draft that missed its goal and is not published;
            in a dry run also "will run" and "may run".
        reason: why it is so.
        seconds: how long it took when it was made.
    """

    piece: str
    step: str
    status: str
    reason: str
    seconds: float | None = None


@dataclass(frozen=True)
class RunReport:
    """What a run did.

    Attributes:
        recipe: name of the recipe.
        folder: the run's folder.
        pieces: what became of each piece, in order.
        summary: what `report.json` holds; None in a dry run.
        goal_met: whether every draft reached `min_speedup`; None without a goal or a measurement.
    """

    recipe: str
    folder: Path
    pieces: tuple[PieceOutcome, ...]
    summary: dict[str, Any] | None = None
    goal_met: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "recipe": self.recipe,
            "folder": str(self.folder),
            "goal_met": self.goal_met,
            "pieces": [asdict(piece) for piece in self.pieces],
            "report": self.summary,
        }


def run_recipe(
    recipe: Recipe,
    folder: str | Path | None = None,
    *,
    until: str | None = None,
    force: Iterable[str] = (),
    dry_run: bool = False,
    progress: bool = True,
    say: Callable[[str], None] | None = None,
    on_step: Callable[[str], None] | None = None,
) -> RunReport:
    """Run a recipe, or what is left of it.

    Args:
        recipe: what `load_recipe` gave.
        folder: where everything goes; `runs/<name of the recipe>` if not given.
        until: the last step to run.
        force: steps to run although nothing changed.
        dry_run: say what would run and why; nothing is written. What would stop the run at once,
            such as a missing login, is raised here, too.
        progress: show bars on a terminal.
        say: takes remarks, one line each: rows that were skipped, domains that are served worse.
        on_step: takes one line for each piece that begins, is done, or is kept, and each time a
            training is evaluated.

    Returns:
        What was done. A goal that was missed is no error: see `goal_met`.

    Raises:
        RecipeError: if something that the recipe names cannot be used; before any work.
        ValueError: for an unknown step, a folder that is no run's or in use, several processes,
            or what a step refuses.

    Example:
        ```python
        report = run_recipe(load_recipe("recipe.yaml"), "runs/sql")
        print(report.goal_met, report.summary["drafts"][0]["speedup"])
        ```
    """
    _check_alone()
    forced = tuple(force)
    for step in (*forced, *([] if until is None else [until])):
        if step not in recipe.steps:
            made = f": its draft is made by {recipe.making}" if step in STEPS else ""
            raise ValueError(
                f"a step of this recipe must be one of {', '.join(recipe.steps)}, got "
                f"{step!r}{made}"
            )
    place = Path("runs") / recipe.name if folder is None else Path(folder)
    RunFolder(place)  # so that a place that cannot be one is refused before it is locked
    with nullcontext() if dry_run else RunLock(place):
        run = RunFolder(place)
        target, draft = open_models(recipe)
        last = len(STEPS) - 1 if until is None else STEPS.index(until)
        pieces = [p for p in plan(recipe, target, draft) if STEPS.index(p.step) <= last]
        foreseen = tuple(_foreseen(recipe, pieces, run, forced))
        wanted = [
            piece.scope
            for piece, outcome in zip(pieces, foreseen, strict=True)
            if piece.step == "publish" and outcome.status in (WILL_RUN, MAY_RUN)
        ]
        check_publishing(recipe, wanted, run.owns)
        if dry_run:
            return RunReport(recipe.name, place, foreseen)
        run.begin()
        run.write_text("recipe.yaml", recipe.text)
        run.write_json("versions.json", versions())
        tell = on_step or (lambda _: None)
        shop = Workshop(recipe, run, target, draft, progress, say or (lambda _: None), tell)
        outcomes = [_made(piece, shop, forced, tell) for piece in pieces]
        goal_met = _goal_met(recipe, run, pieces)
        summary = run_summary(recipe, run, [asdict(outcome) for outcome in outcomes], goal_met)
        run.write_json("report.json", summary)
        run.write_text("report.md", summary_markdown(summary))
        return RunReport(recipe.name, place, tuple(outcomes), summary, goal_met)


def _check_alone() -> None:
    """Raise in one of the processes that torchrun starts: each would run the whole recipe."""
    number = os.environ.get("WORLD_SIZE", "1")
    if number != "1":
        raise ValueError(
            f"a recipe runs in one process, got WORLD_SIZE={number}: run it without torchrun, or "
            "train the draft with `torchrun ... -m vtrim_hf.cli train` and publish that"
        )


def _made(
    piece: Piece, shop: Workshop, forced: tuple[str, ...], tell: Callable[[str], None]
) -> PieceOutcome:
    """Make a piece if it is not there as it must be."""
    run, recipe = shop.folder, shop.recipe
    missed = _withheld(recipe, run, piece)
    if missed is not None:
        shop.say(f"{piece.name}: withheld, for {missed}")
        return PieceOutcome(piece.name, piece.step, WITHHELD, missed)
    products = {name: run.product_hash(name) or "" for name in piece.needs}
    reason = run.reason_to_make(piece, products)
    if piece.step in forced:
        reason = reason or "forced"
    if reason is None:
        tell(f"{piece.name}: kept, nothing that goes into it changed")
        run.tidy_after(piece)
        return PieceOutcome(
            piece.name,
            piece.step,
            KEPT,
            "nothing that goes into it changed",
            run.seconds(piece.name),
        )
    tell(f"{piece.name}: {reason}")
    if piece.step == "publish":  # hours may have gone by, and somebody may have taken the name
        check_publishing(recipe, [piece.scope], run.owns)
    start = time.perf_counter()
    files, facts = shop.make(piece)
    seconds = time.perf_counter() - start
    run.finished(piece, products, files, seconds, facts)
    run.tidy_after(piece)
    tell(f"{piece.name}: done in {seconds:.1f} s")
    return PieceOutcome(piece.name, piece.step, DONE, reason, seconds)


def _foreseen(
    recipe: Recipe, pieces: list[Piece], run: RunFolder, forced: tuple[str, ...]
) -> Iterable[PieceOutcome]:
    """Say what a run would do; after a piece that is made anew, the next may stay as it is."""
    open_ones: set[str] = set()
    for piece in pieces:
        products = {name: run.product_hash(name) or "" for name in piece.needs}
        before = [name for name in piece.needs if name in open_ones]
        missed = None if before else _withheld(recipe, run, piece)
        if missed is not None:
            yield PieceOutcome(piece.name, piece.step, WITHHELD, missed)
            continue
        settled = {name: product for name, product in products.items() if name not in open_ones}
        if before:
            reason, status = run.changed_inputs(piece, settled), WILL_RUN
            if reason is None and piece.step not in forced:
                status = MAY_RUN
                reason = f"unless {', '.join(before)} comes out as before"
        else:
            reason, status = run.reason_to_make(piece, products), WILL_RUN
        if piece.step in forced:
            reason = reason or "forced"
        if reason is None:
            yield PieceOutcome(
                piece.name,
                piece.step,
                KEPT,
                "nothing that goes into it changed",
                run.seconds(piece.name),
            )
        else:
            open_ones.add(piece.name)
            yield PieceOutcome(piece.name, piece.step, status, reason)


def _withheld(recipe: Recipe, run: RunFolder, piece: Piece) -> str | None:
    """Say why a measured draft is not published, or None."""
    wish = recipe.publish
    if piece.step != "publish" or wish is None or wish.despite_missed_goal:
        return None
    return _missed(recipe, run, piece.scope)


def _missed(recipe: Recipe, run: RunFolder, scope: str | None) -> str | None:
    """Say by how much a measured draft missed the goal, or None if it did not."""
    goal = None if recipe.measure is None else recipe.measure.min_speedup
    path = run.folder_of("measure", scope) / REPORT_JSON
    if goal is None or not path.is_file():
        return None
    found = DecodeReport.load(path).speedup
    return None if found >= goal else f"its speed-up is {found:.3f}, the goal is {goal:g}"


def _goal_met(recipe: Recipe, run: RunFolder, pieces: list[Piece]) -> bool | None:
    measured = [piece.scope for piece in pieces if piece.step == "measure"]
    if not measured or recipe.measure is None or recipe.measure.min_speedup is None:
        return None
    return all(_missed(recipe, run, scope) is None for scope in measured)
