"""The last of the `steps`: prompts out of chat data, and a measurement that survives a kill."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .confidence import CALIBRATION
from .named_models import NamedModel

if TYPE_CHECKING:
    from .decode_report import DecodeReport
    from .kept_rows import KeptRows
    from .prompt_reading import Prompt

REPORT_JSON = "decode_report.json"

_ROWS_FORMAT = 2
"""Part of the name of a file of measured rows: raise it when a row would be measured otherwise."""


class Loadable(Protocol):
    """A model that can be told apart before it is loaded."""

    @property
    def identity(self) -> str: ...
    def model(self, dtype: str) -> Any: ...


class FullDraft:
    """A small model with the target's whole vocabulary, rounded as the trimmed one; never saved.

    Args:
        draft: the small model.
        target: the model that verifies.
        layers: first layers of the small model only; None for all.
        dtype: that the trimmed draft is saved in.
        draft_length: tokens drafted a round; None for the library's default.
    """

    def __init__(
        self,
        draft: NamedModel,
        target: NamedModel,
        *,
        layers: int | None,
        dtype: str,
        draft_length: int | None,
    ) -> None:
        self._draft, self._target = draft, target
        self._layers, self._dtype, self._draft_length = layers, dtype, draft_length

    @property
    def identity(self) -> str:
        """A text that is the same for the same draft only."""
        cut = f"{self._layers}:{self._dtype}:{self._draft_length}"
        return f"full:{self._draft.identity}:{cut}"

    def model(self, dtype: str) -> Any:
        """Return the draft, in the dtype that is measured in."""
        import torch

        from .modeling_trimmed_draft import TrimmedDraftForCausalLM

        small = self._draft.model(self._dtype)
        made: Any = TrimmedDraftForCausalLM.from_draft_model(
            small, _every_id(self._target), layers=self._layers
        )
        if self._draft_length is not None:
            made.generation_config.num_assistant_tokens = self._draft_length
        return made.to(getattr(torch, dtype))


class ExtendedDraft:
    """A trained draft with the target's whole vocabulary; never saved.

    Its own rows stay as they are, the others are the target's, rounded as they.

    Args:
        draft: the trained draft, with an EAGLE-3 body.
        target: the model that it was trained for.
    """

    def __init__(self, draft: NamedModel, target: NamedModel) -> None:
        self._draft, self._target = draft, target

    @property
    def identity(self) -> str:
        """A text that is the same for the same draft only."""
        return f"extended:{self._draft.identity}:{self._target.identity}"

    def model(self, dtype: str) -> Any:
        """Return the draft, in the dtype that is measured in."""
        import torch

        trained = self._draft.model("auto")
        made: Any = trained.extend(_every_id(self._target), self._target.model(dtype))
        # Found for other rows, but both must end their drafts by one rule to be compared.
        calibration = getattr(trained.generation_config, CALIBRATION, None)
        setattr(made.generation_config, CALIBRATION, calibration)
        return made.to(getattr(torch, dtype))


def _every_id(target: NamedModel) -> Any:
    from .vocabulary import DraftVocabulary

    width = target.vocab_size
    return DraftVocabulary.from_ids(range(width), vocab_size=width, tokenizer=target.tokenizer)


def read_prompts(
    data: Any,
    tokenizer: Any,
    limit: int,
    *,
    split: str | None = None,
    without: Collection[str] = (),
    on_left_out: Callable[[int], None] | None = None,
) -> list[Any]:
    """Read the first prompts of chat data, as ids in the target's own rendering.

    Args:
        data: anything that `open_chat_data` opens.
        tokenizer: the target's.
        limit: prompts at most.
        split: of a data set that has several.
        without: prompts that are passed over, as `prompt_keys` gives them.
        on_left_out: called with the number of those that were met, if any.

    Returns:
        Lists of ids, at least one.

    Raises:
        ValueError: if there is no prompt; the text names the first rows.
    """
    left_out: list[str] = []

    def wanted(prompts: Iterable[Prompt]) -> Iterator[list[int]]:
        for prompt in prompts:
            if prompt.key in without:
                left_out.append(prompt.key)
            else:
                yield list(prompt.ids)

    reader = _reader(data, tokenizer, split)
    found = wanted(prompt for prompt in reader if prompt is not None)
    prompts = list(itertools.islice(found, limit))
    if not prompts and left_out:
        raise ValueError(
            f"each of the {len(left_out)} prompts of {data} is one that the draft is trained on: "
            "give others"
        )
    if not prompts:
        raise ValueError(f"{data} holds no prompt; the first rows: {reader.skipped}")
    if left_out and on_left_out is not None:
        on_left_out(len(left_out))
    return prompts


def prompt_keys(sources: Iterable[Any], tokenizer: Any) -> frozenset[str]:
    """Return what tells all prompts of chat data apart, as `read_prompts` may leave them out.

    Where an earlier turn is answered, what comes before it is a prompt, too.

    Args:
        sources: anything that `open_chat_data` opens.
        tokenizer: the target's.
    """
    from .chat_data import open_chat_data
    from .chat_rendering import ChatRenderer
    from .prompt_reading import answered_keys

    plain = ChatRenderer(tokenizer).template is None
    return frozenset(
        key for data in sources for key in answered_keys(open_chat_data(data), plain=plain)
    )


def _reader(data: Any, tokenizer: Any, split: str | None) -> Any:
    from .chat_data import open_chat_data
    from .chat_rendering import ChatRenderer
    from .prompt_reading import PromptReader

    source = open_chat_data(data, split=split)
    return PromptReader(source, ChatRenderer(tokenizer), sys.maxsize, strict=False)


def measure_draft(
    target: NamedModel,
    draft: Loadable,
    prompts: Sequence[Sequence[int]],
    *,
    compare: Mapping[str, Loadable] | None = None,
    max_new_tokens: int = 128,
    draft_length: int | None = None,
    threshold: float | None = None,
    dtype: str = "float32",
    plain_dtypes: Sequence[str] | None = None,
    output: Path | None = None,
    progress: bool = True,
    on_resumed: Callable[[int], None] | None = None,
) -> DecodeReport:
    """Measure what a draft gains on this machine, against the target alone and other drafts.

    Args:
        target: the model that verifies.
        draft: its draft.
        prompts: ids, one list a prompt.
        compare: other drafts by name.
        max_new_tokens: tokens generated a prompt.
        draft_length: tokens drafted a round by every draft; each draft's own if None.
        threshold: probability, from 0 to 1, of all tokens so far being accepted, below which
            every draft stops a round early, 0 never; each draft's own if None.
        dtype: of target and drafts.
        plain_dtypes: in which the target alone is measured besides its own; None for the default
            of `measure_decoding`.
        output: folder for the report, `decode_report.json`. Finished prompts are kept in it
            meanwhile, so that the same call goes on after a kill; None keeps nothing.
        progress: show a bar.
        on_resumed: called with the number of prompts that were measured before, if any.

    Raises:
        ValueError: for a threshold that is no probability, and as `measure_decoding` documents.
    """
    from .measuring import NoGainWarning, measure_decoding

    if threshold is not None and not 0 <= threshold <= 1:  # nan is neither
        raise ValueError(
            f"threshold must be a probability from 0 to 1, got {threshold}: 0 never stops a draft "
            "early, none takes each draft's own"
        )
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    model = target.model(dtype)
    wishes: dict[str, Any] = {}
    if plain_dtypes is not None:
        wishes["plain_dtypes"] = tuple(plain_dtypes)
    kept = None
    if output is not None:
        others = {"draft": draft, **(compare or {})}
        call = {
            "target": target.identity,
            "drafts": {name: one.identity for name, one in others.items()},
            "prompts": [list(prompt) for prompt in prompts],
            "settings": [max_new_tokens, draft_length, threshold, dtype, plain_dtypes],
        }
        kept = _kept_rows(output, model, call)
        if kept.rows and on_resumed is not None:
            on_resumed(len(kept.rows))
    with warnings.catch_warnings():
        # Said by the report's notes.
        warnings.simplefilter("ignore", NoGainWarning)
        report = measure_decoding(
            model,
            draft.model(dtype),
            prompts,
            tokenizer=target.tokenizer,
            compare={name: one.model(dtype) for name, one in (compare or {}).items()},
            max_new_tokens=max_new_tokens,
            num_assistant_tokens=draft_length,
            assistant_confidence_threshold=threshold,
            progress=progress,
            **wishes,
            on_row=None if kept is None else kept.add,
            done=() if kept is None else kept.rows,
        )
    if output is not None and kept is not None:
        output.mkdir(parents=True, exist_ok=True)
        report.save(output / REPORT_JSON)
        kept.remove()
    return report


def _kept_rows(output: Path, model: Any, call: Mapping[str, Any]) -> KeptRows:
    """Open the rows of a measurement; those of another machine or release do not mix with ours."""
    from .decoding_ways import machine_facts
    from .kept_rows import KeptRows

    place = {"format": _ROWS_FORMAT, "machine": machine_facts(model)}
    return KeptRows.beside(output / REPORT_JSON, {**call, **place})
