"""The vocabularies that others would choose of the same conversations, and what they count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench_results import file_hash
from vocabulary_runs import batches, kept_arrays
from vocabulary_targets import Target

from vtrim_hf.batch_counting import CountRules
from vtrim_hf.chat_data import open_chat_data
from vtrim_hf.chat_messages import MalformedRow, content_text
from vtrim_hf.chat_rendering import ChatRenderer
from vtrim_hf.chat_rows import read_row
from vtrim_hf.vocabulary import rank_ids

USUAL = 32_000
ENCODED_AT_ONCE = 256

WAYS = {
    "vtrim": "k* of this package: assistant's tokens, required ids kept",
    "assistant": "EAGLE-3's and SpecForge's order: assistant's tokens, nothing required",
    "conversation": "Model-Optimizer's: every token of the conversations, prompts too",
    "raw": "FR-Spec's: raw text, one list for all domains, EOS kept",
    "fixed": "EAGLE-3 and SpecForge as they are: fixed 32,000, this domain's counts",
    "fixed_general": "the same with the counts of `general`",
}


@dataclass(frozen=True, eq=False)
class TextCounts:
    """What others count, of the same conversations.

    Attributes:
        conversation: int64 [V], every token of the conversations, prompts and template included.
        raw: int64 [V], the texts alone, without template and roles.
    """

    conversation: np.ndarray
    raw: np.ndarray


def text_counts(path: Path, target: Target, heldout: float) -> TextCounts:
    """Count whole conversations of the search part; kept counts are found again."""
    facts = [
        file_hash(path),
        heldout,
        target.vocab_size,  # of one tokenizer there are several widths
        target.facts["tokenizer_hash"],
        target.facts["template_hash"],
    ]

    def count() -> Mapping[str, np.ndarray]:
        backend = target.tokenizer.backend_tokenizer
        sums = np.zeros((2, target.vocab_size), dtype=np.int64)
        for batch in batches(search_texts(path, target, heldout), ENCODED_AT_ONCE):
            for place, texts in enumerate(zip(*batch, strict=True)):
                encoded = backend.encode_batch_fast(list(texts), add_special_tokens=False)
                ids = np.concatenate([np.asarray(one.ids, dtype=np.int64) for one in encoded])
                sums[place] += np.bincount(ids, minlength=target.vocab_size)
        return {"conversation": sums[0], "raw": sums[1]}

    return TextCounts(**kept_arrays("conversations", facts, count))


def search_texts(path: Path, target: Target, heldout: float) -> Iterator[tuple[str, str]]:
    """Give each conversation of the search part: as the template renders it, and its texts.

    They are those that are counted: the package reads and renders them here, too.
    """
    rules = CountRules(vocab_size=target.vocab_size, heldout=heldout)
    renderer = ChatRenderer(target.tokenizer)
    for row in open_chat_data(str(path)):
        try:
            conversation = read_row(row.row)
            if rules.place(conversation.digest()) >= rules.blocks or not conversation.has_answer:
                continue
            # The first text is the whole conversation; rows of bare ids have none.
            rendered = renderer.render(conversation) if conversation.messages else ()
        except MalformedRow:
            continue
        if rendered:
            texts = [content_text(message.get("content")) for message in conversation.messages]
            yield rendered[0].text, "\n".join(texts)


def first(counted: np.ndarray, k: int, forced: Sequence[int] = ()) -> np.ndarray:
    """Return the k most frequent ids, filled up with the lowest ids that were never counted."""
    ranked = rank_ids(counted, np.asarray(sorted(forced), dtype=np.int64))[:k]
    others = np.setdiff1d(np.arange(counted.size), ranked)
    return np.sort(np.concatenate([ranked, others[: k - ranked.size]]))


def rival_vocabularies(
    own: np.ndarray,
    k: int,
    texts: TextCounts,
    raw: np.ndarray,
    general: np.ndarray | None,
    target: Target,
) -> dict[str, np.ndarray]:
    """Choose vocabularies as others do.

    Args:
        own: int64 [V], what the assistant says in this domain.
        k: how many ids, where no rule of theirs says it.
        texts: what others count of the same conversations.
        raw: int64 [V], raw text of all domains.
        general: int64 [V], what the assistant says in the domain `general`.
        target: whose ids they are.

    Returns:
        The ids of each way but `vtrim`, ascending.
    """
    usual = min(USUAL, target.vocab_size)
    end = target.tokenizer.eos_token_id
    chosen = {
        "assistant": first(own, k),
        "conversation": first(texts.conversation, k),
        "raw": first(raw, k, () if end is None else (int(end),)),
        "fixed": first(own, usual),
    }
    if general is not None:
        chosen["fixed_general"] = first(general, usual)
    return chosen
