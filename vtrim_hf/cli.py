"""The `vtrim` command: one subcommand a step, each a thin layer over the library.

Exit codes: 0 done, 1 a goal that the user set was not reached, 2 misuse, 3 a fault of ours, 130
interrupted. A user's mistake is answered in one sentence; `--debug` shows where it arose. Results
go to standard output, progress and remarks to standard error.
"""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from .cli_catalogue import catalogue, recommend
from .cli_counting import count, search
from .cli_drafting import measure, trim
from .cli_exporting import export
from .cli_hub import hub
from .cli_publishing import publish
from .cli_reporting import report
from .cli_running import run
from .cli_shared import out
from .cli_training import train

app = typer.Typer(
    name="vtrim",
    help="Draft models with the vocabulary that a domain really uses.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for command in (
    run,
    count,
    search,
    trim,
    train,
    measure,
    export,
    publish,
    catalogue,
    recommend,
    report,
):
    app.command()(command)
app.add_typer(hub)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from . import __version__

        out.print(__version__)
        raise typer.Exit(0)


def main() -> None:
    """Run the command; the entry point of the package."""
    # A polite kill cleans up as Ctrl-C does, also in the background, where Ctrl-C is ignored.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()


if __name__ == "__main__":
    main()
