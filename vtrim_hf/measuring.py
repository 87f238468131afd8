"""`measure_decoding`: what a draft gains on this machine, against the target alone and others.

Every way of decoding runs on every prompt, one prompt after the other and in turning order, so
that a machine that gets slower slows all of them. The models come back as they were given.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers.utils import logging

from .compatibility import check_pair
from .decode_report import MAIN, DecodeReport
from .decoding_meter import unwrapped
from .decoding_prompts import prepare_prompts, prompt_digest
from .decoding_runs import DecodingRuns
from .decoding_ways import DecodingWay, dtype_name, machine_facts, parse_dtype, plain_ways, ways
from .kept_ids import whole_number

_OWN_ARGUMENTS = {
    "inputs": "prompts",
    "input_ids": "prompts",
    "assistant_model": "draft or compare",
    "max_new_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "do_sample": "do_sample",
    "num_assistant_tokens": "num_assistant_tokens",
    "assistant_confidence_threshold": "assistant_confidence_threshold",
}


class NoGainWarning(UserWarning):
    """The draft does not make the target faster on these prompts and this machine."""


def measure_decoding(
    target: Any,
    draft: Any,
    prompts: Iterable[Any],
    *,
    tokenizer: Any = None,
    compare: Mapping[str, Any] | None = None,
    max_new_tokens: int = 128,
    do_sample: bool = False,
    generate_kwargs: Mapping[str, Any] | None = None,
    num_assistant_tokens: int | None = None,
    assistant_confidence_threshold: float | None = None,
    warmup: int = 1,
    repeats: int = 1,
    plain_dtypes: Sequence[str | torch.dtype] = ("float32", "bfloat16"),
    identity_dtype: str | torch.dtype | None = None,
    raw: bool = False,
    seed: int = 0,
    progress: bool = True,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    done: Iterable[Mapping[str, Any]] = (),
) -> DecodeReport:
    """Measure decoding with a draft against the target alone, and against any other drafts.

    The speed-up of a prompt is the tokens/s with the draft, the target in the dtype it has, over
    the tokens/s of the target alone in the fastest of `plain_dtypes` and its own dtype. For
    another dtype a copy of the target is made, which costs its memory; where it does not fit, or
    loses clearly on the first two prompts, it is left out and a note says so.

    The acceptance length is 1 + accepted draft tokens / verified drafts, over all prompts. A
    target forward that checked no draft token is no verification.

    Args:
        target: the model to be made faster.
        draft: its assistant model, of any kind; or a mapping of `generate` arguments, such as
            `{"prompt_lookup_num_tokens": 3}`.
        prompts: texts, conversations, token ids or model inputs, see `prepare_prompts`.
        tokenizer: needed for texts and conversations; also names the tokens a draft cannot say.
        compare: other drafts by name, each like `draft`.
        max_new_tokens: tokens generated for each prompt, unless it ends before.
        do_sample: whether to sample; identity is then not checked.
        generate_kwargs: further arguments of every `generate` call.
        num_assistant_tokens: draft length for every draft during the measurement; each draft's own
            if None.
        assistant_confidence_threshold: same for the confidence below which a draft stops.
        warmup: short calls of each kind before anything is timed.
        repeats: timed calls per prompt and kind; the median one is kept.
        plain_dtypes: dtypes in which the target alone is tried besides its own; `()` for its own
            only.
        identity_dtype: dtype in which greedy ids are compared with plain decoding; the target's
            own if None. In bfloat16 near-ties flip: "float32" then costs a copy and one more pass.
        raw: take texts as they are instead of as a user's message.
        seed: of sampling and of the bootstrap; torch's global random state is left as it was.
        progress: show a progress bar.
        on_row: called with each prompt's row once it is measured, so that it may be kept.
        done: rows of an interrupted measurement with the same arguments; their prompts are
            skipped.

    Returns:
        The report. Every draft's `generation_config` is as before, whatever its schedule did.

    Raises:
        TypeError: if a model or prompt is of a kind that cannot be measured.
        ValueError: if an argument is out of range, a prompt does not fit the target, or a trimmed
            draft was made for another width or tokenizer.

    Warns:
        NoGainWarning: if the median speed-up is not above 1; the text gives the reason.
    """
    for name, value, least in (
        ("max_new_tokens", max_new_tokens, 1),
        ("warmup", warmup, 0),
        ("repeats", repeats, 1),
        ("num_assistant_tokens", num_assistant_tokens, 1),
    ):
        if value is not None and whole_number(value, name) < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    model = unwrapped(target)
    run = DecodingRuns(
        model=model,
        kwargs=_checked_kwargs(generate_kwargs or {}),
        max_new_tokens=max_new_tokens,
        do_sample=do_sample,
        seed=seed,
        tokenizer=tokenizer,
    )
    inputs = prepare_prompts(
        prompts,
        tokenizer,
        raw=raw,
        device=model.device,
        max_positions=getattr(model.config.get_text_config(), "max_position_embeddings", None),
        max_new_tokens=max_new_tokens,
    )
    _check_ids(inputs, model.config.get_text_config().vocab_size)
    finished = {row["prompt"]: dict(row) for row in done}
    settings = {
        "max_new_tokens": max_new_tokens,
        "do_sample": do_sample,
        "generate_kwargs": json.loads(json.dumps(dict(generate_kwargs or {}), default=repr)),
        "warmup": warmup,
        "repeats": repeats,
        "plain_dtypes": [dtype_name(parse_dtype(dtype)) for dtype in plain_dtypes],
        "identity_dtype": dtype_name(parse_dtype(identity_dtype or model.dtype)),
        "raw": raw,
        "seed": seed,
    }
    with ExitStack() as stack:
        drafts = ways(
            target,
            {MAIN: draft, **_checked_names(compare or {})},
            num_assistant_tokens=num_assistant_tokens,
            assistant_confidence_threshold=assistant_confidence_threshold,
        )
        for way in drafts:
            # Greedy text stays right whatever a draft of another tokenizer says: nobody would see.
            if hasattr(getattr(way.draft, "config", None), "draft_vocab_size"):
                check_pair(model, way.draft, tokenizer=tokenizer)
        for way in drafts:
            stack.enter_context(way)
        assistants = [way.draft for way in drafts if way.draft is not None]
        stack.enter_context(_evaluating([model, *assistants]))
        plain, remarks = plain_ways(target, [parse_dtype(dtype) for dtype in plain_dtypes])
        reference = _reference(target, settings["identity_dtype"], plain)
        plain, more = run.probe(plain, inputs, warmup)
        remarks += more
        everything = [*plain, *drafts]
        for way in everything:
            run.warm_up(way, inputs[0], warmup)
        rows = []
        for index in logging.tqdm(range(len(inputs)), desc="measuring", disable=not progress):
            row = finished.get(index)
            if row is None:
                row = run.row(index, inputs[index], everything, reference, repeats)
                if on_row is not None:
                    on_row(row)
            elif row["digest"] != prompt_digest(inputs[index]["input_ids"]):
                raise ValueError(
                    f"the row done for prompt {index} belongs to another prompt: pass the rows of "
                    "a measurement with the same prompts, or none"
                )
            rows.append(row)
        report = DecodeReport.from_rows(
            rows,
            {way.name: way.facts for way in everything},
            settings=settings,
            machine=machine_facts(model),
            remarks=remarks,
        )
    if report.speedup <= 1:
        reason = next(note for note in report.notes if note.startswith(f"{MAIN}: no gain"))
        warnings.warn(reason, NoGainWarning, stacklevel=2)
    return report


def _check_ids(inputs: Sequence[Mapping[str, Any]], width: int) -> None:
    for number, one in enumerate(inputs):
        ids = one["input_ids"][0]
        wrong = ids[(ids < 0) | (ids >= width)].tolist()
        if wrong:
            raise ValueError(
                f"prompt {number} holds the id {wrong[0]}, but the target's ids lie in "
                f"[0, {width}): encode it with the target's own tokenizer"
            )


@contextmanager
def _evaluating(models: Iterable[Any]) -> Iterator[None]:
    training = [module for model in models for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _reference(target: Any, dtype: str, plain: Sequence[DecodingWay]) -> DecodingWay:
    """Return the plain decoding whose ids the others are compared with."""
    name = f"plain {dtype}"
    here = next((way for way in plain if way.name == name), None)
    if here is not None:
        return here
    made, notes = plain_ways(target, [parse_dtype(dtype)])
    if made[-1].name != name:
        raise ValueError(
            f"identity_dtype={dtype} needs a copy of the target in that dtype, but {notes[0]}: "
            "leave identity_dtype at None to compare in the target's own"
        )
    return made[-1]


def _checked_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    for name, instead in _OWN_ARGUMENTS.items():
        if name in kwargs:
            raise ValueError(
                f"generate_kwargs must not hold {name!r}, which is set for all entries at once: "
                f"use the argument {instead} of measure_decoding"
            )
    for name in ("num_beams", "num_return_sequences"):
        if (kwargs.get(name) or 1) > 1:
            raise ValueError(
                f"generate_kwargs has {name}={kwargs[name]}, but assisted decoding follows one "
                "text at a time: leave it out"
            )
    return dict(kwargs)


def _checked_names(compare: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in compare:
        if name == MAIN or name.startswith("plain"):
            raise ValueError(
                f"compare must not use the name {name!r}, which stands for {MAIN!r} and plain "
                "decoding in the report: choose another"
            )
    return compare
