"""`vtrim count` and `vtrim search`."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

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
    load,
    name_and_value,
    remarks,
    show,
    write_plot,
)


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
    from .chat_data import open_chat_data
    from .target_answers import answer_with_target
    from .token_counts import TokenCounts

    check_output(output, folder=False)
    if from_target and text_column is not None:
        raise ValueError(
            "--text-column counts text as it stands, with --from-target the target's answers "
            "count: leave one of them out"
        )
    sources = _sources(data, domain)
    for _, source in sources:
        open_chat_data(source, split=split)  # so that a wrong name is noticed before any work
    tokenizer = load("tokenizer", target)
    width = load("config", target).get_text_config().vocab_size
    model = load("model", target, dtype="auto") if from_target else None
    parts, skipped = [], []
    for name, source in sources:
        counted: Any = source
        if model is not None:
            # The answers stay beside the counts: they are what a draft is trained on, too.
            in_file_name = re.sub(r"[^\w.-]+", "-", name)
            counted = answer_with_target(
                model,
                tokenizer,
                source,
                output.with_name(f"{output.stem}.{in_file_name}.answers.jsonl"),
                limit=limit,
                max_new_tokens=max_new_tokens,
                batch_size=batch_size,
                split=split,
                strict=strict,
                progress=not quiet,
            )
            skipped += counted.skipped
        parts.append(
            TokenCounts.from_dataset(
                {name: counted},
                tokenizer,
                vocab_size=width,
                heldout=heldout,
                split=None if from_target else split,
                text_column=text_column,
                strict=strict,
                progress=not quiet,
            )
        )
    counts = TokenCounts.merge(*parts)
    counts.save(output)
    skipped += counts.skipped
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
    from .required_tokens import required_token_ids
    from .search import search_vocabulary
    from .token_counts import TokenCounts
    from .vocabulary import tokenizer_fingerprint

    check_output(output, folder=True)
    counts = TokenCounts.load(counts_file)
    tokenizer = load("tokenizer", target)
    found = tokenizer_fingerprint(tokenizer)
    if counts.tokenizer_hash not in (None, found):
        raise ValueError(
            f"the counts are of the tokenizer {str(counts.tokenizer_hash)[:12]}, {target} has "
            f"{found[:12]}: count again with --target {target}"
        )
    latency = _latency(body, cost, target, draft, layers)
    required: Any = required_token_ids(
        tokenizer,
        load("generation_config", target),
        extra=keep or (),
        vocab_size=counts.vocab_size,
    )
    given: dict[str, Any] = {
        "alpha": alpha,
        "k_min": k_min,
        "k_max": k_max,
        "method": method and method.value,
    }
    result = search_vocabulary(
        counts,
        latency,
        # The paper requires nothing; what the user asks for is then refused, not dropped.
        required=(required if keep else ()) if paper else required,
        min_coverage=min_coverage,
        domain_floors=_floors(floor),
        preset="paper" if paper else None,
        trials=trials,
        seed=seed,
        storage=storage,
        progress=not quiet,
        **{name: value for name, value in given.items() if value is not None},
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
    body: Body | None, cost: Cost, target: str, draft: str | None, layers: int | None
) -> Any:
    """Make the cost model: of the EAGLE-3 body for a target, or of a draft that is to be cut."""
    from . import DraftVocabulary, TrimmedDraftForCausalLM
    from .latency import LatencyModel

    config = load("config", target)
    kind: Literal["flops", "bytes"] = "bytes" if cost is Cost.bytes else "flops"
    if draft is None:
        if body is Body.standalone or cost is Cost.measured or layers is not None:
            raise ValueError(
                "--body standalone, --cost measured and --layers need the draft that is to be "
                "cut: name it with --draft"
            )
        remarks.print("weighing the EAGLE-3 body; name --draft to weigh a draft that is cut")
        return LatencyModel.eagle3(config, kind=kind)
    if body is Body.eagle3:
        raise ValueError("--body eagle3 is made for the target alone: leave --draft out")
    remarks.print(f"weighing the draft {draft}", markup=False)
    if cost is not Cost.measured:
        return LatencyModel.standalone(
            load("config", draft),
            kind=kind,
            vocab_size=config.get_text_config().vocab_size,
            num_hidden_layers=layers,
        )
    small = load("model", draft, dtype="auto")
    if layers is not None:
        rows = small.get_output_embeddings().out_features
        every = DraftVocabulary.from_ids(range(rows), vocab_size=rows)
        small = TrimmedDraftForCausalLM.from_draft_model(small, every, layers=layers)
    return LatencyModel.measured(small)
