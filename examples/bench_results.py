"""What benchmarks of drafts share besides measuring: their time, their results, what they tell."""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from bench_files import HOLDERS, read_object

import vtrim_hf
from vtrim_hf.vocabulary import write_atomically

FIGURES, REPORT, PICTURE = "figures.json", "report.md", "report.png"
AGAIN = 5.0  # seconds after which the time is said to be up once more

# --- time and words ---------------------------------------------------------------------------


@contextmanager
def ended_after(minutes: float) -> Iterator[None]:
    """End the program after so many minutes, as a kill would: what is measured is kept.

    Where the system has no such timer, as Windows, it runs to its end.

    Raises:
        SystemExit: when the time is up.
    """
    late = f"{minutes:g} minutes are over (--minutes): the same command goes on"

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise SystemExit(late)

    if minutes <= 0:
        raise SystemExit(late)
    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, end)
    # Again and again: an error inside a finaliser is only printed.
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes, AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def command_line(script: str, argv: Sequence[str] | None) -> str:
    """Return what a report says it was made by."""
    words = sys.argv[1:] if argv is None else argv
    return shlex.join(["python", f"examples/{script}", *words])


# --- results ---------------------------------------------------------------------------------


def measured_before(
    output: Path, settings: Mapping[str, Any], form: int | None = None
) -> dict[str, Any]:
    """Return the figures that a folder holds; none if there are none.

    Args:
        output: the folder.
        settings: what all figures in it must have in common.
        form: the "format" that they must have, where what they mean depends on it.

    Raises:
        SystemExit: if they were measured otherwise, or the file is damaged.
    """
    place = output / FIGURES
    if not place.is_file():
        return {}
    there = read_object(place, ("settings", *HOLDERS))
    if form is not None and there.get("format") != form:
        raise SystemExit(
            f"{place} was measured by another version of this script: its format is "
            f"{there.get('format')}, that of this one {form}; move it away, or name another "
            "--output"
        )
    held = there.get("settings", {})
    for name, value in settings.items():
        if held.get(name) != value:
            raise SystemExit(
                f"{place} was measured with {name} {held.get(name)}, now it is {value}: name "
                "another --output, or delete that file"
            )
    return there


def digest_of(call: Mapping[str, Any]) -> str:
    """Return what tells apart two calls that measure different things."""
    return hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()


def file_hash(path: Path) -> str:
    """Return what tells a file's content apart: its sha256 (hex)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_results(output: Path, found: Mapping[str, Any], report: str, figure: Any) -> None:
    """Write report.png, report.md and, last, figures.json."""
    output.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    figure.savefig(stream, dpi=130, format="png", metadata={"Software": None})
    write_atomically(output / PICTURE, stream.getvalue())
    write_atomically(output / REPORT, report.encode())
    write_figures(output, found)


def write_figures(output: Path, found: Mapping[str, Any]) -> None:
    """Write figures.json: last of all, for it says that all is there.

    Raises:
        ValueError: if a figure is no number, which JSON cannot hold.
    """
    figures = json.dumps(found, indent=1, allow_nan=False) + "\n"
    write_atomically(output / FIGURES, figures.encode())


# --- machines --------------------------------------------------------------------------------


def machines_of(machines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return machines with the versions of what ran on them, each once.

    A checkout that is not installed has no version of its own among its packages.
    """
    found = []
    for machine in machines:
        versions = dict(machine["versions"])
        versions["vtrim-hf"] = versions.get("vtrim-hf") or vtrim_hf.__version__
        told = {**machine, "versions": versions}
        if told not in found:
            found.append(told)
    return found


def machine_line(machine: Mapping[str, Any]) -> str:
    """Say where it was measured."""
    versions = ", ".join(f"{name} {v}" for name, v in machine["versions"].items() if v)
    return (
        f"{machine['gpu'] or machine['cpu']}, {machine['threads']} threads of {machine['cores']} "
        f"cores, Python {machine['python']}, {versions}"
    )


def machine_lines(measured: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Say where everything was measured, and what was where if it was not all on one machine.

    Args:
        measured: the machines of each part, as `machines_of` gives them.
    """
    return where_lines({name: [*map(machine_line, found)] for name, found in measured.items()})


def where_lines(told: Mapping[str, Sequence[str]]) -> list[str]:
    """Say once what is the same for all parts, and of which parts it is if it is not.

    Args:
        told: what each part says of where it was measured.
    """
    where: dict[str, list[str]] = {}
    for name, lines in told.items():
        for line in dict.fromkeys(lines):
            where.setdefault(line, []).append(name)
    if len(where) < 2:
        return [*where]
    lines = [f"- {', '.join(names)}: {line}" for line, names in where.items()]
    return ["Not all of it was measured on one machine, with one version of everything:", *lines]


# --- words -----------------------------------------------------------------------------------


def spread(found: Mapping[str, float]) -> str:
    """Write a median with its 95 % interval."""
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def change(found: Mapping[str, float]) -> str:
    """Write a ratio as a change in percent, with its 95 % interval."""
    median, low, high = (100 * (found[name] - 1) for name in ("median", "low", "high"))
    return f"{median:+.1f} % ({low:+.1f} to {high:+.1f})"


def shown(value: float | None, form: str) -> str:
    """Write a number, or nothing where there is none."""
    return "" if value is None else format(value, form).replace("%", " %")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table, line by line; what ends a cell in Markdown does not in these."""
    lines = [[cell.replace("|", "\\|") for cell in cells] for cells in (heads, *rows)]
    lines.insert(1, ["---"] * len(heads))
    return [f"| {' | '.join(cells)} |" for cells in lines]
