"""The ways of decoding that bench_decoding.py compares: one draft with heads of several sizes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_parts import Constant, OtherRows, by_need, counts_of, required_ids, rows_of
from paper_figures import PAPER_ALPHA, PAPER_FLOOR

from vtrim_hf import LatencyModel, TokenCounts, search_vocabulary
from vtrim_hf.measuring_step import Loadable
from vtrim_hf.named_models import NamedModel

GENERAL = "general"
HELDOUT = 0.2  # of what is counted to choose k*


class Lookup:
    """Transformers' own drafting without a model: what followed the last tokens before."""

    def __init__(self, draft_length: int) -> None:
        self._arguments = {"prompt_lookup_num_tokens": draft_length}

    @property
    def identity(self) -> str:
        """A text that is the same for the same way only."""
        return str(self._arguments)

    def model(self, dtype: str) -> Any:  # noqa: ARG002
        """Return the arguments of `generate`."""
        return self._arguments


def fixed_ids(target: NamedModel, args: argparse.Namespace) -> dict[int, np.ndarray]:
    """Return the fixed vocabularies by size; sizes that the target does not have are left out.

    Raises:
        SystemExit: if there is no general text to count, or a size without room.
    """
    sizes = sorted({size for size in args.fixed if size < target.vocab_size})
    if not sizes:
        return {}
    train = args.data / GENERAL / "train.jsonl"
    counts = counts_of(target, args.general_counts, train, heldout=0.0)
    required = required_ids(target)
    if sizes[0] < len(required):
        raise SystemExit(f"--fixed {sizes[0]} has no room for {len(required)} required ids")
    order = by_need(counts.array("all"), required)
    return {size: order[:size] for size in sizes}


@dataclass(frozen=True, eq=False)
class Chosen:
    """The vocabulary that the search chooses where nothing forces its size.

    Attributes:
        ids: int64 [k*], ascending.
        counted: the file that was counted, or that holds counts.
        fingerprint: of the counts.
    """

    ids: np.ndarray
    counted: str
    fingerprint: str

    @classmethod
    def of(cls, target: NamedModel, counts: TokenCounts, counted: Path) -> Chosen:
        """Search with the paper's weight, exactly; required ids are part of k*."""
        operations = LatencyModel.eagle3(target.config, vocab_size=target.vocab_size)
        found = search_vocabulary(
            counts,
            operations,
            required=required_ids(target),
            alpha=PAPER_ALPHA,
            min_coverage=PAPER_FLOOR,
        )
        return cls(np.asarray(found.vocabulary.ids), str(counted), counts.fingerprint)


def counts_named(words: Sequence[str]) -> dict[str, Path]:
    """Read counts as NAME=FILE.

    Raises:
        SystemExit: if one is not, or is named twice.
    """
    found: dict[str, Path] = {}
    for word in words:
        name, _, place = word.partition("=")
        if not name or not place or name in found:
            raise SystemExit(f"--counts {word} must be NAME=FILE, each name once")
        found[name] = Path(place)
    return found


def chosen_for(
    target: NamedModel, names: Sequence[str], args: argparse.Namespace
) -> dict[str, Chosen]:
    """Return what the search chooses for each draft's domain, by name.

    Raises:
        SystemExit: if there is nothing to count, or counts of a draft that is not there.
    """
    given = counts_named(args.counts)
    if unknown := given.keys() - set(names):
        raise SystemExit(f"--counts {min(unknown)}: there is no --draft of this name")
    if args.general_counts is not None:
        given.setdefault(GENERAL, args.general_counts)
    found = {}
    for name in names:
        train = args.data / name / "train.jsonl"
        counts = counts_of(target, given.get(name), train, heldout=HELDOUT)
        found[name] = Chosen.of(target, counts, given.get(name, train))
    return found


@dataclass(frozen=True, eq=False)
class Ways:
    """How drafts are made ready to be measured.

    Attributes:
        target: the model that verifies.
        drafts: by name.
        trained_full: drafts that were trained with the whole vocabulary, by the same names.
        fixed: ids of the fixed vocabularies, by size.
        chosen: what the search chooses for each draft's domain, by the same names.
        others: what needs no draft of ours.
    """

    target: NamedModel
    drafts: Mapping[str, NamedModel]
    trained_full: Mapping[str, NamedModel]
    fixed: Mapping[int, np.ndarray]
    chosen: Mapping[str, Chosen]
    others: Mapping[str, Loadable]

    def of(self, name: str) -> tuple[dict[str, Loadable], dict[str, int]]:
        """Return the ways to measure a draft, and how many rows those of our drafts have.

        Raises:
            SystemExit: if it is no draft for this target, or `trained_full` is not full.
        """
        draft, target = self.drafts[name], self.target
        rows = rows_of(draft, target)
        cut = {} if self.as_trained(name) else {"optimised": self.chosen[name].ids}
        cut["full"] = np.arange(target.vocab_size)
        cut |= {f"fixed_{size}": ids for size, ids in self.fixed.items()}
        ways: dict[str, Loadable] = {"draft": Constant(draft)}
        ways |= {way: OtherRows(draft, target, ids) for way, ids in cut.items()}
        expected = {"draft": rows, **{way: ids.size for way, ids in cut.items()}}
        if name in self.trained_full:
            wide = self.trained_full[name]
            if rows_of(wide, target) != target.vocab_size:
                raise SystemExit(f"--trained-full {wide} has not the whole vocabulary")
            ways["trained_full"] = Constant(wide)
            ways["retrimmed"] = OtherRows(wide, target, self._own_ids(name))
            expected |= {"trained_full": target.vocab_size, "retrimmed": rows}
        return {**ways, **self.others}, expected

    def as_trained(self, name: str) -> bool:
        """Whether a draft was trained with the very ids that the search chooses."""
        return np.array_equal(self._own_ids(name), self.chosen[name].ids)

    def optimised(self, name: str) -> dict[str, Any]:
        """Return what is told of the ids that the search chooses for a draft's domain."""
        chosen = self.chosen[name]
        return {
            "k": int(chosen.ids.size),
            "as_trained": self.as_trained(name),
            "counted": chosen.counted,
            "counts_fingerprint": chosen.fingerprint,
        }

    def _own_ids(self, name: str) -> np.ndarray:
        return np.asarray(self.drafts[name].model("auto").vocabulary.ids)
