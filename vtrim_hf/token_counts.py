"""`TokenCounts`: how often a target must say each token, by domain, with a part held out.

The value is immutable. Its search part is what a vocabulary is chosen by; the held-out part, other
conversations of the same data, is what it is judged by.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .batch_counting import KEPT_SKIPS, CountRules, SkippedRows
from .chat_data import is_datasets_object, open_chat_data
from .counted_blocks import DomainCounts
from .counts_file import read_counts, write_counts
from .merging import checked_array, merged_domains
from .mixed_counts import MixedCounts
from .vocabulary import tokenizer_fingerprint

_HASHED_AT_ONCE = 1 << 18  # numbers that are widened at a time


@dataclass(frozen=True, eq=False)
class TokenCounts(MixedCounts):
    """Counts of the tokens that a target must say.

    Make one with `from_dataset`, `from_counts`, `merge` or `load`.

    Attributes:
        vocab_size: V, the width of every array.
        tokenizer_hash: `tokenizer_fingerprint` of the tokenizer, or None if unknown.
        template_hash: sha256 of the chat template, or None if there was none.
        settings: JSON-able: how it was counted, and what each domain's data was.
        weights: by domain; see `merge`.
        skipped: malformed rows.
    """

    template_hash: str | None
    settings: Mapping[str, Any]
    skipped: SkippedRows = field(default_factory=SkippedRows)

    @classmethod
    def from_dataset(
        cls,
        dataset: object,
        tokenizer: Any,
        *,
        vocab_size: int | None = None,
        heldout: float = 0.2,
        domain: str = "default",
        text_column: str | None = None,
        strict: bool = False,
        cache_dir: str | os.PathLike[str] | bool | None = None,
        split: str | None = None,
        name: str | None = None,
        chat_template: str | bool | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        blocks: int = 128,
        batch_size: int = 512,
        num_proc: int = 1,
        progress: bool = True,
    ) -> TokenCounts:
        """Count the assistant's tokens of chat data, as the tokenizer's chat template renders
        them.

        Every assistant turn counts, tool-call markup included, through its end-of-turn token;
        system, user and tool turns never do. Rows are `messages`, ShareGPT `conversations`,
        `prompt`/`completion`, `instruction`/`output`, or one text column, and are told apart by
        themselves (`shapes`). Rows with `assistant_token_ids` are counted by these ids as they
        stand. Malformed rows are skipped and listed in `skipped`. Which part a conversation
        belongs to depends on its hash alone.

        Args:
            dataset: a `datasets` object (map-style or streaming), an iterable of rows, a path
                (JSON lines, Parquet, a folder), a Hub id, or `{domain: any of these}`.
            tokenizer: the target's.
            vocab_size: V, the target's (padded) width; `len(tokenizer)` if not given.
            heldout: share of conversations, in [0, 1), that is held out.
            domain: name of the domain, where `dataset` is no mapping.
            text_column: count the whole text of this column.
            strict: stop at the first malformed row.
            cache_dir: folder in which counts of the same inputs are found again; None for the
                default (`$VTRIM_CACHE/counts`, else `vtrim_hf/counts` in `$XDG_CACHE_HOME` or
                `~/.cache`), False for none. Streams and plain iterables have no fingerprint and
                are counted anew.
            split: of a data set that has several.
            name: configuration of a Hub data set.
            chat_template: a template, or the name of one, instead of the tokenizer's own. False
                renders plain rows without any: the completion's tokens behind the prompt, then EOS
                if there is one.
            template_kwargs: what else the template sees, such as `{"enable_thinking": False}`.
            blocks: hashed blocks of each part, which the bootstrap draws from.
            batch_size: rows at a time; does not change the result.
            num_proc: processes; does not change the result. More than one needs the caller's
                script to have an `if __name__ == "__main__":`.
            progress: show a bar on a terminal.

        Raises:
            ValueError: if no row has an assistant turn (the columns are listed), if chats come
                with a tokenizer that has no template, if an id lies beyond `vocab_size`, or, when
                strict, at the first malformed row, with its file and line.

        Example:
            ```python
            counts = TokenCounts.from_dataset({"sql": "sql.jsonl", "chat": "me/chats"}, tokenizer)
            counts.array()             # int64 [V], search part, all domains
            counts.total("heldout", "sql")
            ```
        """
        from .dataset_counts import (
            count_dataset,
        )  # it makes TokenCounts, so it imports this module

        rules = CountRules(
            vocab_size=len(tokenizer) if vocab_size is None else int(vocab_size),
            heldout=float(heldout),
            blocks=blocks,
            text_column=text_column,
            strict=strict,
            chat_template=chat_template,
            template_kwargs=dict(template_kwargs or {}),
        )
        is_mapping = isinstance(dataset, Mapping) and not is_datasets_object(dataset)
        domains = dict(dataset) if is_mapping else {domain: dataset}  # type: ignore[call-overload]
        opened = {
            str(key): open_chat_data(data, split=split, name=name) for key, data in domains.items()
        }
        return count_dataset(
            opened,
            tokenizer,
            rules,
            cache_dir=cache_dir,
            batch_size=batch_size,
            num_proc=num_proc,
            progress=progress,
        )

    @classmethod
    def from_counts(
        cls,
        array: Any,
        *,
        heldout: Any = None,
        domain: str = "default",
        tokenizer: Any = None,
        tokenizer_hash: str | None = None,
    ) -> TokenCounts:
        """Take counts that were made elsewhere.

        Nothing is known of conversations here, so `coverage_interval` treats every token as drawn
        by itself, which makes it narrower than text really allows.

        Args:
            array: whole numbers [V], the search part.
            heldout: whole numbers [V], or None for none.
            domain: name of the domain.
            tokenizer: the target's, to fingerprint it.
            tokenizer_hash: its fingerprint, if known already.

        Raises:
            ValueError: for a wrong shape or type, or a negative number.
        """
        search = checked_array(array, "counts")
        held = None if heldout is None else checked_array(heldout, "heldout counts")
        if held is not None and held.shape != search.shape:
            raise ValueError(
                f"both parts must have the same width, got {search.size} and {held.size}"
            )
        if tokenizer is not None and tokenizer_hash is None:
            tokenizer_hash = tokenizer_fingerprint(tokenizer)
        return cls(
            search.size,
            tokenizer_hash,
            {domain: 1.0},
            {domain: DomainCounts.from_arrays(search, held)},
            template_hash=None,
            settings={"domains": {domain: {"source": "given counts"}}},
        )

    @classmethod
    def merge(
        cls,
        *counts: TokenCounts,
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> TokenCounts:
        """Put counts together; domains stay apart.

        A domain that occurs in several counts is summed (shards of one data set). With weights,
        every array and figure that is not asked for one domain is that of the mixture: a domain's
        counts times its weight, summed, rounded to whole numbers (half to even), but at least 1
        for a token that any domain of positive weight has. Whole weights therefore give exact
        sums. One domain's own figures are never weighted. To give domains equal say, pass weights
        that fall with their totals.

        Args:
            *counts: at least one, of the same width, tokenizer, template and blocks.
            weights: one number for each of `counts`, multiplying the weights its domains have; or
                one for each domain by name. A domain that comes in twice with different weights is
                kept twice, the second under its name with a number.

        Raises:
            ValueError: if the counts do not belong together, or a weight is negative, not finite,
                missing or of an unknown domain.
        """
        domains, weight_of, facts = merged_domains(counts, weights)
        skips = [row for part in counts for row in part.skipped]
        return cls(
            counts[0].vocab_size,
            next((part.tokenizer_hash for part in counts if part.tokenizer_hash), None),
            weight_of,
            domains,
            template_hash=next(
                (part.template_hash for part in counts if part.template_hash), None
            ),
            settings={**counts[0].settings, "domains": facts},
            skipped=SkippedRows(
                sum(part.skipped.number for part in counts), tuple(skips[:KEPT_SKIPS])
            ),
        )

    @property
    def shapes(self) -> dict[str, dict[str, int]]:
        """By domain, how many conversations were counted of each row shape that was detected."""
        known = self.settings.get("domains", {})
        return {name: dict(known.get(name, {}).get("shapes", {})) for name in self.domains}

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 (hex) of all counts, weights, and the tokenizer's and template's hashes."""
        head = [self.vocab_size, self.tokenizer_hash, self.template_hash, dict(self.weights)]
        digest = hashlib.sha256(json.dumps(head).encode())
        for domain, counts in self._counts.items():
            digest.update(json.dumps([domain, counts.blocks, counts.hashed]).encode())
            for array in (counts.keys, counts.counts, counts.conversations):
                for start in range(0, array.size, _HASHED_AT_ONCE):
                    part = array[start : start + _HASHED_AT_ONCE]
                    digest.update(part.astype("<i8").tobytes())
        return digest.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, atomically."""
        facts = {
            "vocab_size": self.vocab_size,
            "tokenizer_hash": self.tokenizer_hash,
            "template_hash": self.template_hash,
            "fingerprint": self.fingerprint,
            "settings": dict(self.settings),
            "weights": dict(self.weights),
            "skipped": [[row.source, row.line, row.reason] for row in self.skipped],
            "skipped_number": self.skipped.number,
        }
        write_counts(Path(path), self._counts, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TokenCounts:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is no file of counts or has been changed; the text names what is
                wrong.
        """
        domains, facts = read_counts(Path(path))
        counts = cls(
            facts["vocab_size"],
            facts["tokenizer_hash"],
            {name: float(facts["weights"][name]) for name in domains},
            domains,
            template_hash=facts["template_hash"],
            settings=facts["settings"],
            skipped=SkippedRows.read(facts["skipped_number"], facts["skipped"], path),
        )
        if counts.fingerprint != facts["fingerprint"]:
            raise ValueError(
                f"{path}: 'fingerprint' is {facts['fingerprint'][:12]}, but the counts have "
                f"{counts.fingerprint[:12]}: the file was changed; count again"
            )
        return counts

    def renamed(self, domain: str) -> TokenCounts:
        """Give the only domain another name."""
        if len(self.domains) != 1:
            raise ValueError(f"only counts of one domain can be renamed, got {self.domains}")
        (old,) = self.domains
        known = self.settings.get("domains", {})
        return replace(
            self,
            settings={**self.settings, "domains": {domain: known.get(old, {})}},
            weights={domain: self.weights[old]},
            _counts={domain: self._counts[old]},
            _arrays={},
        )
