"""What bench_decoding.py measures: each draft on its own set of prompts, one on others, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_ways import GENERAL

OOD = "ood"


@dataclass(frozen=True)
class Case:
    """One draft on one set of prompts."""

    draft: str
    set: str
    data: Path
    ood: bool = False

    @property
    def name(self) -> str:
        """A name for a folder."""
        return f"{self.draft}_on_{self.set}"


def cases_of(drafts: Sequence[str], ood_draft: str, data: Path) -> list[Case]:
    """List what is measured.

    Raises:
        SystemExit: if a file is missing, or has the name of another set of the same draft.
    """
    cases = [Case(name, name, data / name / "test.jsonl") for name in drafts]
    drafts_own = {case.name for case in cases}
    if ood_draft not in ("", GENERAL, *drafts):
        raise SystemExit(f"--ood-draft {ood_draft}: there is no --draft of this name")
    if ood_draft in drafts:
        files = sorted((data / OOD).glob("*.jsonl"))
        if not files:
            raise SystemExit(
                f"{data / OOD} holds no *.jsonl to measure {ood_draft!r} on: examples/"
                "build_domains.py DATA --only ood writes them; --ood-draft '' goes without"
            )
        cases += [Case(ood_draft, file.stem, file, ood=True) for file in files]
    for case in cases:
        if not case.data.is_file():
            raise SystemExit(f"there is no {case.data} to measure the draft {case.draft!r} on")
        if case.ood and case.name in drafts_own:
            raise SystemExit(
                f"{case.data} must not be named like the draft {case.draft!r}, whose own set has "
                "that name in the report: rename the file"
            )
    return cases
