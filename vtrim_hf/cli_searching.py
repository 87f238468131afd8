"""What the options of `vtrim search` stand for: costs, acceptance, floors, and what is told."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from .cli_shared import name_and_value, remarks
from .named_models import NamedModel


class Method(StrEnum):
    """How the search finds the size."""

    exact = "exact"
    tpe = "tpe"


class Body(StrEnum):
    """Which draft's latency the search weighs."""

    eagle3 = "eagle3"
    standalone = "standalone"


class Objective(StrEnum):
    """What the search maximises."""

    utility = "utility"
    throughput = "throughput"


class Cost(StrEnum):
    """What the latency of a draft step is counted in."""

    flops = "flops"
    bytes = "bytes"
    measured = "measured"


def floors_of(floor: list[str] | None) -> dict[str, float] | None:
    """Return the least coverages by domain."""
    if not floor:
        return None
    floors = {}
    for text in floor:
        name, share = name_and_value(text, "--floor", "NAME=SHARE")
        try:
            floors[name] = float(share)
        except ValueError:
            raise ValueError(f"--floor takes a share from 0 to 1, got {text!r}") from None
    return floors


def decoding_of(
    objective: Objective, target: NamedModel, report: Path | None, acceptance: str | None
) -> Any:
    """Make the decoding model that the objective needs; None for utility."""
    from .decoding_step import make_decoding

    if objective is Objective.utility:
        if report is not None or acceptance is not None:
            raise ValueError("--report and --acceptance are for --objective throughput: add it")
        return None
    if (report is None) == (acceptance is None):
        raise ValueError(
            "--objective throughput needs to know how many draft tokens are accepted: name "
            "--report decode_report.json (of `vtrim measure`), or else --acceptance 0.8,0.75,0.7"
        )
    if acceptance is None:
        return make_decoding(target, report=report)
    try:
        rates = [float(rate) for rate in acceptance.split(",")]
    except ValueError:
        raise ValueError(
            f"--acceptance takes shares with commas between, such as 0.8,0.75, got {acceptance!r}"
        ) from None
    remarks.print(f"timing {target}", markup=False)
    return make_decoding(target, acceptance=rates)


def expectations_of(expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is told of the expected tokens a second."""
    part = expected["judged_on"]
    trimmed = expected["trimmed"]
    return {
        "advice": expected["advice"],
        "draft_length": expected["chosen"]["draft_length"],
        "judged_on": part,
        "speedup": expected["chosen"][part]["speedup"],
        "speedup_interval": list(expected["interval"]),
        "speedup_trimmed": None if trimmed is None else trimmed[part]["speedup"],
        "speedup_whole_head": expected["full"][part]["speedup"],
        "plain_tokens_per_second": expected["plain"]["tokens_per_second"],
    }


def latency_of(
    body: Body | None,
    cost: Cost,
    target: NamedModel,
    draft: str | None,
    *,
    layers: int | None,
    mlp_width: int | None,
) -> Any:
    """Make the cost model: of the EAGLE-3 body for a target, or of a draft that is to be cut."""
    from .steps import make_latency

    if draft is None:
        if body is Body.standalone or layers is not None:
            raise ValueError(
                "--body standalone and --layers need the draft that is to be cut: name it with "
                "--draft"
            )
        remarks.print("weighing the EAGLE-3 body; name --draft to weigh a draft that is cut")
        return make_latency(target, cost=cost.value, mlp_width=mlp_width)
    if body is Body.eagle3 or mlp_width is not None:
        raise ValueError(
            "--body eagle3 and --mlp-width are about a draft that is made for the target: leave "
            "--draft out"
        )
    remarks.print(f"weighing the draft {draft}", markup=False)
    return make_latency(target, NamedModel(draft), cost=cost.value, layers=layers)
