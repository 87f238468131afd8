"""Sections of a report's page: a search result, and the facts that lie beside a draft."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import coverage_metadata
from .card_words import MISSED_OF, coverage_rows, machine_words, measure_command, percent
from .report_blocks import (
    Block,
    Cell,
    Facts,
    Grid,
    Listing,
    Section,
    code,
    facts,
    grid,
    interval,
    number,
    share,
    shown,
    text,
    token,
    value_cell,
)
from .report_files import Found
from .report_plots import domains_plot, expected_plot, front_plot, size_plot
from .search_result import SearchResult

_COSTS = {"flops": "operations", "bytes": "reading time", "measured": "time"}
_SIZES = (250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)


def search_section(found: Found, key: str, *, plots: bool) -> Section:
    """Return what a search weighed and chose.

    Args:
        found: the search result's file.
        key: unique in the page.
        plots: whether to draw.

    Raises:
        ValueError: if it is no search result.
    """
    result = SearchResult.load(found.path)
    latency = result.settings.get("latency", {})
    cost = _COSTS.get(str(latency.get("kind")), "cost")
    blocks: list[Block] = [_chosen(result, cost, latency)]
    if plots:
        blocks += [front_plot(f"{key}-front", result, cost), size_plot(f"{key}-sizes", result)]
    if result.expected is not None:
        if plots:
            blocks.append(expected_plot(f"{key}-expected", result))
        blocks.append(_expected(result.expected))
    blocks.append(_domains(result))
    if plots and len(result.per_domain) > 1:
        blocks.append(domains_plot(f"{key}-domains", result))
    blocks.append(_sizes(result))
    if result.study:
        pairs = [(name, value_cell(value)) for name, value in result.study.items()]
        blocks.append(facts("The TPE study", pairs))
    width = result.vocabulary.vocab_size
    covered = result.coverage if result.heldout_coverage is None else result.heldout_coverage
    part = "search part" if result.heldout_coverage is None else "held out"
    return Section(
        found.title("Search"),
        (found.name,),
        tuple(blocks),
        glance=(
            ("kept ids", f"{result.k:,} of {width:,}"),
            (f"coverage, {part}", percent(covered, 2)),
            (f"{cost} saved", percent(result.reduction)),
        ),
    )


def _chosen(result: SearchResult, cost: str, latency: Mapping[str, Any]) -> Facts:
    settings, width = result.settings, result.vocabulary.vocab_size
    required, usual = settings.get("required"), result.usual
    pairs = [
        ("kept ids", Cell(f"{result.k:,} of {width:,} ({percent(result.k / width)})")),
        ("coverage, search part", share(result.coverage)),
        ("95 % interval", interval(result.coverage_interval, 100)),
        ("coverage, held-out part", share(result.heldout_coverage)),
        ("95 % interval, held out", interval(result.heldout_interval, 100)),
        (f"{cost} of a draft step saved", share(result.reduction, 1)),
        (
            "the usual size, for comparison",
            Cell(
                ""
                if usual is None
                else f"{usual.k:,} ids: {percent(usual.coverage, 2)} covered, "
                f"{percent(usual.reduction)} saved"
            ),
        ),
        ("objective", text(settings.get("objective"))),
        ("advice", text((result.expected or {}).get("advice"))),
        ("tokens drafted a round", value_cell(result.draft_length)),
        ("utility", number(result.utility, ".4f")),
        ("below the best utility by", share(result.gap_to_exact, 3)),
        ("method", text(result.method)),
        ("preset", text(settings.get("preset"))),
        ("weight of coverage (alpha)", value_cell(settings.get("alpha"))),
        ("least coverage asked for", share(settings.get("min_coverage") or None, 1)),
        ("least coverage by domain", value_cell(settings.get("domain_floors") or None)),
        ("sizes that were weighed", _span(settings.get("sizes"))),
        ("latency of", text((latency.get("settings") or {}).get("body"))),
        ("latency counted in", text(latency.get("unit"))),
        ("ids that had to stay", value_cell(required)),
        ("domains", value_cell(settings.get("domains"))),
        ("fingerprint of the kept ids", code(result.vocabulary.fingerprint)),
        ("fingerprint of the counts", code(settings.get("counts"))),
        ("fingerprint of the tokenizer", code(result.vocabulary.tokenizer_hash)),
    ]
    return facts("What was chosen", pairs)


def _span(sizes: Any) -> Cell:
    return interval(sizes, form=",.0f") if isinstance(sizes, list) else text(sizes)


def _domains(result: SearchResult) -> Grid:
    rows = [
        (
            text(name),
            share(known["heldout_coverage"]),
            interval(known["heldout_interval"], 100),
            number(known["heldout_tokens"]),
            share(known["coverage"]),
            interval(known["interval"], 100),
            number(known["tokens"]),
            share(known["floor"], 1),
            text("weak" if known["weak"] else ""),
        )
        for name, known in result.per_domain.items()
    ]
    columns = ["domain", "held out", "95 %", "tokens", "search part", "95 %", "tokens", "floor"]
    return grid("Coverage by domain", [*columns, "served"], rows)


def _expected(expected: Mapping[str, Any]) -> Grid:
    """Return what a search for throughput expects of its options, on the part that judges."""
    part = expected["judged_on"]
    named = [(name, expected[name]) for name in ("chosen", "trimmed", "full")]
    named += [("best of its length", option) for option in expected["by_length"]]
    rows = [
        (
            text(name),
            number(option["k"]),
            number(option["draft_length"]),
            share(option[part]["coverage"]),
            number(option[part]["tokens_per_round"], ".2f"),
            number(option[part]["tokens_per_second"], ".1f"),
            number(option[part]["speedup"], ".3f"),
            interval(expected["interval"], form=".3f") if name == "chosen" else text(None),
        )
        for name, option in named
        if option is not None and option.get(part) is not None
    ]
    columns = ["option", "kept ids", "drafted a round", "coverage", "tokens a round", "tokens/s"]
    remark = f"The target alone: {number(expected['plain']['tokens_per_second'], '.1f').text} "
    remark += (
        f"tokens/s. Computed, not measured, on the {'held-out' if part == 'heldout' else part}"
    )
    remark += " part; the reading of prompts is left out."
    if expected["beyond_measured"]:
        remark += " The length is beyond the positions whose acceptance is known."
    return grid("Expected speed", [*columns, "speed-up", "95 %"], rows, remark)


def _sizes(result: SearchResult) -> Grid:
    """Return the curve at round sizes, so that the plot can be read in figures."""
    curve = result.curve
    wanted = {int(abs(curve.sizes - size).argmin()) for size in _SIZES}
    wanted |= {0, len(curve.sizes) - 1, int(abs(curve.sizes - result.k).argmin())}
    front = {point.k for point in result.front}
    rows = []
    for at in sorted(wanted):
        size, held = int(curve.sizes[at]), curve.heldout_coverage
        rows.append(
            (
                number(size),
                share(float(curve.coverage[at])),
                share(None if held is None else float(held[at])),
                share(float(curve.reduction[at]), 1),
                number(float(curve.utility[at]), ".4f"),
                text("yes" if curve.feasible[at] else "no"),
                text("yes" if size in front else "no"),
                text("chosen" if size == result.k else ""),
            )
        )
    columns = ["kept ids", "coverage", "held out", "saved", "utility", "allowed", "on the front"]
    return grid("Some of the sizes", [*columns, ""], rows, "All points are in the file.")


def coverage_section(found: Found, key: str, *, plots: bool) -> Section:  # noqa: ARG001
    """Return the facts that travel with a draft.

    Args:
        found: its `vtrim/coverage.json`.
        key: unique in the page.
        plots: whether to draw; there is nothing to draw.

    Raises:
        ValueError: if it holds no such facts.
    """
    known = coverage_metadata.read(found.path)
    draft, target = known["draft"], known["target"]
    decoding, training = known.get("decoding", {}), known.get("training", {})
    pairs = [
        ("target", text(target.get("id"))),
        ("draft", text(draft.get("id"))),
        ("body", text(draft.get("body"))),
        ("kept ids", Cell(f"{draft['k']:,} of {target['vocab_size']:,}")),
        ("layers", value_cell(draft.get("layers"))),
        ("parameters", number(draft.get("parameters"))),
        ("number format", text(draft.get("dtype"))),
        ("data sets", value_cell(known.get("datasets"))),
        ("fingerprint of the kept ids", code(draft.get("fingerprint"))),
        ("fingerprint of the tokenizer", code(target.get("tokenizer_hash"))),
        ("made with", value_cell(known.get("versions"))),
        ("acceptance length after training", number(training.get("acceptance_length"))),
        ("speed-up where it was measured", number((decoding.get("speedup") or {}).get("median"))),
        ("measured on", text(machine_words(decoding["machine"]) if decoding else None)),
    ]
    blocks: list[Block] = [facts("The draft", pairs)]
    command = measure_command("DRAFT", known)
    if command:
        blocks.append(Listing("To measure it again", shown(command)))
    rows = [
        (text(row["name"]), *_part(row.get("heldout")), *_part(row.get("search")))
        for row in coverage_rows(known.get("coverage", {}))
    ]
    if rows:
        columns = ["domain", "held out", "95 %", "tokens", "search part", "95 %", "tokens"]
        blocks.append(grid("Coverage, as recorded with the draft", columns, rows))
    missed = known.get("most_missed_tokens")
    if missed:
        of = MISSED_OF.get(missed["of"], shown(missed["of"]))
        blocks.append(missed_grid(missed["tokens"], of))
    glance = [("kept ids", f"{draft['k']:,}"), ("target", text(target.get("id")).text)]
    return Section(
        found.title("Draft"),
        (found.name,),
        tuple(blocks),
        glance=tuple((name, said) for name, said in glance if said),
    )


def _part(known: Any) -> tuple[Cell, Cell, Cell]:
    held = known if isinstance(known, Mapping) else {}
    return (
        share(held.get("share")),
        interval(held.get("interval"), 100),
        number(held.get("tokens")),
    )


def missed_grid(tokens: Any, of: str) -> Grid:
    """Return the table of the tokens that a draft cannot say, most missed first.

    Args:
        tokens: mappings with `id`, `count`, `share` and `text`, of which the last two may lack.
        of: what was counted.
    """
    most = max((one["count"] for one in tokens), default=0) or 1
    rows = [
        (
            number(one["id"], "d"),
            token(one.get("text")),
            Cell(f"{one['count']:,}", "number", one["count"] / most),
            share(one.get("share"), 3),
        )
        for one in tokens
    ]
    columns = ["id", "text", "times", "share of all tokens"]
    remark = f"Of {of}. Where the target says one of these, the draft's proposal ends."
    return grid("Tokens most missed, outside of the vocabulary", columns, rows, remark)
