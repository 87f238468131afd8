"""The section of a report's page that tells of a whole run: data, drafts, steps, machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from .report_blocks import (
    DAMAGED,
    Block,
    Cell,
    Grid,
    Listing,
    Section,
    code,
    damage,
    facts,
    grid,
    interval,
    number,
    share,
    shown,
    shown_lines,
    text,
    value_cell,
)
from .report_files import (
    DECODE_JSON,
    RECIPE,
    RUN_JSON,
    SUMMARY_JSON,
    VERSIONS_JSON,
    Found,
    read_json,
)
from .search_result import SEARCH_JSON

_UNFINISHED = (
    "report.json is missing, so the run is not finished: `vtrim run` with the same recipe and "
    "--run-folder goes on where it stopped. What is here so far:"
)
_Made = TypeVar("_Made")
_STEPS = {"search": SEARCH_JSON, "measure": DECODE_JSON}


def run_section(files: Sequence[Found]) -> Section:
    """Return what the files at the top of a run's folder tell.

    A file that is missing or broken is named; the others are shown all the same.

    Args:
        files: those of the kind `run`.
    """
    by_name = {found.name: found for found in files}
    problems: list[str] = []
    summary = _held(by_name.get(SUMMARY_JSON), problems)
    record = _held(by_name.get(RUN_JSON), problems)
    versions = _held(by_name.get(VERSIONS_JSON), problems)
    blocks: list[Block] = []
    glance: list[tuple[str, str]] = []
    if summary:
        blocks += _whole(lambda: _told(summary), SUMMARY_JSON, problems)
        glance += _whole(lambda: _glance(summary), "", problems)
    elif SUMMARY_JSON not in by_name:
        problems.append(_UNFINISHED)
    if not summary.get("pieces") and record:
        blocks += _whole(lambda: [_pieces(record)], RUN_JSON, problems)
    inside = summary.get("versions")
    known, holds = (inside, SUMMARY_JSON) if inside else (versions, VERSIONS_JSON)
    blocks += _whole(lambda: _versions(known), f"versions in {holds}", problems)
    recipe = by_name.get(RECIPE)
    if recipe is None:
        problems.append(f"{RECIPE} is missing: what the run was asked for is not known.")
    else:
        blocks.append(Listing("To run it again", f"vtrim run {RECIPE} --run-folder NEW"))
        try:
            said = shown_lines(recipe.path.read_text(encoding="utf-8"))
        except ValueError as error:
            problems.append(f"{RECIPE} could not be read: {error}")
        else:
            blocks.append(Listing("The recipe", said, folded=True))
    return Section(
        "The run",
        tuple(name for name in (SUMMARY_JSON, RUN_JSON, VERSIONS_JSON, RECIPE) if name in by_name),
        tuple(blocks),
        " ".join(shown(problem) for problem in problems),
        tuple(glance),
    )


def missing_parts(files: Sequence[Found]) -> tuple[tuple[str, str], ...]:
    """Return the files that a run's folder should hold and does not, each with the reason.

    Args:
        files: all that were found in the folder.
    """
    by_name = {found.name: found for found in files}
    summary = _held(by_name.get(SUMMARY_JSON), [])
    missing = []
    for piece in _mappings(summary.get("pieces")):
        step, name = piece.get("step"), str(piece.get("piece"))
        if not isinstance(step, str) or step not in _STEPS:
            continue
        scope = name.removeprefix(step).strip()
        place = f"{'domains/' + scope + '/' if scope else ''}{step}/{_STEPS[step]}"
        if place not in by_name:
            status, why = (shown(piece.get(part) or "", 200) for part in ("status", "reason"))
            missing.append(
                (
                    place,
                    f"the step {shown(name, 80)} is recorded as {status or 'unknown'} ({why}), "
                    "but its file is not here: `vtrim run` with the same recipe makes it",
                )
            )
    return tuple(missing)


def _held(found: Found | None, problems: list[str]) -> Mapping[str, Any]:
    if found is None:
        return {}
    try:
        held = read_json(found.path)
        if not isinstance(held, Mapping):
            raise ValueError(f"it holds a {type(held).__name__}")
    except (ValueError, OSError) as error:
        problems.append(f"{found.name} could not be read: {error}.")
        return {}
    return held


def _whole(make: Callable[[], list[_Made]], what: str, problems: list[str]) -> list[_Made]:
    """Return what can be made of one file; name a file that is damaged, and return nothing."""
    try:
        return make()
    except DAMAGED as error:
        problems += [damage(error, what)] if what else []
        return []


def _versions(known: Any) -> list[Block]:
    if not isinstance(known, Mapping) or not known:
        return []
    pairs = [("Python", text(known.get("python")))]
    for part in ("packages", "machine"):
        held = known.get(part)
        if isinstance(held, Mapping):
            pairs += [(str(name), value_cell(value)) for name, value in held.items()]
    return [facts("Releases and machine", pairs)]


def _verdict(summary: Mapping[str, Any]) -> str:
    """Say whether the goal was met; empty unless the file says yes or no."""
    met = summary.get("goal_met")  # anything, a list even, in a damaged file
    return "reached" if met is True else "missed" if met is False else ""


def _told(summary: Mapping[str, Any]) -> list[Block]:
    goal, verdict = summary.get("goal"), _verdict(summary) or "not measured"
    pairs = [
        ("recipe", text(summary.get("recipe"))),
        ("target", text(summary.get("target"))),
        ("draft", text(summary.get("draft"))),
        ("drafts are", text(summary.get("drafts_are"))),
        (
            "goal",
            Cell(
                "" if goal is None else f"speed-up of at least {value_cell(goal).text}: {verdict}"
            ),
        ),
    ]
    blocks: list[Block] = [facts("What was asked for", pairs)]
    domains = _mappings(summary.get("domains"))
    if domains:
        blocks.append(_alike("Data", domains))
    drafts = _mappings(summary.get("drafts"))
    if drafts:
        blocks.append(_drafts(drafts))
    for draft in drafts:
        measured = draft.get("measured_by_domain")
        if isinstance(measured, Mapping):
            rows = [
                {"domain": n, **one} for n, one in measured.items() if isinstance(one, Mapping)
            ]
            if rows:
                name = shown(draft.get("name"), 80)
                blocks.append(_alike(f"Measured by domain, draft for {name}", rows))
        published = draft.get("published")
        if isinstance(published, Mapping):
            pairs = [(str(name), code(value)) for name, value in published.items()]
            blocks.append(facts(f"Published: {shown(draft.get('name'), 80)}", pairs))
    pieces = _mappings(summary.get("pieces"))
    if pieces:
        blocks.append(_alike("Steps", pieces))
    return blocks


def _drafts(drafts: list[Mapping[str, Any]]) -> Grid:
    rows = []
    for draft in drafts:
        k, width = draft.get("k"), draft.get("vocab_size")
        training = draft.get("training")
        weak = draft.get("weak_domains")
        rows.append(
            (
                text(draft.get("name")),
                number(k),
                number(width),
                share(draft.get("heldout_coverage")),
                interval(draft.get("heldout_interval"), 100),
                share(draft.get("coverage")),
                share(draft.get("reduction"), 1),
                number(draft.get("speedup")),
                number(draft.get("over_full")),
                interval(draft.get("over_full_interval")),
                number(draft.get("acceptance_length")),
                share(draft.get("identical_share"), 0),
                number(training.get("acceptance_length"))
                if isinstance(training, Mapping)
                else text(None),
                value_cell(weak) if weak else text(None),
            )
        )
    columns = ["draft", "kept ids", "of", "covered, held out", "95 %", "search part", "saved"]
    columns += ["speed-up", "over full vocabulary", "95 %", "acceptance length", "texts equal"]
    return grid("Drafts", [*columns, "length in training", "weak domains"], rows)


def _pieces(record: Mapping[str, Any]) -> Grid:
    pieces = record.get("pieces")
    rows = [
        (text(name), number(piece.get("seconds"), ".1f"), text(piece.get("finished")))
        for name, piece in (pieces.items() if isinstance(pieces, Mapping) else ())
        if isinstance(piece, Mapping)
    ]
    return grid("Steps that are done", ["step", "seconds", "finished"], rows)


def _alike(title: str, rows: Sequence[Mapping[str, Any]]) -> Grid:
    columns = list(dict.fromkeys(str(name) for row in rows for name in row))[:24]
    cells = [tuple(value_cell(row.get(name)) for name in columns) for row in rows]
    return grid(title, [name.replace("_", " ") for name in columns], cells)


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _glance(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = [
        ("target", text(summary.get("target")).text),
        ("drafts", str(len(_mappings(summary.get("drafts"))) or "")),
        ("goal", _verdict(summary)),
    ]
    return [(name, said) for name, said in pairs if said]
