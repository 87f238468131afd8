"""`vtrim run`: the whole pipeline from one recipe."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from .cli_shared import AsJson, Debug, Quiet, answers_mistakes, no_bars, out, remarks

if TYPE_CHECKING:
    from .recipe_runner import RunReport


class Step(StrEnum):
    """The steps of a recipe, in order; no recipe has both trim and train."""

    COUNT = "count"
    SEARCH = "search"
    TRIM = "trim"
    TRAIN = "train"
    MEASURE = "measure"
    PUBLISH = "publish"


@answers_mistakes
def run(
    recipe: Annotated[Path, typer.Argument(help="A recipe in YAML; see examples/recipes.")],
    run_folder: Annotated[
        Path | None,
        typer.Option(
            "--run-folder", help="Where all goes; runs/NAME, after the recipe, if not given."
        ),
    ] = None,
    until: Annotated[Step | None, typer.Option(help="The last step to run.")] = None,
    force: Annotated[
        list[Step] | None, typer.Option(help="Run a step although nothing changed; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run, and why; write nothing.")
    ] = False,
    json_: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Count, search, trim or train, measure and publish what one recipe says.

    Finished steps are kept as long as nothing that goes into them changes; a killed run goes on.

    Example: `vtrim run examples/recipes/wikisql_smollm2.yaml --run-folder runs/wikisql`
    """
    from .recipe import load_recipe
    from .recipe_runner import run_recipe

    def say(text: str) -> None:
        remarks.print(text, markup=False, soft_wrap=True)

    with no_bars() if quiet else nullcontext():
        report = run_recipe(
            load_recipe(recipe),
            run_folder,
            until=None if until is None else until.value,
            force=[step.value for step in force or ()],
            dry_run=dry_run,
            progress=not quiet,
            say=say,  # what was skipped or is weak is to be known, bars or not
            on_step=None if quiet else say,
        )
    if json_:
        sys.stdout.write(json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n")
    else:
        _show(report)
    if report.goal_met is False:
        remarks.print("goal missed: see the speed-up in report.md", style="red")
        raise typer.Exit(1)


def _show(report: RunReport) -> None:
    steps = Table("", "status", "why", "seconds")
    for piece in report.pieces:
        seconds = "" if piece.seconds is None else f"{piece.seconds:.1f}"
        steps.add_row(piece.piece, piece.status, piece.reason, seconds)
    out.print(steps)
    if report.summary is None:
        return
    drafts = Table("draft", "k", "held out", "step cheaper", "accepted", "over plain", "over full")
    for draft in report.summary["drafts"]:
        drafts.add_row(
            draft["name"],
            _shown(draft.get("k"), ",d"),
            _shown(draft.get("heldout_coverage"), ".2%"),
            _shown(draft.get("reduction"), ".1%"),
            _shown(draft.get("acceptance_length"), ".2f"),
            _shown(draft.get("speedup"), ".2f"),
            _shown(draft.get("over_full"), ".2f"),
        )
    out.print(drafts)
    for draft in report.summary["drafts"]:
        if "published" in draft:
            out.print(f"published {draft['published']['url']}", markup=False, soft_wrap=True)
    out.print(f"wrote {report.folder / 'report.md'}", markup=False, soft_wrap=True)


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
