"""What benchmarks of drafts measure: targets and drafts as named, with other rows; counts.

Drafts are measured by `measured` of bench_trained_draft.py; this is no program of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vtrim_hf import DecodeReport, DraftVocabulary, TokenCounts, check_pair, required_token_ids
from vtrim_hf.named_models import NamedModel
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


def model_named(name: str, option: str = "--target") -> NamedModel:
    """Return the model that an option names; its config and tokenizer are read.

    Raises:
        SystemExit: if they cannot be.
    """
    model = NamedModel(name)
    try:
        _ = model.vocab_size, model.tokenizer, model.identity
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"{option} must be smollm2, a folder of a model or a Hub id, got {name}: "
            f"{_first_line(error)}"
        ) from error
    return model


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
    try:
        config = draft.config
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"{draft} must be the folder or Hub id of a draft: {_first_line(error)}"
        ) from error
    rows = getattr(config, "draft_vocab_size", None)
    if rows is None:
        raise SystemExit(f"{draft} is no draft of this package: it has no draft_vocab_size")
    if config.vocab_size != target.vocab_size:
        raise SystemExit(
            f"{draft} is for targets of {config.vocab_size} tokens, {target} has "
            f"{target.vocab_size}"
        )
    return int(rows)


def check_drafts(target: NamedModel, drafts: Iterable[NamedModel], dtype: str) -> None:
    """Raise unless each of them can draft for the target; all are loaded.

    Raises:
        SystemExit: naming the draft, and why it cannot.
    """
    for draft in drafts:
        try:
            check_pair(target.model(dtype), draft.model("auto"), tokenizer=target.tokenizer)
        except (OSError, TypeError, ValueError) as error:
            raise SystemExit(f"{draft} cannot draft for {target}: {error}") from error


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


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


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
        SystemExit: if there is neither, they cannot be read, or are of another tokenizer or width.
    """
    width = target.vocab_size
    if counted is None:
        if not data.is_file():
            raise SystemExit(f"there is no {data} to count: give counts, as `vtrim count` writes")
        try:
            return TokenCounts.from_dataset(
                str(data), target.tokenizer, vocab_size=width, heldout=heldout, progress=False
            )
        except (OSError, ValueError) as error:
            raise SystemExit(f"{data} cannot be counted: {error}") from error
    try:
        counts = TokenCounts.load(counted)
    except (OSError, ValueError) as error:
        raise SystemExit(f"{counted} must be what `vtrim count` wrote: {error}") from error
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
