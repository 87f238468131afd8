"""`vtrim train`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_shared import (
    MODEL_NAME,
    AsJson,
    Debug,
    Dtype,
    Quiet,
    answers_mistakes,
    check_output,
    folder_written_whole,
    no_bars,
    remarks,
    show,
)
from .named_models import NamedModel

if TYPE_CHECKING:
    from .training_step import TrainedDraft


@answers_mistakes
def train(
    target: Annotated[str, typer.Argument(help=f"The target: {MODEL_NAME}.")],
    data: Annotated[
        str, typer.Argument(help="Chat data, the target's own answers best: a file, folder or id.")
    ],
    vocabulary: Annotated[
        Path | None,
        typer.Option(help="For a new draft: folder that `vtrim search` wrote; `full`: all ids."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")] = Path(
        "draft"
    ),
    eval_: Annotated[
        str | None,
        typer.Option("--eval", help="Held-out chat data; 5 % of the data if not given."),
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="A draft to train on; its vocabulary stays.")
    ] = None,
    regenerate: Annotated[
        bool,
        typer.Option(
            "--regenerate",
            help="Let the target answer the prompts first; the user's cache keeps its answers.",
        ),
    ] = False,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer (with --regenerate), 256.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Prompts to answer at most (with --regenerate).")
    ] = None,
    answer_batch_size: Annotated[
        int | None, typer.Option(min=1, help="Prompts answered at once (with --regenerate), 16.")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the data, 10; with --minutes, no end.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Stop in this time, with features and answers (half of it at most); "
            "calibrating comes on top."
        ),
    ] = None,
    layers: Annotated[
        tuple[int, int, int] | None,
        typer.Option(help="Which of the target's hidden states are read, 3 ascending numbers."),
    ] = None,
    mlp_width: Annotated[
        int | None, typer.Option(min=1, help="Width of a new draft's MLP; the target's.")
    ] = None,
    unroll: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens drafted in a row while training: 4 on a CPU, 7 on a GPU."
        ),
    ] = None,
    unroll_warmup: Annotated[
        float | None,
        typer.Option(
            help="Share of the training, at first, with half of --unroll: 0.6; with --from 0."
        ),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Highest one, 0.001.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Conversations a step and device, 8.")
    ] = None,
    accumulate: Annotated[
        int | None, typer.Option(min=1, help="Batches whose gradients are summed, 1.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of a conversation at most, 2048.")
    ] = None,
    feature_cache: Annotated[
        str,
        typer.Option(help="Folder of the target's features, `auto` or `none` (anew each time)."),
    ] = "auto",
    split: Annotated[
        str | None, typer.Option(help="Split of a data set that has several.")
    ] = None,
    draft_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens drafted a round; the search's choice if it made one."),
    ] = None,
    calibration_prompts: Annotated[
        int,
        typer.Option(min=0, help="Held-out prompts to fit the draft's confidence on; 0: none."),
    ] = 16,
    dtype: Annotated[Dtype, typer.Option(help="Of the draft's weights.")] = Dtype.bfloat16,
    target_dtype: Annotated[
        Dtype | None, typer.Option(help="Of the target's weights; the saved one if not given.")
    ] = None,
    bf16: Annotated[
        bool | None, typer.Option("--bf16/--no-bf16", help="Compute in bfloat16, where it pays.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of weights and order.")] = 42,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Log for TensorBoard, in OUTPUT.tensorboard.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on after an interruption.")
    ] = True,
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Leave the checkpoints in place.")
    ] = False,
    json_: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Train a draft that reads the target's hidden states (EAGLE-3) on chat data of a domain.

    Example: `vtrim train smollm2 answers.jsonl --vocabulary search -o draft`

    In an hour, the target's own words: `vtrim train smollm2 prompts.jsonl --vocabulary search
    --regenerate --minutes 60`

    Run again after an interruption with the same arguments, it goes on where it was; with more
    minutes, too, unless the target answers first: other minutes with --regenerate are another
    training, from its first step on. The target's answers and features stay in the user's cache
    (`~/.cache/vtrim_hf`, or `$VTRIM_CACHE`), or in the folder of --feature-cache, where trainings
    with other arguments find them.
    """
    from .training_step import train_draft
    from .training_workplace import tensorboard_folder

    check_output(output, folder=True)
    if not regenerate and {max_new_tokens, limit, answer_batch_size} != {None}:
        raise ValueError(
            "--max-new-tokens, --limit and --answer-batch-size are for --regenerate: add it"
        )
    if minutes is not None and not math.isfinite(minutes):
        raise ValueError(f"--minutes must be a number, got {minutes}: leave it out for no limit")
    if epochs is not None and epochs <= 0:
        raise ValueError(f"--epochs must be more than 0, got {epochs}")
    settings: dict[str, Any] = {
        "num_train_epochs": epochs,
        "max_minutes": minutes,
        "unroll_steps": unroll,
        "unroll_warmup": unroll_warmup,
        "learning_rate": learning_rate,
        "per_device_train_batch_size": batch_size,
        "gradient_accumulation_steps": accumulate,
        "max_length": max_length,
        "feature_cache": None if feature_cache == "none" else feature_cache,
        "regenerate": regenerate,
        "regenerate_tokens": max_new_tokens,
        "regenerate_limit": limit,
        "regenerate_batch_size": answer_batch_size,
        "bf16": bf16,
        "seed": seed,
        "report_to": "tensorboard" if tensorboard else None,
    }
    if tensorboard:
        _remark(f"logs for TensorBoard go to {tensorboard_folder(output)}")
    judge = NamedModel(target)
    if regenerate:
        from .training_answers import answers_folder

        _remark(f"the target's answers are kept in {answers_folder(settings['feature_cache'])}")
    with no_bars():
        trained = train_draft(
            judge,
            data,
            output,
            vocabulary=vocabulary,
            start=None if from_ is None else NamedModel(from_),
            evaluation=eval_,
            layers=layers,
            mlp_width=mlp_width,
            split=split,
            target_dtype="auto" if target_dtype is None else str(target_dtype),
            dtype=str(dtype),
            draft_length=draft_length,
            calibration_prompts=calibration_prompts,
            resume=resume,
            settings=settings,
            progress=not quiet,
            on_resumed=lambda step: remarks.print(f"going on from step {step}"),
            on_begun_anew=_tell_of_a_new_begin,
            on_evaluation=None if quiet else lambda line: remarks.print(line, markup=False),
        )
        _leave_the_others()
        if not trained.is_main:
            return
        if trained.draft is None:
            _remark(f"{output} holds this draft already; --no-resume trains it anew")
        else:
            _save(trained, judge, output)
    if not keep_checkpoints:
        trained.clean_up()
    _tell_of_others(output, trained.workplace)
    _show(trained.report, output, json_)


