"""What the benchmarks of vocabularies share: arguments, domains, kept counts, their results."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import io
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from vocabulary_targets import Target

from vtrim_hf.embedded_models import cache_folder
from vtrim_hf.vocabulary import write_atomically

GENERAL, ALL = "general", "all domains"
FIGURES, REPORT = "figures.json", "report.md"


def parsed(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, output: str
) -> argparse.Namespace:
    """Add the arguments that the benchmarks share, `output` being the default one; read all."""
    parser.add_argument("--data", type=Path, required=True, help="folder of domains")
    parser.add_argument(
        "--target", action="append", required=True, help="smollm2, llama3, folder or Hub id"
    )
    parser.add_argument("--layer-of", help="model whose config counts; for tokenizers alone")
    parser.add_argument("--domains", nargs="+", help="only these")
    parser.add_argument("--heldout", type=float, default=0.2, help="share of train.jsonl")
    parser.add_argument("--output", type=Path, default=Path(output), help="a folder a target")
    args = parser.parse_args(argv)
    if not 0 < args.heldout < 1:
        parser.error(f"--heldout must lie between 0 and 1, got {args.heldout}")
    slugs = [Target(name).slug for name in args.target if name != "llama3"]
    if len(set(slugs)) < len(slugs):
        parser.error(f"targets must have different names, got {', '.join(args.target)}")
    return args


def command_line(script: str, argv: Sequence[str] | None) -> str:
    """Return what a report says it was made by."""
    words = sys.argv[1:] if argv is None else argv
    return shlex.join(["python", f"examples/{script}", *words])


def targets_of(args: argparse.Namespace) -> Iterator[tuple[Target, Path]]:
    """Give each target and the folder of its results, one after the other."""
    for name in args.target:
        target = Target(name, args.layer_of)
        yield target, args.output / target.slug


def versions() -> dict[str, str]:
    """Return what the figures may depend on."""
    names = ("transformers", "tokenizers", "optuna", "numpy")
    return {name: importlib.metadata.version(name) for name in names}


# --- domains ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Domain:
    """A folder of conversations."""

    name: str
    train: Path
    test: Path | None

    @property
    def identity(self) -> list[str | None]:
        """What tells its content apart."""
        return [None if p is None else identity_of(p) for p in (self.train, self.test)]


def identity_of(path: Path) -> str:
    """Return what tells a file's content apart."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def domains_in(data: Path, only: Sequence[str] | None = None) -> list[Domain]:
    """List the domains of a folder.

    Raises:
        SystemExit: if there is none, or one that was asked for is not there.
    """
    found = [
        Domain(
            train.parent.name,
            train,
            test if (test := train.with_name("test.jsonl")).is_file() else None,
        )
        for train in sorted(data.glob("*/train.jsonl"))
    ]
    names = [domain.name for domain in found]
    if not found:
        raise SystemExit(
            f"{data} holds no DOMAIN/train.jsonl: examples/build_domains.py makes such a folder"
        )
    if unknown := [name for name in only or () if name not in names]:
        raise SystemExit(f"{data} holds the domains {', '.join(names)}, and no {unknown[0]!r}")
    return [domain for domain in found if not only or domain.name in only]


# --- counts that are kept --------------------------------------------------------------------


def kept_arrays(
    kind: str, facts: Sequence[Any], make: Callable[[], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the arrays that were made of the same facts before; else make and keep them."""
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    kept = cache_folder() / "counts" / f"{kind}-{digest}.npz"
    if kept.is_file():
        with np.load(kept) as arrays:
            return dict(arrays)
    made = dict(make())
    stream = io.BytesIO()
    np.savez(stream, **made)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(kept, stream.getvalue())
    return made


def batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Put items together, so many at a time."""
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


# --- results ---------------------------------------------------------------------------------


def name_of(call: Mapping[str, Any]) -> str:
    """Return what tells apart two calls that measure different things."""
    return hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()


def measured_already(output: Path, name: str, say: Callable[[str], None]) -> dict[str, Any] | None:
    """Return the figures of a folder if the same call made them."""
    figures = output / FIGURES
    if not figures.is_file():
        return None
    there: dict[str, Any] = json.loads(figures.read_text("utf-8"))
    if there.get("call") != name:
        return None
    say(f"{figures} is of this call already; delete it to measure anew")
    return there


def write_report(output: Path, report: str) -> None:
    """Write what people read."""
    write_atomically(output / REPORT, report.encode())


def write_figures(output: Path, found: Mapping[str, Any]) -> None:
    """Write the figures: last of all, for they say that all is there."""
    write_atomically(output / FIGURES, (json.dumps(found, indent=1) + "\n").encode())
