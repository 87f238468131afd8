"""What bench_task_quality.py tells people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_results import PICTURE, machine_lines, table
from task_questions import TASKS

DTYPES = ("float32", "bfloat16")
HEADS = (
    "task and score",
    "dtype",
    "alone (95 %)",
    "with the draft (95 %)",
    "same texts",
    "acceptance length",
    "tokens the draft can say",
)


def markdown(found: Mapping[str, Any]) -> str:
    """Return the report."""
    tasks = found["tasks"]
    parameters = next(iter(tasks.values()))["parameters"]  # of the target, the same for all
    return "\n".join(
        [
            f"# How well {found['target']} does its tasks, alone and with a draft",
            "",
            *table(HEADS, [line(n, one, dtype) for n, one in tasks.items() for dtype in DTYPES]),
            "",
            verdict([one["float32"] for one in tasks.values()]),
            *missing_intervals(tasks),
            "",
            f"![Scores alone and with the draft, and acceptance length]({PICTURE})",
            "",
            f"{found['target']} has {parameters / 1e6:,.0f} million parameters. The "
            "scores are its own, on few prompts, and no yardstick of the tasks. Where it can do "
            "next to nothing, equal scores say next to nothing; that a text is the target's own, "
            "token by token, says that nothing was changed, at any score.",
            "",
            *(f"- {note(name, one)}" for name, one in tasks.items()),
            "",
            *machine_lines({name: machines_with_evaluate(one) for name, one in tasks.items()}),
            "",
            *dict.fromkeys(f"    {one['command']}" for one in tasks.values()),
            "",
        ]
    )


def machines_with_evaluate(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the machines of a task, `evaluate`, which scores, among their versions."""
    return [
        {**machine, "versions": {**machine["versions"], "evaluate": one["evaluate"]}}
        for machine in one["machines"]
    ]


def line(name: str, one: Mapping[str, Any], dtype: str) -> list[str]:
    """Return a task's line of the table."""
    task, part = TASKS[name], one[dtype]
    same, number = part["identical"]
    length, covered = part["acceptance_length"], part["token_coverage"]
    return [
        f"{name}: {task.title}",
        dtype,
        *(share(part[way], task.metric) for way in ("plain", "draft")),
        f"{same} of {number}",
        f"{length['acceptance_length']:.2f}" if length else "",
        f"{covered['token_coverage']:.1%}" if covered else "all",
    ]


def share(found: Mapping[str, Any], name: str) -> str:
    """Write a score with its 95 % interval, where it has one that tells anything."""
    if without_interval(found, name):
        return f"{found[name]:.1%}"
    return f"{found[name]:.1%} ({found['low']:.1%} to {found['high']:.1%})"


def without_interval(found: Mapping[str, Any], name: str) -> bool:
    """Whether the interval is the score itself, as if there could be no other."""
    return bool(found["low"] == found["high"] == found[name])


def missing_intervals(tasks: Mapping[str, Any]) -> list[str]:
    """Say why some scores have no interval, if some have none."""
    if any(
        without_interval(one[dtype][way], TASKS[name].metric)
        for name, one in tasks.items()
        for dtype in DTYPES
        for way in ("plain", "draft")
    ):
        return [
            "",
            "A score without an interval is the same whichever of the texts are drawn anew, as "
            "where nothing is right in any of them: that does not tell how far off it may be.",
        ]
    return []


def verdict(parts: list[Mapping[str, Any]]) -> str:
    """Say whether drafts changed anything in float32."""
    number = sum(part["identical"][1] for part in parts)
    apart = [parting for part in parts for parting in part["partings"]]
    if not apart:
        return (
            f"In float32 all {number} texts are the target's own, token by token, and so is every "
            "score."
        )
    near = sum(parting["near_tie"] for parting in apart)
    return (
        f"In float32 {len(apart)} of {number} texts are not the target's own, {near} of them from "
        "a near-tie on."
    )


def note(name: str, one: Mapping[str, Any]) -> str:
    """Say what was asked of a task, and what else is known of its answers."""
    alone = one["float32"]["plain"]
    others = ", ".join(
        f"{other} {alone[other]:.1%}"
        if isinstance(alone[other], float)
        else f"{other} {alone[other]} of {alone['total']}"
        for other in TASKS[name].others
    )
    apart = one["bfloat16"]["partings"]
    near = sum(parting["near_tie"] for parting in apart)
    return (
        f"{name}: draft {one['draft']} ({one['draft_vocab_size']:,} rows); {one['prompts']} "
        f"prompts of {one['data']} ({one['data_fingerprint'][:16]}), each behind {one['shots']} "
        f"conversations of the training part, {one['longer']} of more than "
        f"{one['max_prompt_tokens']:,} tokens passed over; at most {one['max_new_tokens']} new "
        f"tokens, which cut {one['float32']['cut']} answers short. The target alone, in float32: "
        f"{others}. In bfloat16 {len(apart)} texts part, {near} of them at near-ties."
    )


def draw(found: Mapping[str, Any]) -> Any:
    """Draw the scores alone and with the draft, and the acceptance length, by task and dtype."""
    from matplotlib.figure import Figure

    cells = {
        f"{name}, {dtype}": (TASKS[name].metric, one[dtype])
        for name, one in found["tasks"].items()
        for dtype in DTYPES
    }
    figure = Figure(figsize=(9, 1.6 + 0.5 * len(cells)), layout="constrained")
    scores, lengths = figure.subplots(1, 2, sharey=True)
    for way, label, shift in (("plain", "alone", -0.12), ("draft", "with the draft", 0.12)):
        spans = [
            (part[way][metric], part[way]["low"], part[way]["high"])
            for metric, part in cells.values()
        ]
        # An interval by drawing anew may leave the score itself out.
        below = [max(0.0, score - low) for score, low, _ in spans]
        above = [max(0.0, high - score) for score, _, high in spans]
        values = [score for score, _, _ in spans]
        heights = [place + shift for place in range(len(cells))]
        scores.errorbar(values, heights, xerr=[below, above], fmt="o", capsize=2, label=label)
    taken = [part["acceptance_length"] for _, part in cells.values()]
    reached = [one["acceptance_length"] if one else 0 for one in taken]
    lengths.barh(range(len(cells)), reached, height=0.5)
    scores.set_yticks(range(len(cells)), list(cells))
    scores.invert_yaxis()
    scores.set_xlim(-0.02, 1.02)
    scores.set_xlabel("score and 95 % interval")
    lengths.set_xlabel("acceptance length")
    for axes in (scores, lengths):
        axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return figure