def _save(trained: TrainedDraft, target: NamedModel, output: Path) -> None:
    from .training_ending import save_trained

    with folder_written_whole(output) as folder:
        save_trained(trained.draft, target.tokenizer, trained.report, folder)


def _leave_the_others() -> None:
    """End this process's part in a training of several: left open, it may abort at its exit."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _tell_of_a_new_begin(left: list[Path]) -> None:
    _remark(
        f"this training begins anew: what is in {', '.join(map(str, left))} goes on with other "
        "arguments only, among them --bf16 and --unroll, which the machine decides where they are "
        "not given, and the number of processes"
    )


def _tell_of_others(output: Path, workplace: Path) -> None:
    from .training_workplace import left_by_others

    left = left_by_others(output, workplace)
    if left:
        _remark(
            f"trainings with other arguments left {sum(left.values()) / 1e6:,.1f} MB here, "
            f"to go on from with those arguments; else delete {', '.join(map(str, left))}"
        )


def _remark(text: str) -> None:
    remarks.print(text, markup=False, soft_wrap=True)


def _show(report: dict[str, Any], output: Path, as_json: bool) -> None:
    best = report["best"] or {}
    facts: dict[str, Any] = {
        "output": str(output),
        "acceptance_length": best.get("acceptance_length"),
        "acceptance": next(
            (p["acceptance"] for p in report["evaluations"] if p["step"] == best.get("step")), []
        ),
        "best_step": best.get("step"),
        "steps": report["curve"][-1]["step"] if report["curve"] else None,
        "sequences": report["data"]["train"]["sequences"],
        "tokens_seen": report["tokens_seen"],
        "masked_share": report["masked_share"],
        "minutes": {part: round(s / 60, 2) for part, s in report["seconds"].items()},
        "vocabulary": report["fingerprints"]["vocabulary"],
    }
    skipped = (report.get("calibration") or {}).get("skipped")
    if skipped:
        _remark(f"the draft's confidence is not calibrated: {skipped}")
    said = {
        **facts,
        "acceptance": " ".join(f"{share:.3f}" for share in facts["acceptance"]),
        "minutes": ", ".join(f"{part} {spent}" for part, spent in facts["minutes"].items()),
    }
    show(facts, [{"": name, "value": value} for name, value in said.items()], as_json)
