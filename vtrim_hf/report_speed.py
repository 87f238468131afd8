"""Sections of a report's page: a measurement of decoding, and a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .card_words import setting_rows
from .decode_entry import DecodeEntry
from .decode_report import DecodeReport
from .plain_facts import plain
from .report_blocks import (
    Block,
    Cell,
    Facts,
    Grid,
    Notes,
    Section,
    code,
    facts,
    grid,
    interval,
    is_number,
    number,
    share,
    shown,
    text,
    value_cell,
)
from .report_files import Found, read_json
from .report_plots import parts_plot, positions_plot, speed_plot, training_plot
from .report_sections import missed_grid
from .training_facts import training_facts

_LENGTH = "acceptance_length"
_DIFFERENCES = 20


def measurement_section(found: Found, key: str, *, plots: bool) -> Section:
    """Return how fast a draft was, and why.

    Args:
        found: the decode report's file.
        key: unique in the page.
        plots: whether to draw.

    Raises:
        ValueError: if it is no decode report.
    """
    report = DecodeReport.from_json(found.path.read_text(encoding="utf-8"))
    entries = list(report.entries.values())
    others = {entry.name: entry for entry in entries if entry.name != report.baseline}
    accepted = {e.name: e.acceptance_by_position for e in entries if e.acceptance_by_position}
    blocks: list[Block] = [_speed(entries), _drafting(entries)]
    if plots:
        spreads = {
            name: {"median": e.speedup.median, "low": e.speedup.low, "high": e.speedup.high}
            for name, e in others.items()
        }
        blocks += [speed_plot(f"{key}-speed", spreads, report.baseline)]
        blocks += [parts_plot(f"{key}-parts", report)]
    blocks.append(_parts(entries))
    if accepted:
        if plots:
            blocks.append(positions_plot(f"{key}-positions", accepted))
        blocks.append(positions_grid(accepted))
    whole = sum(row["plain_tokens"] for row in report.rows) or 1
    for entry in entries:
        if entry.oov_tokens:
            tokens = [{**one, "share": one["count"] / whole} for one in entry.oov_tokens]
            of = f"the target's own {whole:,} tokens; {shown(entry.name, 80)} has no row for "
            of += f"{share(entry.oov_share, 1).text} of them"
            blocks.append(missed_grid(tokens, of))
    blocks += [_differences(entry) for entry in entries if entry.differences]
    if report.notes:
        blocks.append(Notes("Notes", tuple(shown(note, 2_000) for note in report.notes)))
    blocks += [_models(entries), machine_facts(report.machine), _settings(report)]
    spread = report.draft.speedup
    glance = [
        ("speed-up", f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"),
        ("acceptance length", number(report.acceptance_length).text),
        ("texts equal", share(report.identical_share, 0).text),
    ]
    return Section(
        found.title("Measurement"),
        (found.name,),
        tuple(blocks),
        glance=tuple((name, said) for name, said in glance if said),
    )


def _speed(entries: list[DecodeEntry]) -> Grid:
    rows = [
        (
            text(e.name),
            number(e.facts.get("draft_vocab_size")),
            number(e.tokens_per_second, ".1f"),
            number(e.ms_per_token, ".1f"),
            number(e.speedup.median, ".2f"),
            interval((e.speedup.low, e.speedup.high)),
            interval((e.speedup.q25, e.speedup.q75)),
            share(e.identical_share, 0),
        )
        for e in entries
    ]
    columns = ["way of decoding", "kept ids", "tokens/s", "ms a token", "speed-up", "95 %"]
    return grid(
        "Speed",
        [*columns, "quartiles", "texts equal"],
        rows,
        "Speed-ups are medians over the prompts, against the target alone in its fastest dtype.",
    )


def _drafting(entries: list[DecodeEntry]) -> Grid:
    rows = [
        (
            text(e.name),
            number(e.acceptance_length, ".2f"),
            share(e.acceptance_rate, 1),
            number(e.drafted_per_round, ".1f"),
            number(e.draft_step_ms, ".2f"),
            share(e.oov_share, 1),
            number(e.target_forwards),
            number(e.tokens),
            number(e.drafted_outside_vocabulary),
        )
        for e in entries
        if e.facts["kind"] != "plain"
    ]
    columns = ["way of decoding", "acceptance length", "accepted", "drafted a round"]
    columns += ["draft ms a token", "out of vocabulary", "target passes", "new tokens"]
    return grid("Drafting", [*columns, "drafted outside kept ids"], rows)


def _parts(entries: list[DecodeEntry]) -> Grid:
    parts = list(entries[0].seconds_by_part)
    rows = [
        (text(e.name), *(number(e.share_by_part[p] * e.ms_per_token, ".2f") for p in parts))
        for e in entries
    ]
    names = [part.replace("_", " ") for part in parts]
    return grid("Time by part, milliseconds a new token", ["way of decoding", *names], rows)


def positions_grid(accepted: Mapping[str, Any]) -> Grid:
    """Return the shares accepted up to each position, one row a draft."""
    longest = max(len(shares) for shares in accepted.values())
    rows = [
        (
            text(name),
            *(number(value, ".3f") for value in shares),
            *[Cell("")] * (longest - len(shares)),
        )
        for name, shares in accepted.items()
    ]
    columns = ["draft", *(f"position {at}" for at in range(1, longest + 1))]
    return grid("Acceptance by position, share of the drafts", columns, rows)


def _differences(entry: DecodeEntry) -> Grid:
    rows = [
        (
            number(one["prompt"]),
            number(one["position"]),
            number(one["plain_token"], "d"),
            number(one["token"], "d"),
            number(one["gap"], ".4f"),
            text("yes" if one["near_tie"] else "no"),
        )
        for one in entry.differences[:_DIFFERENCES]
    ]
    remark = "Where the two best logits are closer than the dtype can tell, either may come."
    if len(entry.differences) > _DIFFERENCES:
        remark += f" {len(entry.differences) - _DIFFERENCES} more are in the file."
    columns = ["prompt", "position", "id, target alone", "id", "gap of the logits", "near-tie"]
    return grid(
        f"Texts of {shown(entry.name, 80)} that differ from the target alone",
        columns,
        rows,
        remark,
    )


def _models(entries: list[DecodeEntry]) -> Grid:
    names = list(dict.fromkeys(name for e in entries for name in e.facts))
    rows = [(text(e.name), *(value_cell(e.facts.get(name)) for name in names)) for e in entries]
    return grid("What was run", ["way of decoding", *(n.replace("_", " ") for n in names)], rows)


def machine_facts(machine: Any) -> Facts:
    """Return the machine that something was measured on."""
    known = machine if isinstance(machine, Mapping) else {}
    return facts("Machine", [(str(name), value_cell(value)) for name, value in known.items()])


def _settings(report: DecodeReport) -> Facts:
    prompts = report.rows
    pairs = [
        ("prompts", number(len(prompts))),
        ("tokens of the prompts", number(sum(row.get("prompt_tokens") or 0 for row in prompts))),
        ("new tokens of the target alone", number(sum(row["plain_tokens"] for row in prompts))),
    ]
    pairs += [(str(n).replace("_", " "), value_cell(v)) for n, v in report.settings.items()]
    return facts("How it was measured", pairs)


def training_section(found: Found, key: str, *, plots: bool) -> Section:
    """Return how a training went.

    Args:
        found: the training report's file.
        key: unique in the page.
        plots: whether to draw.

    Raises:
        ValueError: if it is no training report.
    """
    held = read_json(found.path)
    prints = held.get("fingerprints") if isinstance(held, Mapping) else None
    of = prints.get("vocabulary") if isinstance(prints, Mapping) else None
    told = plain(training_facts(held, of if isinstance(of, str) else "None"))
    curve, evaluations = _points(held, "curve"), _points(held, "evaluations")
    blocks: list[Block] = [
        facts("How it was trained", [(name, text(value)) for name, value in setting_rows(told)])
    ]
    if plots and (curve or evaluations):
        best = told.get("best_step")
        lines = {"training": curve, "held-out conversations": evaluations}
        title = "Acceptance length during the training"
        blocks.append(
            training_plot(f"{key}-length", title, _LENGTH, "acceptance length", lines, best)
        )
        blocks.append(
            training_plot(f"{key}-loss", "Loss during the training", "loss", "loss", lines)
        )
    blocks.append(_evaluations(evaluations, told.get("best_step")))
    acceptance = told.get("acceptance")
    if isinstance(acceptance, list) and acceptance and all(map(is_number, acceptance)):
        name = f"checkpoint of step {told['best_step']:,}"
        if plots:
            blocks.append(positions_plot(f"{key}-positions", {name: acceptance}))
        blocks.append(positions_grid({name: acceptance}))
    settings = held.get("settings")
    if isinstance(settings, Mapping):
        pairs = [(str(n).replace("_", " "), value_cell(v)) for n, v in settings.items()]
        blocks.append(facts("All settings", pairs, folded=True))
    if isinstance(held.get("machine"), Mapping) and held["machine"]:
        blocks.append(machine_facts(held["machine"]))
    if isinstance(prints, Mapping):
        pairs = [(str(name), code(value)) for name, value in prints.items()]
        blocks.append(facts("Fingerprints", pairs, folded=True))
    problem = "" if held.get("finished") else "The training is not finished: its figures so far."
    length = told.get("acceptance_length")
    minutes = told.get("minutes")
    glance = [
        ("acceptance length, held out", number(length, ".2f").text),
        ("trained for", number(minutes, ".1f", "minutes").text),
    ]
    return Section(
        found.title("Training"),
        (found.name,),
        tuple(blocks),
        problem,
        tuple((name, said) for name, said in glance if said),
    )


def _points(held: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    points = held.get(name)
    return [p for p in points if isinstance(p, Mapping)] if isinstance(points, list) else []


def _evaluations(points: list[Mapping[str, Any]], best: Any) -> Grid:
    rows = [
        (
            number(p.get("step")),
            number(p.get("epoch"), ".2f"),
            number(p.get("tokens")),
            number(p["seconds"] / 60 if is_number(p.get("seconds")) else None, ".1f"),
            number(p.get(_LENGTH), ".3f"),
            number(p.get("loss"), ".3f"),
            text("kept" if p.get("step") == best else ""),
        )
        for p in points
    ]
    columns = ["step", "epoch", "tokens read", "minutes", "acceptance length", "loss", ""]
    return grid("Evaluations on held-out conversations", columns, rows)
