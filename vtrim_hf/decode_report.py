"""`DecodeReport`: what a measurement of assisted decoding found, as a value.

The report keeps one row per prompt and computes everything else from the rows, so that reports of
the same setting can be merged and an interrupted measurement can go on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .decode_entry import DecodeEntry, Spread, entry_of, ratio_of
from .decode_text import markdown_table, notes_on

MAIN = "draft"
"""Name of the entry that the report is about."""

_SCHEMA = 1


@dataclass(frozen=True)
class DecodeReport:
    """What `measure_decoding` found.

    Attributes:
        entries: every way of decoding that was measured, `"draft"` among them.
        baseline: name of the plain entry that speed-ups are against, the fastest one.
        rows: what was measured, one row a prompt.
        settings: how it was measured.
        machine: where: CPU, GPU, threads, versions.
        notes: what a reader of the numbers should know, the reason for a missing gain included.
    """

    entries: dict[str, DecodeEntry]
    baseline: str
    rows: tuple[dict[str, Any], ...] = field(repr=False)
    settings: dict[str, Any]
    machine: dict[str, Any]
    notes: tuple[str, ...]
    _remarks: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        facts: Mapping[str, Mapping[str, Any]],
        *,
        settings: Mapping[str, Any],
        machine: Mapping[str, Any],
        remarks: Iterable[str] = (),
    ) -> DecodeReport:
        """Compute a report.

        Args:
            rows: one row a prompt, as `measure_decoding` hands them to `on_row`.
            facts: facts of every entry by name.
            settings: how it was measured.
            machine: where it was measured.
            remarks: notes that do not follow from the numbers.

        Raises:
            ValueError: if there are no rows, or rows lack an entry or a plain baseline.
        """
        kept = tuple(dict(row) for row in rows)
        if not kept:
            raise ValueError("a report needs at least one measured prompt, got no rows")
        names = [name for name in facts if all(name in row["entries"] for row in kept)]
        plain = [name for name in names if facts[name]["kind"] == "plain"]
        if MAIN not in names or not plain:
            raise ValueError(
                f"every row must hold the entry {MAIN!r} and a plain one, got only {names} in all "
                "of them: rows of different measurements do not mix"
            )

        def rate(name: str) -> float:
            cells = [row["entries"][name] for row in kept]
            return float(sum(c["tokens"] for c in cells) / sum(c["seconds"] for c in cells))

        baseline = max(plain, key=rate)
        entries = {name: entry_of(name, kept, baseline, dict(facts[name])) for name in names}
        remarks = tuple(remarks)
        return cls(
            entries=entries,
            baseline=baseline,
            rows=kept,
            settings=dict(settings),
            machine=dict(machine),
            notes=(*remarks, *notes_on(entries, baseline, settings)),
            _remarks=remarks,
        )

    @property
    def draft(self) -> DecodeEntry:
        """The entry that the report is about."""
        return self.entries[MAIN]

    @property
    def plain(self) -> DecodeEntry:
        """The baseline: the target alone, in its fastest dtype."""
        return self.entries[self.baseline]

    @property
    def speedup(self) -> float:
        """Median over the prompts of the draft's tokens/s over plain tokens/s."""
        return self.draft.speedup.median

    @property
    def acceptance_length(self) -> float | None:
        """1 + accepted draft tokens / verified drafts, over all prompts."""
        return self.draft.acceptance_length

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens, over all prompts."""
        return self.draft.acceptance_rate

    @property
    def identical_share(self) -> float | None:
        """Share of the prompts whose greedy ids equal plain decoding's; None when sampling."""
        return self.draft.identical_share

    @property
    def identical(self) -> bool | None:
        """Whether every prompt's greedy ids equal plain decoding's; None when sampling."""
        return None if self.identical_share is None else self.identical_share == 1.0

    @property
    def identical_dtype(self) -> str:
        """The dtype in which the ids were compared; near-ties may flip in any below float32."""
        return str(self.settings["identity_dtype"])

    def ratio(self, name: str, other: str) -> Spread:
        """Return the tokens/s of one entry over those of another, prompt by prompt.

        Raises:
            ValueError: if there is no such entry.
        """
        for asked in (name, other):
            if asked not in self.entries:
                raise ValueError(f"no entry {asked!r} in this report, it has {[*self.entries]}")
        return ratio_of(self.rows, name, other)

    def subset(self, prompts: Iterable[int]) -> DecodeReport:
        """Return the report of some prompts only, such as those of one domain.

        Args:
            prompts: their positions in the list that was measured.
        """
        wanted = set(prompts)
        return DecodeReport.from_rows(
            [row for row in self.rows if row["prompt"] in wanted],
            {name: entry.facts for name, entry in self.entries.items()},
            settings=self.settings,
            machine=self.machine,
            remarks=self._remarks,
        )

    def table(self) -> str:
        """Return the entries as a Markdown table, plain decoding first."""
        return markdown_table(self.entries.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "schema": _SCHEMA,
            "baseline": self.baseline,
            "summary": {
                "prompts": len(self.rows),
                "speedup": self.speedup,
                "acceptance_length": self.acceptance_length,
                "acceptance_rate": self.acceptance_rate,
                "identical": self.identical,
                "identical_dtype": self.identical_dtype,
            },
            "entries": {
                name: {**asdict(entry), "tokens_per_second": entry.tokens_per_second}
                for name, entry in self.entries.items()
            },
            "settings": self.settings,
            "machine": self.machine,
            "notes": list(self.notes),
            "remarks": list(self._remarks),
            "rows": list(self.rows),
        }

    def to_json(self) -> str:
        """Return the report as JSON text; `from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> DecodeReport:
        """Read a report that `to_json` wrote; everything is computed anew from its rows.

        Raises:
            ValueError: if the text is not such a report.
        """
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("schema") != _SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ValueError(
                f"a decode report must have schema {_SCHEMA}, got {found!r}: pass what "
                "DecodeReport.to_json wrote"
            )
        return cls.from_rows(
            data["rows"],
            {name: entry["facts"] for name, entry in data["entries"].items()},
            settings=data["settings"],
            machine=data["machine"],
            remarks=data["remarks"],
        )

    def save(self, path: str | Path) -> None:
        """Write the report as JSON; an existing file is replaced in one step."""
        path = Path(path)
        beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            beside.write_text(self.to_json() + "\n", encoding="utf-8")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> DecodeReport:
        """Read a file that `save` wrote."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))

    def plot(self, path: str | Path) -> None:
        """Draw tokens/s, time by part and acceptance by position into an image file."""
        from .decoding_plots import plot_report

        plot_report(self, path)
