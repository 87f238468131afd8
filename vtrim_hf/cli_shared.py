"""What the `vtrim` subcommands share: options, answers to mistakes, output."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from .hub_upload import WEIGHTS
from .training_facts import TRAINING_JSON

MODEL_NAME = "a Hub id, a folder, or `smollm2` (embedded)"

out = Console(highlight=False)
remarks = Console(stderr=True, highlight=False)

Target = Annotated[str, typer.Option(help=f"The target: {MODEL_NAME}.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; remarks stay.")]

_OF_AN_EARLIER_SAVE = (
    *WEIGHTS,
    "vocabulary-*",
    "vtrim/coverage.json",
    TRAINING_JSON,
    # Of its tokenizer: files that not every one has.
    "chat_template.jinja",
    "additional_chat_templates/*",
    "added_tokens.json",
    "special_tokens_map.json",
)


class Dtype(StrEnum):
    """Number format of the weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def answers_mistakes(command: Callable[..., None]) -> Callable[..., None]:
    """Turn a user's mistake into one sentence and exit code 2, and Ctrl-C into 130."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            remarks.print("interrupted; nothing half-written was left behind", style="yellow")
            raise typer.Exit(130) from None
        except (ValueError, TypeError, OSError, ImportError) as error:
            if kwargs.get("debug"):
                traceback.print_exc()
            remarks.print(f"vtrim: {error}", style="red", markup=False, soft_wrap=True)
            raise typer.Exit(2) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            # A fault of ours must not look like a goal that was missed (exit code 1).
            if kwargs.get("debug"):
                traceback.print_exc()
            text = f"vtrim: unexpected {type(error).__name__}: {error} (--debug shows where)"
            remarks.print(text, style="red", markup=False, soft_wrap=True)
            raise typer.Exit(3) from None

    return run


def name_and_value(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ValueError(f"{option} takes {form}, got {text!r}")
    return name, value


def check_output(path: Path | None, *, folder: bool) -> None:
    """Refuse a place that cannot be written to, before any work is done.

    Raises:
        ValueError: if there is a folder where a file is to go, or the other way round.
    """
    if path is not None and path.exists() and path.is_dir() != folder:
        wanted, found = ("folder", "file") if folder else ("file", "folder")
        raise ValueError(f"--output must name a {wanted}, {path} is a {found}: name another")


@contextmanager
def folder_written_whole(output: Path) -> Iterator[Path]:
    """Give a folder beside `output` to write into; its files take their places when all are there.

    An interrupted command leaves `output` as it was. Weights and facts of an earlier save that the
    new one does not have are removed, for a loader or a publisher would still find them.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as temporary:
        yield Path(temporary)
        output.mkdir(exist_ok=True)
        # The JSON files name the others, so they come last.
        files = [file for file in Path(temporary).rglob("*") if file.is_file()]
        written = {file.relative_to(temporary) for file in files}
        for name in sorted(written, key=lambda name: name.suffix == ".json"):
            (output / name).parent.mkdir(exist_ok=True)
            (Path(temporary) / name).replace(output / name)
        for pattern in _OF_AN_EARLIER_SAVE:
            for file in output.glob(pattern):
                if file.relative_to(output) not in written:
                    file.unlink()


def write_plot(result: Any, path: Path) -> None:
    try:
        result.plot(path)
    except ImportError as error:
        remarks.print(f"no plot: {error}", style="yellow", markup=False)


def show(facts: dict[str, Any], rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(facts, indent=2, allow_nan=False) + "\n")
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(as_text(value) for value in row.values()))
    out.print(table)
    out.print(f"wrote {facts['output']}", markup=False)


def as_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, dict):
        return ", ".join(value)
    if isinstance(value, list):
        return " to ".join(as_text(item) for item in value)
    return str(value)


@contextmanager
def no_bars() -> Iterator[None]:
    """Silence the bars that Transformers shows while it loads and saves weights."""
    from transformers.utils import logging

    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()
