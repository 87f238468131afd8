"""The counting loop: rows in, one domain's counts out, in this process or in several.

A source is read once, as a stream, and no faster than it is counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from .batch_counting import (
    KEPT_SKIPS,
    BatchCounter,
    BatchCounts,
    CountRules,
    PreparedBatch,
    SkippedRow,
)
from .chat_data import ChatSource, SourceRow
from .chat_rows import SHAPES
from .counted_blocks import BlockAccumulator, DomainCounts

_HASH_SPACE = 1 << 256
_BATCH_SIZE = 8_000_000  # bytes of rows that are held at a time, where their size is known
_ROWS_OF_UNKNOWN_SHAPE = (
    1000  # after so many rows that fit no shape, and none that does, reading stops
)


@dataclass(frozen=True, eq=False)
class CountedDomain:
    """A domain's counts, and what was met on the way.

    Attributes:
        counts: in blocks.
        shapes: how many conversations of each row shape were counted.
        rows: rows read.
        skipped: the first malformed ones.
        skipped_number: all malformed ones.
        silent: rows in which the assistant says nothing.
        data_fingerprint: sum of the conversations' hashes (hex), whatever their order.
    """

    counts: DomainCounts
    shapes: Mapping[str, int]
    rows: int
    skipped: tuple[SkippedRow, ...]
    skipped_number: int
    silent: int
    data_fingerprint: str


def count_domain(
    source: ChatSource,
    counter: BatchCounter,
    tokenizer: Any,
    *,
    domain: str,
    batch_size: int,
    num_proc: int,
    progress: bool,
) -> CountedDomain:
    """Count all rows of one domain.

    Raises:
        ValueError: if no row has an assistant turn; the text lists the columns that were found.
    """
    from huggingface_hub.utils.tqdm import tqdm

    rules = counter.rules
    accumulator = BlockAccumulator(rules.vocab_size, rules.blocks)
    total = BatchCounts(np.empty(0), np.empty(0), np.empty(0), Counter(), set(), [])
    bar: Any = tqdm(  # type: ignore[no-untyped-call]
        total=source.length,
        desc=f"counting {domain}",
        unit="row",
        disable=None if progress else True,
    )
    with bar:
        batches = _batches(source, batch_size)
        for batch in _counted(batches, counter, tokenizer, num_proc):
            accumulator.add(batch.keys, batch.counts, batch.conversations)
            total.shapes += batch.shapes
            total.columns |= batch.columns
            total.skipped += batch.skipped[: KEPT_SKIPS - len(total.skipped)]
            total.skipped_number += batch.skipped_number
            total.rows += batch.rows
            total.unknown += batch.unknown
            total.silent += batch.silent
            total.digest_sum = (total.digest_sum + batch.digest_sum) % _HASH_SPACE
            bar.update(batch.rows)
            if not total.shapes and total.unknown >= _ROWS_OF_UNKNOWN_SHAPE:
                break
    if not total.shapes:
        raise ValueError(_nothing_said(source, total, domain))
    return CountedDomain(
        accumulator.finished(),
        dict(sorted(total.shapes.items())),
        total.rows,
        tuple(total.skipped),
        total.skipped_number,
        total.silent,
        f"{total.digest_sum:064x}",
    )


def _nothing_said(source: ChatSource, total: BatchCounts, domain: str) -> str:
    columns = ", ".join(sorted(total.columns | set(source.columns or ()))) or "(none)"
    text = (
        f"domain {domain!r} ({source.name}) has no assistant turn in {total.rows} rows; columns "
        f"found: {columns}. Known shapes: {'; '.join(SHAPES)}"
    )
    if total.skipped:
        text += f". First of {total.skipped_number} skipped rows: {total.skipped[0]}"
    return text


def _batches(source: ChatSource, size: int) -> Iterator[list[SourceRow]]:
    batch: list[SourceRow] = []
    characters = 0
    for row in source:
        batch.append(row)
        characters += row.size
        if len(batch) >= size or characters >= _BATCH_SIZE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _counted(
    batches: Iterator[list[SourceRow]], counter: BatchCounter, tokenizer: Any, num_proc: int
) -> Iterator[BatchCounts]:
    if num_proc == 1:
        yield from _overlapped(batches, counter)
        return
    # Started afresh, not forked: a fork of a process whose tokenizer has threads may stand still.
    with ProcessPoolExecutor(
        num_proc, get_context("spawn"), _start_worker, (tokenizer, counter.rules)
    ) as pool:
        running: deque[Future[BatchCounts]] = deque()
        for batch in batches:
            running.append(pool.submit(_count_in_worker, batch))
            if len(running) > 2 * num_proc:  # rows are read no faster than they are counted
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def _overlapped(
    batches: Iterator[list[SourceRow]], counter: BatchCounter
) -> Iterator[BatchCounts]:
    """Tokenise one batch in a thread, outside of Python's lock, while the next is prepared."""
    with counter.renderer.tokens.untruncated(), ThreadPoolExecutor(1) as pool:
        before: tuple[PreparedBatch, Future[list[Any]]] | None = None
        for batch in batches:
            prepared = counter.prepare(batch)
            started = pool.submit(counter.tokenise, prepared)
            if before is not None:
                yield counter.finish(before[0], before[1].result())
            before = prepared, started
        if before is not None:
            yield counter.finish(before[0], before[1].result())


_worker: BatchCounter | None = None


def _start_worker(tokenizer: Any, rules: CountRules) -> None:
    import os

    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    _worker = BatchCounter(tokenizer, rules)


def _count_in_worker(batch: list[SourceRow]) -> BatchCounts:
    if _worker is None:
        raise RuntimeError("a counting process was not started")
    return _worker.count(batch)
