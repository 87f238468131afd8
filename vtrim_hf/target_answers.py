"""The target answers the data's prompts itself, so that its own words can be counted.

A draft has to say what its target says, which is not what people wrote. The answers go to a JSON
lines file that `TokenCounts.from_dataset` reads: the very ids that the target said are in it,
through the end-of-turn token, so that nothing is tokenised a second time.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .answers_file import AnswersFile
from .batch_counting import SkippedRows
from .chat_data import open_chat_data
from .chat_rendering import ChatRenderer
from .model_hash import model_hash
from .prompt_reading import Prompt, PromptReader, unanswered, windows
from .vocabulary import tokenizer_fingerprint

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

_WINDOW = 16  # batches that are sorted by length together, so that little is padded


@dataclass(frozen=True)
class TargetAnswers:
    """What a run of `answer_with_target` did; iterating gives the rows with this run's answers.

    The file may hold answers to other prompts, too, from runs on other data or with no limit.

    Attributes:
        path: the file.
        answered: prompts that are answered in it.
        added: of these, by this run.
        tokens: ids in all answers.
        skipped: rows without a prompt that can be answered.
        prompts: hashes of this run's prompts; of one that was stopped, of those it came to.
        stopped: whether time was up before all prompts were answered; the same call goes on.
    """

    path: Path
    answered: int
    added: int
    tokens: int
    skipped: SkippedRows
    prompts: frozenset[str]
    stopped: bool = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self.path.open(encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                if row.get("prompt_hash") in self.prompts:
                    yield row


def answer_with_target(
    model: PreTrainedModel,
    tokenizer: Any,
    rows: object,
    output_path: str | os.PathLike[str],
    *,
    batch_size: int = 8,
    max_new_tokens: int = 512,
    do_sample: bool = False,
    generation_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    limit: int | None = None,
    seconds: float | None = None,
    chat_template: str | bool | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    split: str | None = None,
    strict: bool = False,
    progress: bool = True,
) -> TargetAnswers:
    """Let the target answer every prompt of chat data, and keep its answers in a file.

    A conversation that ends with an assistant turn is cut before that turn, and the target answers
    what is left; the data's earlier assistant turns stay as history. A conversation that ends
    otherwise is answered as it is. A prompt that occurs twice is answered once. Run again after a
    kill, with the same arguments, it goes on where it was: answers are written batch by batch, and
    each is known by its prompt's hash.

    Args:
        model: the target, in any dtype, on any device.
        tokenizer: the target's.
        rows: anything that `TokenCounts.from_dataset` reads, except a mapping of domains.
        output_path: JSON lines, appended to; it holds the answers in order of length, not of the
            data.
        batch_size: prompts at a time, padded on the left.
        max_new_tokens: longest answer; one that is cut off has no end-of-turn token and says so.
        do_sample: draw instead of taking the likeliest token; what the model's generation config
            says on temperature and the like then holds.
        generation_kwargs: further fields of the generation config.
        seed: of the drawing.
        limit: prompts at most.
        seconds: begin no further batch when this time is over; the first one is answered however
            little it is, so that every run gets on.
        chat_template: see `ChatRenderer`.
        template_kwargs: see `ChatRenderer`.
        split: of a data set that has several.
        strict: stop at the first row that cannot be answered.
        progress: show a bar on a terminal.

    Raises:
        ValueError: if the output file is something else or holds answers of another target,
            template or settings; or, when strict, at the first malformed row.

    Example:
        ```python
        answer_with_target(target, tokenizer, "chats.jsonl", "answers.jsonl", max_new_tokens=256)
        counts = TokenCounts.from_dataset("answers.jsonl", tokenizer)
        ```
    """
    if batch_size < 1 or max_new_tokens < 1:
        raise ValueError(
            f"batch_size and max_new_tokens must be at least 1, got {batch_size}, {max_new_tokens}"
        )
    from huggingface_hub.utils.tqdm import tqdm

    began = time.monotonic()
    renderer = ChatRenderer(
        tokenizer, chat_template=chat_template, template_kwargs=template_kwargs
    )
    config = _generation_config(model, tokenizer, max_new_tokens, do_sample, generation_kwargs)
    facts = _facts(model, tokenizer, renderer, config, seed)
    source = open_chat_data(rows, split=split)
    prompts = PromptReader(source, renderer, _longest_prompt(model, max_new_tokens), strict)
    added, stopped = 0, False
    bar: Any = tqdm(  # type: ignore[no-untyped-call]
        total=source.length, desc="answering", unit="row", disable=None if progress else True
    )
    with AnswersFile(Path(output_path), facts) as file, bar:
        asked: set[str] = set()
        new = unanswered(prompts, file.answered, asked, limit, bar)
        for batch in _batches(new, batch_size):
            if added and seconds is not None and time.monotonic() - began >= seconds:
                stopped = True
                break
            said = _generate(model, config, batch, seed)
            ends = _end_ids(config)
            file.add(
                [
                    _row(prompt, ids, tokenizer, ends, facts["tokenizer_hash"])
                    for prompt, ids in zip(batch, said, strict=True)
                ]
            )
            added += len(batch)
            bar.set_postfix(answers=added, refresh=False)
        else:
            file.finish()
        return TargetAnswers(
            Path(output_path),
            len(file.answered),
            added,
            file.tokens,
            prompts.skipped,
            frozenset(asked),
            stopped,
        )


def answering_settings(
    model: PreTrainedModel, tokenizer: Any, renderer: ChatRenderer, max_new_tokens: int
) -> dict[str, Any]:
    """Return what decides greedy answers besides weights and tokenizer, as their file tells it.

    Raises:
        ValueError: if the model has no generation config.
    """
    config = _generation_config(model, tokenizer, max_new_tokens, False, None)
    return _settings(model, renderer, config, seed=0)


def _batches(prompts: Iterator[Prompt], size: int) -> Iterator[list[Prompt]]:
    """Give prompts in batches of about the same length."""
    for window in windows(prompts, size * _WINDOW):
        window.sort(key=lambda prompt: (len(prompt.ids), prompt.key))
        yield from (window[at : at + size] for at in range(0, len(window), size))


def _generation_config(
    model: PreTrainedModel,
    tokenizer: Any,
    max_new_tokens: int,
    do_sample: bool,
    further: Mapping[str, Any] | None,
) -> GenerationConfig:
    """Give the target's own config, greedy unless asked otherwise; the model's stays as it is."""
    config = copy.deepcopy(model.generation_config)
    if config is None:
        raise ValueError("the model has no generation_config, so it cannot generate")
    config.update(max_new_tokens=max_new_tokens, max_length=None, do_sample=do_sample)
    if not do_sample:  # fields that only drawing reads would be warned about
        config.update(temperature=None, top_p=None, top_k=None, min_p=None, typical_p=None)
    unknown = config.update(**(further or {}))
    if unknown:
        raise ValueError(f"a generation config has no fields {', '.join(sorted(unknown))}")
    if config.eos_token_id is None:
        config.eos_token_id = tokenizer.eos_token_id
    if config.pad_token_id is None:
        ends = _end_ids(config)
        pad = tokenizer.pad_token_id
        config.pad_token_id = pad if pad is not None else min(ends, default=0)
    return config


def _end_ids(config: GenerationConfig) -> frozenset[int]:
    ids = config.eos_token_id
    return frozenset([] if ids is None else [ids] if isinstance(ids, int) else ids)


def _longest_prompt(model: PreTrainedModel, max_new_tokens: int) -> int:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return (positions or 1 << 30) - max_new_tokens


def _facts(
    model: PreTrainedModel,
    tokenizer: Any,
    renderer: ChatRenderer,
    config: GenerationConfig,
    seed: int,
) -> dict[str, Any]:
    """Describe what gives the answers; batch size and device are left out, for they should not."""
    settings = _settings(model, renderer, config, seed)
    tokenizer_hash = tokenizer_fingerprint(tokenizer)
    whole = json.dumps([settings, tokenizer_hash, model_hash(model)], sort_keys=True)
    return {
        "fingerprint": hashlib.sha256(whole.encode()).hexdigest(),
        "tokenizer_hash": tokenizer_hash,
        "settings": settings,
    }


def _settings(
    model: PreTrainedModel, renderer: ChatRenderer, config: GenerationConfig, seed: int
) -> dict[str, Any]:
    generation = {
        key: value
        for key, value in sorted(config.to_dict().items())
        if value is not None and key not in ("transformers_version", "_from_model_config")
    }
    settings: dict[str, Any] = {
        "dtype": str(model.dtype).removeprefix("torch."),
        "template": renderer.template_hash,
        "generation": json.loads(json.dumps(generation, default=repr)),
    }
    if config.do_sample:
        settings["seed"] = seed
    return settings


def _generate(
    model: PreTrainedModel,
    config: GenerationConfig,
    batch: list[Prompt],
    seed: int,
) -> list[list[int]]:
    """Answer one batch; returns each prompt's new ids, through the first that ends it."""
    prompts = [prompt.ids for prompt in batch]
    longest = max(map(len, prompts))
    pad = config.pad_token_id
    padded = [[pad] * (longest - len(ids)) + list(ids) for ids in prompts]
    real = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts]
    on = model.device
    with torch.no_grad(), torch.random.fork_rng(enabled=bool(config.do_sample)):
        if config.do_sample:  # the same batch draws the same, whatever was answered before it
            torch.manual_seed(seed + int(batch[0].key[:12], 16))
        output: Any = model.generate(  # type: ignore[operator]
            torch.tensor(padded, device=on),
            attention_mask=torch.tensor(real, device=on),
            generation_config=config,
        )
    ends = _end_ids(config)
    said = []
    for ids in output[:, longest:].tolist():
        stop = next((i + 1 for i, token in enumerate(ids) if token in ends), len(ids))
        said.append(ids[:stop])
    return said


def _row(
    prompt: Prompt, ids: list[int], tokenizer: Any, ends: frozenset[int], tokenizer_hash: str
) -> dict[str, Any]:
    finished = bool(ids) and ids[-1] in ends
    text = tokenizer.decode(ids[:-1] if finished else ids, skip_special_tokens=False)
    row: dict[str, Any]
    if prompt.context.messages:
        answer = {"role": "assistant", "content": text}
        row = {"messages": [*prompt.context.messages, answer]}
        if prompt.context.tools:
            row["tools"] = list(prompt.context.tools)
    else:
        row = {"prompt": (prompt.context.plain or ("", ""))[0], "completion": text}
    return {
        **row,
        "assistant_token_ids": ids,
        "finished": finished,
        "prompt_hash": prompt.key,
        "tokenizer_hash": tokenizer_hash,
    }
