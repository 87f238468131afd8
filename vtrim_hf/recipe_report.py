"""What a run's folder tells people and machines: `report.json`, `report.md`, `versions.json`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from .decode_report import DecodeReport
from .recipe import DraftChoice, Recipe
from .run_folder import RunFolder
from .search_result import SEARCH_JSON, SearchResult
from .steps import REPORT_JSON

_PACKAGES = ("torch", "transformers", "tokenizers", "huggingface_hub", "safetensors", "datasets")


def versions() -> dict[str, Any]:
    """Return what ran: releases and machine, as JSON values."""
    import torch

    from . import __version__
    from .decoding_ways import machine_facts

    found: dict[str, str | None] = {"vtrim_hf": __version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    machine = machine_facts(torch.empty(0))  # only its device is asked for
    machine.pop("versions")
    return {"python": sys.version.split()[0], "packages": found, "machine": machine}


def run_summary(
    recipe: Recipe,
    run: RunFolder,
    pieces: Sequence[Mapping[str, Any]],
    goal_met: bool | None,
) -> dict[str, Any]:
    """Put together what a run found, as JSON values.

    Args:
        recipe: the recipe.
        run: its folder; what is not there yet is left out.
        pieces: what became of each piece.
        goal_met: whether every measured draft reached the goal.
    """
    made = {piece["piece"] for piece in pieces if piece["status"] in ("kept", "done")}
    return {
        "recipe": recipe.name,
        "target": recipe.target.name,
        "draft": recipe.draft.model.name if isinstance(recipe.draft, DraftChoice) else "eagle3",
        "drafts_are": recipe.drafts,
        "goal": None if recipe.measure is None else recipe.measure.min_speedup,
        "goal_met": goal_met,
        "domains": [
            {"name": domain.name, **run.facts(f"count {domain.name}")}
            for domain in recipe.domains
            if f"count {domain.name}" in made
        ],
        "drafts": [_draft(recipe, run, scope, made) for scope in recipe.scopes],
        "pieces": [dict(piece) for piece in pieces],
        "versions": versions(),
    }


def _draft(recipe: Recipe, run: RunFolder, scope: str | None, made: set[str]) -> dict[str, Any]:
    suffix = "" if scope is None else f" {scope}"
    facts: dict[str, Any] = {"name": scope or "all domains"}
    if f"search{suffix}" in made:
        result = SearchResult.load(run.folder_of("search", scope) / SEARCH_JSON)
        facts |= {
            "k": result.k,
            "vocab_size": result.vocabulary.vocab_size,
            "fingerprint": result.vocabulary.fingerprint,
            "coverage": result.coverage,
            "heldout_coverage": result.heldout_coverage,
            "heldout_interval": result.heldout_interval and list(result.heldout_interval),
            "reduction": result.reduction,
            "weak_domains": list(result.weak_domains),
            "coverage_by_domain": {
                name: {key: known[key] for key in ("coverage", "heldout_coverage", "floor")}
                for name, known in result.per_domain.items()
            },
            "search_plot": _plot(run, run.folder_of("search", scope) / "search.png"),
        }
    making = f"{recipe.making}{suffix}"
    if making in made:
        folder = run.folder_of(recipe.making, scope)
        facts["folder"] = folder.relative_to(run.path).as_posix()
        if recipe.train is not None:
            facts["training"] = dict(run.facts(making))
    if f"measure{suffix}" in made:
        place = run.folder_of("measure", scope)
        report = DecodeReport.load(place / REPORT_JSON)
        ranges: Mapping[str, list[int]] = run.facts(f"measure{suffix}").get("prompts", {})
        facts |= _measured(report)
        facts["measured_by_domain"] = {
            name: _measured(report.subset(range(*ends))) for name, ends in ranges.items()
        }
        facts["table"] = report.table()
        facts["notes"] = list(report.notes)
        facts["measure_plot"] = _plot(run, place / "decode_report.png")
    published = run.facts(f"publish{suffix}")
    if f"publish{suffix}" in made and published:
        facts["published"] = dict(published)
    return facts


def _measured(report: DecodeReport) -> dict[str, Any]:
    """Return the figures of one report, against the target alone and the full vocabulary."""
    full = report.ratio("draft", "full") if "full" in report.entries else None
    return {
        "prompts": len(report.rows),
        "speedup": report.speedup,
        "acceptance_length": report.acceptance_length,
        "identical_share": report.identical_share,
        "over_full": None if full is None else full.median,
        "over_full_interval": None if full is None else [full.low, full.high],
    }


def _plot(run: RunFolder, path: Path) -> str | None:
    return path.relative_to(run.path).as_posix() if path.is_file() else None


def summary_markdown(summary: Mapping[str, Any]) -> str:
    """Write a summary as Markdown.

    Args:
        summary: what `run_summary` gave.
    """
    lines = [
        f"# {summary['recipe']}",
        "",
        f"Target {summary['target']}, draft "
        + ("of body eagle3, trained." if summary["draft"] == "eagle3" else f"{summary['draft']}."),
    ]
    if summary["goal"] is not None and summary["goal_met"] is not None:
        verdict = "reached" if summary["goal_met"] else "**missed**"
        lines.append(f"The goal, a speed-up of at least {summary['goal']:g}, was {verdict}.")
    if summary["domains"]:
        lines += ["", "## Data", "", *_table(summary["domains"])]
    for draft in summary["drafts"]:
        lines += ["", f"## Draft for {draft['name']}", "", *_draft_lines(draft)]
    lines += ["", "## Steps", "", *_table(summary["pieces"])]
    known = summary["versions"]
    packages = ", ".join(f"{name} {found}" for name, found in known["packages"].items() if found)
    machine = known["machine"]
    lines += [
        "",
        f"Python {known['python']}, {packages}; {machine['cpu']}, {machine['threads']} threads"
        + (f", {machine['gpu']}" if machine["gpu"] else ""),
    ]
    return "\n".join(lines) + "\n"


def _draft_lines(draft: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if "k" in draft:
        lines.append(
            f"{draft['k']:,} of {draft['vocab_size']:,} ids; coverage {_cell(draft['coverage'])}, "
            f"held out {_cell(draft['heldout_coverage'])}; a draft step costs "
            f"{draft['reduction']:.1%} less."
        )
        rows = [{"domain": n, **known} for n, known in draft["coverage_by_domain"].items()]
        lines += ["", *_table(rows)]
        if draft["weak_domains"]:
            lines += ["", f"Served worse than the rest: {', '.join(draft['weak_domains'])}."]
    if "folder" in draft:
        lines += ["", f"The draft: [{draft['folder']}]({draft['folder']})"]
    if "training" in draft:
        lines += ["", *_training_lines(draft["training"])]
    if "table" in draft:
        rows = [{"domain": n, **known} for n, known in draft["measured_by_domain"].items()]
        lines += ["", draft["table"], "", *_table(rows)]
        lines += ["", *(f"- {note}" for note in draft["notes"])]
    for plot in (draft.get("search_plot"), draft.get("measure_plot")):
        if plot:
            lines += ["", f"![{Path(plot).stem}]({plot})"]
    if "published" in draft:
        known = draft["published"]
        listed = f", listed in {known['index']}" if "index" in known else ""
        lines += ["", f"Published as {known['url']} at {known['commit']}{listed}."]
    return lines


def _training_lines(training: Mapping[str, Any]) -> list[str]:
    minutes = ", ".join(f"{part} {spent:g}" for part, spent in training["minutes"].items())
    by_position = " ".join(f"{share:.3f}" for share in training["acceptance"])
    length = training["acceptance_length"]
    best = (
        "No evaluation was finished."
        if length is None
        else f"The best checkpoint is that of step {training['best_step']}: acceptance length "
        f"{length:.3f} on conversations that were held out to choose it ({by_position} by "
        "position)."
    )
    return [
        f"Trained for {training['steps']} steps on {training['sequences']:,} sequences, "
        f"{training['tokens_seen']:,} tokens in all; minutes by part: {minutes}. {best}"
    ]


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    body = ("| " + " | ".join(_cell(row.get(key)) for key in columns) + " |" for row in rows)
    return [*head, *body]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return " to ".join(_cell(item) for item in value)
    return str(value).replace("|", "\\|").replace("\n", " ")
