"""`vtrim report`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_shared import AsJson, Debug, Quiet, answers_mistakes, check_output, out, remarks


@answers_mistakes
def report(
    run_dir: Annotated[
        Path,
        typer.Argument(
            help="A run's folder, or one that `search`, `train` or `measure` wrote.",
            metavar="RUN_DIR",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; report.html in RUN_DIR if not given."),
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the page in the web browser.")
    ] = False,
    json_: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Build one HTML page of tables and plots that opens without a network.

    Whatever lies in the folder is shown: runs, searches, trainings, measurements, figures of
    benchmarks. What is missing or broken is named in its place.

    Example: `vtrim report runs/sql --open`

    A folder of a measurement: `vtrim measure smollm2 draft test.jsonl -o speed && vtrim report
    speed -o speed.html`
    """
    from .report_page import PAGE, make_page, write_page

    check_output(output, folder=False)
    place = run_dir / PAGE if output is None else output
    check_output(place, folder=False)
    page = make_page(run_dir, place)
    write_page(page, place)
    if not quiet:
        for problem in page.problems:
            remarks.print(problem, style="yellow", markup=False, soft_wrap=True)
    facts: dict[str, Any] = {
        "output": str(place),
        "sections": [section.title for section in page.sections],
        "problems": list(page.problems),
    }
    if json_:
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    else:
        told = len(page.sections)
        said = f"wrote {place}: {told} section{'' if told == 1 else 's'}"
        out.print(said, markup=False, soft_wrap=True)
    if open_:
        import webbrowser

        if not webbrowser.open(place.resolve().as_uri()):
            remarks.print(f"no browser could be started: open {place}", markup=False)
