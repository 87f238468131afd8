"""`vtrim count` and `vtrim search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_searching import (
    Body,
    Cost,
    Method,
    Objective,
    decoding_of,
    expectations_of,
    floors_of,
    latency_of,
)
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
    mlp_width: Annotated[
        int | None,
        typer.Option(min=1, help="Width of the EAGLE-3 body's MLP, if not the target's."),
    ] = None,
    objective: Annotated[
        Objective, typer.Option(help="Weigh coverage and latency, or expect tokens a second.")
    ] = Objective.utility,
    report: Annotated[
        Path | None, typer.Option(help="Throughput: decode report of a draft of this kind.")
    ] = None,
    acceptance: Annotated[
        str | None,
        typer.Option(
            help="Throughput, without a report: by position, the share of draft tokens accepted "
            "if all before were, such as 0.8,0.75,0.7; the target is timed here."
        ),
    ] = None,
    cost: Annotated[
        Cost | None,
        typer.Option(
            help="What latency is counted in: flops, or with throughput measured, if not given."
        ),
    ] = None,
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
    """Choose the vocabulary: most coverage for least latency, or most tokens a second.

    Example: `vtrim search counts.safetensors --target smollm2 --min-coverage 0.97 -o search`

    For a cut draft: `vtrim search counts.safetensors --target ID --body standalone --draft ID`

    Size and draft length together, whether to trim, whether to draft:
    `vtrim search counts.safetensors --target ID --objective throughput --report report.json`
    """
    from .search_result import SEARCH_JSON
    from .steps import search_counts
    from .token_counts import TokenCounts

    check_output(output, folder=True)
    counts = TokenCounts.load(counts_file)
    judge = NamedModel(target)
    decoding = decoding_of(objective, judge, report, acceptance)
    usual = Cost.flops if decoding is None else Cost.measured
    result = search_counts(
        counts,
        judge,
        latency_of(body, cost or usual, judge, draft, layers=layers, mlp_width=mlp_width),
        objective=objective.value,
        decoding=decoding,
        keep=keep or (),
        preset="paper" if paper else None,
        alpha=alpha,
        min_coverage=min_coverage,
        domain_floors=floors_of(floor),
        k_min=k_min,
        k_max=k_max,
        method=method and method.value,
        trials=trials,
        seed=seed,
        storage=storage,
        progress=not quiet,
    )
    with folder_written_whole(output) as folder:
        result.save(folder / SEARCH_JSON)
        result.vocabulary.save(folder)
        write_plot(result, folder / "search.png")
    facts: dict[str, Any] = {
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
    if result.expected is not None:
        facts |= expectations_of(result.expected)
        if result.expected["beyond_measured"]:
            remarks.print(
                f"{result.draft_length} drafted tokens are more than the positions whose "
                "acceptance is known: the last one stands for the rest; measure longer drafts",
                style="yellow",
            )
        best = result.expected["trimmed"]
        if result.gap_to_exact and best is not None:
            remarks.print(
                f"of the {trials} trials the best is k={result.k:,}, the best cut head has "
                f"k={best['k']:,} and drafts {best['draft_length']}: the advice is about that "
                "one, which --method exact chooses",
                style="yellow",
            )
    show(facts, [{"": name, "value": value} for name, value in facts.items()], json_)


def _sources(data: list[str] | None, domain: list[str] | None) -> list[tuple[str, str]]:
    sources = [("default", path) for path in data or ()]
    sources += [name_and_value(text, "--domain", "NAME=DATA") for text in domain or ()]
    if not sources:
        raise ValueError("no data given: name files, folders or Hub ids, or --domain NAME=DATA")
    return sources
