"""`vtrim trim` and `vtrim measure`."""

from __future__ import annotations

import itertools
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

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
    load,
    name_and_value,
    out,
    remarks,
    show,
    write_plot,
)


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
        int | None, typer.Option(min=1, help="Tokens drafted a round (stored with the draft).")
    ] = None,
    json_: AsJson = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Cut the head of a small model to a vocabulary; nothing is trained.

    Example: `vtrim trim Qwen/Qwen2.5-0.5B-Instruct search --target Qwen/Qwen2.5-3B-Instruct`
    """
    from . import DraftVocabulary, TrimmedDraftForCausalLM
    from .vocabulary import tokenizer_fingerprint

    check_output(output, folder=True)
    kept = DraftVocabulary.load(vocabulary)
    width = load("config", target).get_text_config().vocab_size
    if kept.vocab_size != width:
        raise ValueError(
            f"the vocabulary in {vocabulary} is for a target of width {kept.vocab_size}, {target} "
            f"has {width}: count and search again with --target {target}"
        )
    tokenizer = load("tokenizer", target)
    for role, name in (("target", target), ("draft", draft)):
        found = tokenizer_fingerprint(load("tokenizer", name))
        if kept.tokenizer_hash not in (None, found):
            raise ValueError(
                f"the vocabulary is of the tokenizer {str(kept.tokenizer_hash)[:12]}, the {role} "
                f"{name} has {found[:12]}: target, draft and counts must share one tokenizer"
            )
    small = load("model", draft, dtype=str(dtype))
    made = TrimmedDraftForCausalLM.from_draft_model(small, kept, layers=layers)
    if draft_length is not None:
        made.generation_config.num_assistant_tokens = draft_length
    with folder_written_whole(output) as folder:
        made.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    facts = {
        "output": str(output),
        "k": made.config.draft_vocab_size,
        "vocab_size": made.config.vocab_size,
        "parameters": made.num_parameters(),
        "fingerprint": kept.fingerprint,
    }
    show(facts, [{"": name, "value": value} for name, value in facts.items()], json_)


@answers_mistakes
def measure(
    target: Annotated[str, typer.Argument(help=f"The target: {MODEL_NAME}.")],
    draft: Annotated[str, typer.Argument(help="Folder or Hub id of the draft.")],
    prompts: Annotated[str, typer.Argument(help="Chat data; its last user turns are prompts.")],
    compare: Annotated[
        list[str] | None, typer.Option(help="Another draft, NAME=FOLDER; repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for report and plot.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of prompts.")] = 20,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens generated a prompt.")] = 128,
    draft_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens drafted a round; each draft's own if not given."),
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
    """
    from .measuring import NoGainWarning, measure_decoding

    check_output(output, folder=True)
    others: dict[str, str] = {}
    for text in compare or ():
        name, path = name_and_value(text, "--compare", "NAME=FOLDER")
        if others.setdefault(name, path) != path:
            raise ValueError(f"--compare names {name} twice: give each draft a name of its own")
    tokenizer = load("tokenizer", target)
    number_format = str(dtype)
    with warnings.catch_warnings():
        # Said by the table's notes and the exit code, not by a line of source.
        warnings.simplefilter("ignore", NoGainWarning)
        report = measure_decoding(
            load("model", target, dtype=number_format),
            load("model", draft, dtype=number_format),
            _prompts(prompts, tokenizer, limit),
            tokenizer=tokenizer,
            compare={
                name: load("model", path, dtype=number_format) for name, path in others.items()
            },
            max_new_tokens=max_new_tokens,
            num_assistant_tokens=draft_length,
            progress=not quiet,
        )
    if json_:
        sys.stdout.write(report.to_json() + "\n")
    else:
        out.print(report.table(), markup=False, soft_wrap=True)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        report.save(output / "decode_report.json")
        write_plot(report, output / "decode_report.png")
    if min_speedup is not None and report.speedup < min_speedup:
        remarks.print(
            f"goal missed: speed-up {report.speedup:.3f}, asked for at least {min_speedup}",
            style="red",
        )
        raise typer.Exit(1)


def _prompts(data: str, tokenizer: Any, limit: int) -> list[list[int]]:
    """Read the first prompts of chat data, as ids in the target's own rendering."""
    from .chat_data import open_chat_data
    from .chat_rendering import ChatRenderer
    from .prompt_reading import PromptReader

    reader = PromptReader(open_chat_data(data), ChatRenderer(tokenizer), sys.maxsize, strict=False)
    found = (prompt for prompt in reader if prompt is not None)
    prompts = [list(prompt.ids) for prompt in itertools.islice(found, limit)]
    if not prompts:
        raise ValueError(f"{data} holds no prompt; the first rows: {reader.skipped}")
    return prompts
