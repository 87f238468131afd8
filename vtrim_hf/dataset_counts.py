"""From opened sources to `TokenCounts`: each domain found in the cache or counted."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import tokenizers
import transformers

from .batch_counting import BatchCounter, CountRules, SkippedRows
from .chat_data import ChatSource
from .counted_blocks import PART_NAMES
from .counting import CountedDomain, count_domain
from .counts_file import cached_path, tokenizer_facts
from .token_counts import TokenCounts
from .vocabulary import tokenizer_fingerprint

logger = logging.getLogger(__name__)

CacheDir = str | os.PathLike[str] | bool | None


def count_dataset(
    domains: Mapping[str, ChatSource],
    tokenizer: Any,
    rules: CountRules,
    *,
    cache_dir: CacheDir,
    batch_size: int,
    num_proc: int,
    progress: bool,
) -> TokenCounts:
    """Count every domain whose counts of exactly these inputs are not kept already.

    Args:
        domains: sources by domain.
        tokenizer: the target's.
        rules: what decides the counts.
        cache_dir: see `TokenCounts.from_dataset`.
        batch_size: rows at a time.
        num_proc: processes.
        progress: whether to show a bar.

    Raises:
        ValueError: as `TokenCounts.from_dataset` documents.
    """
    if not 0 <= rules.heldout < 1:
        raise ValueError(f"heldout must be a share in [0, 1), got {rules.heldout}")
    if not 1 <= rules.blocks <= 4096 or batch_size < 1 or num_proc < 1:
        raise ValueError(
            "blocks must lie in [1, 4096], and batch_size and num_proc be at least 1, got "
            f"{rules.blocks}, {batch_size}, {num_proc}"
        )
    if not domains:
        raise ValueError("there is no domain to count: the mapping is empty")
    counter = BatchCounter(tokenizer, rules)
    tokenizer_hash = tokenizer_fingerprint(tokenizer)
    template_hash = counter.renderer.template_hash
    counts = []
    for domain, source in domains.items():
        path = None
        if cache_dir is not False and source.identity is not None:
            hashes = (*tokenizer_facts(tokenizer), template_hash)
            path = cached_path(cache_dir, source.identity(), rules, hashes)
        if path is not None and path.is_file():
            try:
                counts.append(TokenCounts.load(path).renamed(domain))
                continue
            except ValueError as error:
                logger.warning("counting again, for the kept counts cannot be read: %s", error)
        counted = count_domain(
            source,
            counter,
            tokenizer,
            domain=domain,
            batch_size=batch_size,
            num_proc=num_proc,
            progress=progress,
        )
        counts.append(
            TokenCounts(
                rules.vocab_size,
                tokenizer_hash,
                {domain: 1.0},
                {domain: counted.counts},
                template_hash=template_hash,
                settings={**_settings(rules), "domains": {domain: _facts(source, counted)}},
                skipped=SkippedRows(counted.skipped_number, counted.skipped),
            )
        )
        if path is not None:
            counts[-1].save(path)
    return counts[0] if len(counts) == 1 else TokenCounts.merge(*counts)


def _settings(rules: CountRules) -> dict[str, Any]:
    return {
        "heldout": rules.heldout,
        "blocks": rules.blocks,
        "text_column": rules.text_column,
        "template_kwargs": dict(rules.template_kwargs),
        "versions": {
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
    }


def _facts(source: ChatSource, counted: CountedDomain) -> dict[str, Any]:
    return {
        "source": source.name,
        "rows": counted.rows,
        "shapes": dict(counted.shapes),
        "skipped": counted.skipped_number,
        "without_assistant": counted.silent,
        "data_fingerprint": counted.data_fingerprint,
        "tokens": {part: int(counted.counts.array(part).sum()) for part in PART_NAMES},
    }
