"""What benchmarks of drafts measure: drafts as named, with other rows; counts, prompts.

Drafts are measured by `measured` of bench_trained_draft.py; this is no program of its own.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vtrim_hf import DecodeReport, DraftVocabulary, TokenCounts, required_token_ids
from vtrim_hf.batch_counting import CountRules
from vtrim_hf.chat_data import open_chat_data
from vtrim_hf.chat_messages import MalformedRow, content_text
from vtrim_hf.chat_rendering import ChatRenderer
from vtrim_hf.chat_rows import read_row
from vtrim_hf.named_models import NamedModel
from vtrim_hf.prompt_reading import PromptReader
from vtrim_hf.training_facts import WEIGHTS
from vtrim_hf.training_facts import weights_hash as hash_in
from vtrim_hf.vocabulary import tokenizer_fingerprint

# --- drafts ----------------------------------------------------------------------------------


def constant(model: Any) -> Any:
    """Let a draft draft the same number of tokens in every round, whatever it was saved with."""
    model.generation_config.num_assistant_tokens_schedule = "constant"
    return model


class Constant:
    """A model that drafts the same number of tokens in every round.

    Args:
        draft: the model.
    """

    def __init__(self, draft: NamedModel) -> None:
        self._draft = draft

    @property
    def identity(self) -> str:
        """A text that is the same for the same model only."""
        return f"constant:{self._draft.identity}"

    def model(self, dtype: str) -> Any:
        """Return the model."""
        return constant(self._draft.model(dtype))


class OtherRows:
    """A trained draft with other rows: its own where it has them, else the target's; never saved.

    It drafts the same number of tokens in every round.

    Args:
        draft: the trained draft.
        target: the model that it was trained for.
        ids: token ids, in any order.
    """

    def __init__(self, draft: NamedModel, target: NamedModel, ids: np.ndarray) -> None:
        self._draft, self._target = draft, target
        self.ids = np.sort(np.asarray(ids, dtype=np.int64))

    @property
    def identity(self) -> str:
        """A text that is the same for the same draft only."""
        rows = hashlib.sha256(self.ids.astype("<i8").tobytes()).hexdigest()
        return f"constant:rows:{rows}:{self._draft.identity}:{self._target.identity}"

    def model(self, dtype: str) -> Any:
        """Return the draft, in the dtype that is measured in."""
        import torch

        trained = self._draft.model("auto")
        vocabulary = DraftVocabulary.from_ids(
            self.ids, vocab_size=self._target.vocab_size, tokenizer=self._target.tokenizer
        )
        if bool((trained.vocabulary.to_draft(vocabulary.ids) < 0).any()):
            made: Any = trained.extend(vocabulary, self._target.model(dtype))
        else:
            made = trained.retrim(vocabulary)
        return constant(made.to(getattr(torch, dtype)))


def weights_hash(draft: NamedModel) -> str:
    """Return the sha256 of a draft's weights, whatever else lies beside them or is put there.

    Raises:
        OSError: if it has no file of weights.
    """
    place = Path(draft.name)
    if draft.commit is not None:
        from huggingface_hub import hf_hub_download

        place = Path(hf_hub_download(draft.name, WEIGHTS, revision=draft.commit)).parent
    return hash_in(place)


def named_drafts(words: Sequence[str]) -> dict[str, NamedModel]:
    """Read drafts as NAME=PLACE, or as a folder whose subfolders are drafts.

    Raises:
        SystemExit: for a folder without drafts, or two drafts of one name.
    """
    found: dict[str, NamedModel] = {}
    for word in words:
        name, is_named, place = word.partition("=")
        places = {name: place} if is_named else {}
        if not is_named:
            configs = sorted(Path(word).glob("*/config.json"))
            places = {config.parent.name: str(config.parent) for config in configs}
        if not all(part for pair in places.items() for part in pair):
            places = {}
        if not places:
            raise SystemExit(f"{word} must be NAME=DRAFT or a folder of drafts, and holds none")
        if twice := found.keys() & places.keys():
            raise SystemExit(f"there are two drafts named {min(twice)!r}: give them other names")
        found |= {name: NamedModel(place) for name, place in places.items()}
    return found


def rows_of(draft: NamedModel, target: NamedModel) -> int:
    """Return how many rows a draft's head has.

    Raises:
        SystemExit: if it is no draft, or one for targets of another width.
    """
    config = draft.config
    rows = getattr(config, "draft_vocab_size", None)
    if rows is None:
        raise SystemExit(f"{draft} is no draft of this package: it has no draft_vocab_size")
    if config.vocab_size != target.vocab_size:
        raise SystemExit(
            f"{draft} is for targets of {config.vocab_size} tokens, {target} has "
            f"{target.vocab_size}"
        )
    return int(rows)


def check_rows(report: DecodeReport, expected: Mapping[str, int]) -> None:
    """Raise unless every draft that was measured has as many rows as figures will say.

    Raises:
        ValueError: naming the draft.
    """
    for name, rows in expected.items():
        entry = report.entries[name]
        found = entry.facts["draft_vocab_size"]
        if found != rows:
            raise ValueError(
                f"{name} must have {rows:,} rows and was measured with {found:,}: delete the "
                "folder that --work names and measure anew"
            )
        if entry.drafted_outside_vocabulary:
            raise ValueError(
                f"{name} drafted {entry.drafted_outside_vocabulary} tokens that it has no row "
                "for: its rows and ids do not belong together"
            )


# --- counts ----------------------------------------------------------------------------------


def counts_of(
    target: NamedModel, counted: Path | None, data: Path, *, heldout: float
) -> TokenCounts:
    """Load counts, or count what the assistant says in chat data.

    Args:
        target: whose tokens they are.
        counted: what `vtrim count` wrote; None counts `data`.
        data: chat data.
        heldout: share of it that is not in the search part.

    Raises:
        SystemExit: if there is neither, or the counts are of another tokenizer or width.
    """
    width = target.vocab_size
    if counted is None:
        if not data.is_file():
            raise SystemExit(f"there is no {data} to count: give counts, as `vtrim count` writes")
        return TokenCounts.from_dataset(
            str(data), target.tokenizer, vocab_size=width, heldout=heldout, progress=False
        )
    counts = TokenCounts.load(counted)
    if counts.tokenizer_hash not in (None, tokenizer_fingerprint(target.tokenizer)):
        raise SystemExit(f"{counted} was counted with another tokenizer than that of {target}")
    if counts.vocab_size != width:
        raise SystemExit(f"{counted} holds {counts.vocab_size} tokens, {target} has {width}")
    return counts


def required_ids(target: NamedModel) -> Any:
    """Return the ids that every vocabulary keeps."""
    try:
        generation = target.generation_config
    except OSError:  # a folder may have none
        generation = None
    return required_token_ids(target.tokenizer, generation, vocab_size=target.vocab_size)


def by_need(counted: np.ndarray, required: Any, first: Any = ()) -> np.ndarray:
    """Order all ids: those of `first` before the others, of each part the required ones first.

    What is left goes by count, ties by id, so that ids that were never counted are the last.

    Args:
        counted: int64 [V].
        required: ids that must stay.
        first: ids of a draft.

    Returns:
        int64 [V], the first k of which are the vocabulary of size k.
    """
    ids = np.arange(counted.size)
    others = [~np.isin(ids, np.asarray([*part], dtype=np.int64)) for part in (required, first)]
    return np.lexsort((ids, -counted, *others))


# --- prompts ---------------------------------------------------------------------------------


def spread_prompts(
    data: Any, tokenizer: Any, number: int, longest: int | None = None
) -> tuple[list[list[int]], int]:
    """Take prompts evenly from all over chat data: many sets are sorted by kind.

    Args:
        data: anything that `open_chat_data` opens.
        tokenizer: the target's.
        number: how many.
        longest: characters of the messages, above which a prompt is left out.

    Returns:
        Ids, one list a prompt, in the target's own rendering; and how many were left out.

    Raises:
        SystemExit: if there are fewer.
    """
    reader = PromptReader(open_chat_data(data), ChatRenderer(tokenizer), sys.maxsize, strict=False)
    every = [prompt for prompt in reader if prompt is not None]
    short = [
        prompt
        for prompt in every
        if longest is None
        or sum(len(content_text(turn.get("content"))) for turn in prompt.context.messages)
        <= longest
    ]
    left_out = len(every) - len(short)
    if len(short) < number:
        longer = f" ({left_out} longer ones are left out)" if left_out else ""
        name = data if isinstance(data, str | Path) else "the search part"
        raise SystemExit(f"{name} holds {len(short)} prompts{longer}, asked for {number}")
    return [list(short[place * len(short) // number].ids) for place in range(number)], left_out


def search_rows(data: Path, heldout: float, vocab_size: int) -> Iterator[Any]:
    """Give the rows of chat data that are in the search part of its counts."""
    rules = CountRules(vocab_size=vocab_size, heldout=heldout)
    for row in open_chat_data(data):
        try:
            place = rules.place(read_row(row.row).digest())
        except MalformedRow:
            continue
        if place < rules.blocks:
            yield row.row
