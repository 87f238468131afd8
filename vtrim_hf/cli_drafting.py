"""`vtrim trim` and `vtrim measure`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .cli_shared import (
    MODEL_NAME,
    AsJson,
    Debug,
    Dtype,
    Quiet,
    Target,
    answers_mistakes,
    check_output,
    folder_written_whole,
    name_and_value,
    out,
    remarks,
    show,
    write_plot,
)
from .embedded_models import EMBEDDED
from .named_models import NamedModel


@answers_mistakes
def trim(
    draft: Annotated[str, typer.Argument(help=f"The small model to cut: {MODEL_NAME}.")],
    vocabulary: Annotated[Path, typer.Argument(help="Folder that `vtrim search` wrote.")],
    target: Target = "smollm2",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")] = Path(
        "draft"
    ),
    layers: Annotated[int | None, typer.Option(help="Keep the first layers only.")] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of the draft's weights.")] = Dtype.bfloat16,
    draft_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens drafted a round; the search's choice if it made one."),
    ] = None,
    json_: AsJson = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Cut the head of a small model to a vocabulary; nothing is trained.

    Example: `vtrim trim Qwen/Qwen2.5-0.5B-Instruct search --target Qwen/Qwen2.5-3B-Instruct`
    """
    from .steps import trim_draft

    check_output(output, folder=True)
    judge = NamedModel(target)
    made = trim_draft(
        NamedModel(draft),
        vocabulary,
        judge,
        layers=layers,
        dtype=str(dtype),
        draft_length=draft_length,
    )
    with folder_written_whole(output) as folder:
        made.save_pretrained(folder)
        judge.tokenizer.save_pretrained(folder)
    facts = {
        "output": str(output),
        "k": made.config.draft_vocab_size,
        "vocab_size": made.config.vocab_size,
        "parameters": made.num_parameters(),
        "fingerprint": made.config.vocabulary_fingerprint,
    }
    show(facts, [{"": name, "value": value} for name, value in facts.items()], json_)


@answers_mistakes
def measure(
    target: Annotated[str, typer.Argument(help=f"The target: {MODEL_NAME}.")],
    draft: Annotated[str, typer.Argument(help="Folder or Hub id of the draft.")],
    prompts: Annotated[str, typer.Argument(help="Chat data; its last user turns are prompts.")],
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a draft's Hub id.")
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Another draft, NAME=FOLDER; repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for report and plot.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of prompts.")] = 20,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens generated a prompt.")] = 128,
    draft_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens drafted a round; each draft's own if not given."),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Probability of being accepted, from 0 to 1, below which a round ends early, 0 "
            "never; each draft's own if not given.",
        ),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of the target beside a draft.")] = Dtype.float32,
    min_speedup: Annotated[
        float | None, typer.Option(help="Exit with 1 if the median speed-up is lower.")
    ] = None,
    json_: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Measure what a draft gains on this machine, against the target alone and other drafts.

    Example: `vtrim measure smollm2 draft test.jsonl --limit 20 -o report`

    A published draft of a branch, without rounds that end early:
    `vtrim measure smollm2 me/smollm2-drafts test.jsonl --revision sql --threshold 0`
    """
    from .steps import measure_draft, read_prompts

    check_output(output, folder=True)
    others: dict[str, str] = {}
    for text in compare or ():
        name, path = name_and_value(text, "--compare", "NAME=FOLDER")
        if others.setdefault(name, path) != path:
            raise ValueError(f"--compare names {name} twice: give each draft a name of its own")
    judge = NamedModel(target)
    named = NamedModel(draft, revision=revision)
    if revision is not None:
        if not revision.strip() or draft in EMBEDDED or Path(draft).exists():
            raise ValueError(
                "--revision is the branch, tag or commit of a draft on the Hub, got "
                f"{revision!r:.80} for {draft}: leave it out for a folder or an embedded model"
            )
        named.pin()  # what is not there is told before the target is loaded
    report = measure_draft(
        judge,
        named,
        read_prompts(prompts, judge.tokenizer, limit),
        compare={name: NamedModel(path) for name, path in others.items()},
        max_new_tokens=max_new_tokens,
        draft_length=draft_length,
        threshold=threshold,
        dtype=str(dtype),
        output=output,
        progress=not quiet,
        on_resumed=lambda done: remarks.print(f"going on: {done} prompts are measured already"),
    )
    if json_:
        sys.stdout.write(report.to_json() + "\n")
    else:
        out.print(report.table(), markup=False, soft_wrap=True)
    if output is not None:
        write_plot(report, output / "decode_report.png")
    if min_speedup is not None and report.speedup < min_speedup:
        remarks.print(
            f"goal missed: speed-up {report.speedup:.3f}, asked for at least {min_speedup}",
            style="red",
        )
        raise typer.Exit(1)
