"""What the benchmarks of vocabularies share: arguments, domains, kept counts, their results."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_arguments import data_folder, results_folder
from bench_files import damaged, read_object
from bench_results import FIGURES, REPORT, file_hash
from vocabulary_targets import Target, slug_of

from vtrim_hf.chat_data import open_chat_data
from vtrim_hf.chat_messages import MalformedRow
from vtrim_hf.chat_rows import read_row
from vtrim_hf.embedded_models import cache_folder
from vtrim_hf.vocabulary import write_atomically

GENERAL, ALL, OOD = "general", "all domains", "ood"
WAY_OUT = "put some in, or leave the domain out with --domains"
KEPT_FORMAT = 1  # raise it when what is kept would be counted otherwise


def parsed(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, output: str
) -> argparse.Namespace:
    """Add the arguments that the benchmarks share, `output` being the default one; read all."""
    parser.add_argument("--data", type=data_folder, required=True, help="folder or Hub id")
    parser.add_argument(
        "--target", action="append", help="smollm2 (the default), llama3, folder or Hub id"
    )
    parser.add_argument("--layer-of", help="model whose config counts; for tokenizers alone")
    parser.add_argument("--domains", nargs="+", help="only these")
    parser.add_argument("--heldout", type=float, default=0.2, help="share of train.jsonl")
    parser.add_argument(
        "--output", type=results_folder, default=Path(output), help="a folder a target"
    )
    args = parser.parse_args(argv)
    args.target = args.target or ["smollm2"]
    if not 0 < args.heldout < 1:
        parser.error(f"--heldout must lie between 0 and 1, got {args.heldout}")
    if len({slug_of(name) for name in args.target}) < len(args.target):
        parser.error(f"targets must have different names, got {', '.join(args.target)}")
    return args


def targets_of(args: argparse.Namespace, script: str) -> Iterator[tuple[Target, Path]]:
    """Give each target and the folder of its results, one after the other.

    Raises:
        SystemExit: if one of these folders holds figures of another target or script, or what
            is damaged.
    """
    outputs = {name: args.output / slug_of(name) for name in args.target}
    for name, output in outputs.items():
        _refuse_others(name, script, output / FIGURES)
    for name, output in outputs.items():
        yield Target(name, args.layer_of), output


def _refuse_others(name: str, script: str, figures: Path) -> None:
    """Let nothing be written over the figures of a target whose short name is the same."""
    if not figures.is_file():
        return
    there = read_object(figures, ["facts"])
    held = there.get("facts", {}).get("target")
    if held is None or not isinstance(there.get("command"), str):
        raise damaged(figures, "it must tell of its target and its command")
    if held != name or f"examples/{script}" not in there["command"]:
        raise SystemExit(
            f"{figures} must be of the target {name} and of {script} to be written anew, and is "
            f"of {held}, by `{there['command']}`: name another --output, or delete that file"
        )


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
        return [None if p is None else file_hash(p) for p in (self.train, self.test)]


def domains_in(data: Path, only: Sequence[str] | None = None) -> list[Domain]:
    """List the domains of a folder.

    Raises:
        SystemExit: if there is none, one that was asked for is not there, nobody answers in one,
            or one has the name of all of them together.
    """
    found = [
        Domain(
            train.parent.name,
            train,
            test if (test := train.with_name("test.jsonl")).is_file() else None,
        )
        for train in sorted(data.glob("*/train.jsonl"))
        if train.parent.name != OOD
    ]
    names = [domain.name for domain in found]
    if not found:
        raise SystemExit(
            f"{data} holds no DOMAIN/train.jsonl: examples/build_domains.py makes such a folder"
        )
    if unknown := [name for name in only or () if name not in names]:
        raise SystemExit(f"{data} holds the domains {', '.join(names)}, and no {unknown[0]!r}")
    chosen = [domain for domain in found if not only or domain.name in only]
    for domain in chosen:
        if domain.name == ALL:
            raise SystemExit(f"{domain.train.parent} must have another name: {ALL!r} is taken")
        if not has_answers(domain.train):
            raise SystemExit(f"{domain.train} must hold answers, and holds none: {WAY_OUT}")
    return chosen


def has_answers(path: Path) -> bool:
    """Whether an assistant says anything in a file of chat data."""
    for row in open_chat_data(str(path)):
        try:
            if read_row(row.row).has_answer:
                return True
        except MalformedRow:
            continue
    return False


def check_parts(domain: Domain, search: int, held: int, heldout: float) -> None:
    """Refuse a domain that has nothing to choose from, or nothing to judge by.

    Args:
        domain: the domain.
        search: tokens of its search part.
        held: tokens of its held-out part.
        heldout: the share that was held out.

    Raises:
        SystemExit: naming the part and the file.
    """
    for part, tokens in (("search", search), ("held-out", held)):
        if not tokens:
            raise SystemExit(
                f"the {part} part of {domain.train} must hold answers, and with --heldout "
                f"{heldout:g} holds none: name another share, or {WAY_OUT}"
            )


# --- counts that are kept --------------------------------------------------------------------


def kept_arrays(
    kind: str, facts: Sequence[Any], make: Callable[[], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the arrays that were made of the same facts before; else make and keep them."""
    digest = hashlib.sha256(json.dumps([KEPT_FORMAT, *facts]).encode()).hexdigest()[:24]
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


def measured_already(output: Path, name: str, say: Callable[[str], None]) -> dict[str, Any] | None:
    """Return the figures of a folder if the same call made them."""
    figures = output / FIGURES
    if not figures.is_file():
        return None
    there = read_object(figures)
    if there.get("call") != name:
        return None
    say(f"{figures} is of this call already; delete it to measure anew")
    return there


def write_report(output: Path, report: str) -> None:
    """Write what people read."""
    write_atomically(output / REPORT, report.encode())
