"""`vtrim count` and `vtrim search`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_shared import (
    MODEL_NAME,
    AsJson,
    Debug,
    Quiet,
    Target,
    answers_mistakes,
    check_output,
    folder_written_whole,
    name_and_value,
    remarks,
    show,
    write_plot,
)
from .named_models import NamedModel


class Method(StrEnum):
    """How the search finds the size."""

    exact = "exact"
    tpe = "tpe"


class Body(StrEnum):
    """Which draft's latency the search weighs."""

    eagle3 = "eagle3"
    standalone = "standalone"


class Cost(StrEnum):
    """What the latency of a draft step is counted in."""

    flops = "flops"
    bytes = "bytes"
    measured = "measured"


@answers_mistakes
def count(
    data: Annotated[
        list[str] | None,
        typer.Argument(help="JSON lines, Parquet, folders or Hub ids of chat data."),
    ] = None,
    target: Target = "smollm2",
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path(
        "counts.safetensors"
    ),
    domain: Annotated[
        list[str] | None, typer.Option(help="Count NAME=DATA as a domain of its own; repeatable.")
    ] = None,
    from_target: Annotated[
        bool, typer.Option("--from-target", help="Let the target answer; count its own words.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(help="Prompts to answer at most (with --from-target).")
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="Longest answer in tokens (with --from-target).")
    ] = 256,
    batch_size: Annotated[
        int, typer.Option(help="Prompts answered at once (with --from-target).")
    ] = 16,
    split: Annotated[
        str | None, typer.Option(help="Split of a data set that has several.")
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Count this column's text.")] = None,
    heldout: Annotated[float, typer.Option(help="Share of conversations kept apart.")] = 0.2,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at a malformed row.")] = False,
    json_: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Count the tokens that the target must say in chat data.

    Example: `vtrim count train.jsonl --target smollm2 -o counts.safetensors`

    Domains: `vtrim count --domain sql=sql.jsonl --domain math=math.jsonl --target smollm2`

    The target's own words: `vtrim count train.jsonl --target smollm2 --from-target --limit 500`
    """
    from .steps import Answering, count_domains

    check_output(output, folder=False)
    if from_target and text_column is not None:
        raise ValueError(
            "--text-column counts text as it stands, with --from-target the target's answers "
            "count: leave one of them out"
        )
    skipped: list[Any] = []
    counts = count_domains(
        _sources(data, domain),
        NamedModel(target),
        answering=Answering(output, limit, max_new_tokens, batch_size) if from_target else None,
        split=split,
        text_column=text_column,
        heldout=heldout,
        strict=strict,
        progress=not quiet,
        on_skipped=skipped.append,
    )
    counts.save(output)
    for row in skipped:
        remarks.print(f"skipped {row}", style="yellow", markup=False)
    rows = [
        {
            "domain": name,
            "shapes": counts.shapes[name],
            "conversations": counts.conversations("all", name),
            "search_tokens": counts.total("search", name),
            "heldout_tokens": counts.total("heldout", name),
            "distinct_ids": int((counts.array("all", name) > 0).sum()),
        }
        for name in counts.domains
    ]
    facts = {"output": str(output), "fingerprint": counts.fingerprint, "domains": rows}
    show({**facts, "skipped_rows": max(len(skipped), counts.skipped.number)}, rows, json_)


@answers_mistakes
def search(
    counts_file: Annotated[Path, typer.Argument(help="What `vtrim count` wrote.")],
    target: Target = "smollm2",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")] = Path(
        "search"
    ),
    body: Annotated[
        Body | None,
        typer.Option(help="Which draft's latency is weighed: with --draft that, else eagle3."),
    ] = None,
    draft: Annotated[str | None, typer.Option(help=f"The standalone draft: {MODEL_NAME}.")] = None,
    layers: Annotated[int | None, typer.Option(help="First layers of the draft only.")] = None,
    cost: Annotated[Cost, typer.Option(help="What latency is counted in.")] = Cost.flops,
    alpha: Annotated[
        float | None, typer.Option(help="Weight of coverage against latency, 0.5 if not given.")
    ] = None,
    min_coverage: Annotated[float, typer.Option(help="Least coverage of all tokens.")] = 0.0,
    floor: Annotated[
        list[str] | None, typer.Option(help="Least coverage of a domain, NAME=SHARE; repeatable.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="Text whose tokens must stay; repeatable.")
    ] = None,
    k_min: Annotated[
        int | None, typer.Option(help="Smallest vocabulary, 50 if not given.")
    ] = None,
    k_max: Annotated[int | None, typer.Option(help="Largest vocabulary.")] = None,
    method: Annotated[
        Method | None, typer.Option(help="How the size is found, exact if not given.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Trials of the TPE method.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the TPE method.")] = 42,
    storage: Annotated[
        str | None, typer.Option(help="Optuna storage URL, to go on with a study.")
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's settings: TPE, nothing required.")
    ] = False,
    json_: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Choose the vocabulary: most coverage for least latency.

    Example: `vtrim search counts.safetensors --target smollm2 --min-coverage 0.97 -o search`

    For a cut draft: `vtrim search counts.safetensors --target ID --body standalone --draft ID`
    """
    from .steps import search_counts
    from .token_counts import TokenCounts

    check_output(output, folder=True)
    counts = TokenCounts.load(counts_file)
    judge = NamedModel(target)
    result = search_counts(
        counts,
        judge,
        _latency(body, cost, judge, draft, layers),
        keep=keep or (),
        preset="paper" if paper else None,
        alpha=alpha,
        min_coverage=min_coverage,
        domain_floors=_floors(floor),
        k_min=k_min,
        k_max=k_max,
        method=method and method.value,
        trials=trials,
        seed=seed,
        storage=storage,
        progress=not quiet,
    )
    with folder_written_whole(output) as folder:
        result.save(folder / "search.json")
        result.vocabulary.save(folder)
        write_plot(result, folder / "search.png")
    facts = {
        "output": str(output),
        "k": result.k,
        "share_of_vocabulary": result.k / result.vocabulary.vocab_size,
        "coverage": result.coverage,
        "heldout_coverage": result.heldout_coverage,
        "heldout_interval": list(result.heldout_interval or ()),
        "reduction": result.reduction,
        "utility": result.utility,
        "gap_to_exact": result.gap_to_exact,
        "fingerprint": result.vocabulary.fingerprint,
    }
    show(facts, [{"": name, "value": value} for name, value in facts.items()], json_)


def _sources(data: list[str] | None, domain: list[str] | None) -> list[tuple[str, str]]:
    sources = [("default", path) for path in data or ()]
    sources += [name_and_value(text, "--domain", "NAME=DATA") for text in domain or ()]
    if not sources:
        raise ValueError("no data given: name files, folders or Hub ids, or --domain NAME=DATA")
    return sources


def _floors(floor: list[str] | None) -> dict[str, float] | None:
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


def _latency(
    body: Body | None, cost: Cost, target: NamedModel, draft: str | None, layers: int | None
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
        return make_latency(target, cost=cost.value)
    if body is Body.eagle3:
        raise ValueError("--body eagle3 is made for the target alone: leave --draft out")
    remarks.print(f"weighing the draft {draft}", markup=False)
    return make_latency(target, NamedModel(draft), cost=cost.value, layers=layers)
