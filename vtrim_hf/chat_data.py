"""Where rows come from: data set objects, Hub ids, JSON lines, Parquet, folders; each row with its
place.

Everything is read as a stream, so memory does not grow with the data. A source that can tell its
content without being read through by us (a file's sha256, a data set's own fingerprint) has an
`identity`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
SUFFIXES = (*JSON_SUFFIXES, ".parquet")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_PARQUET_ROWS = 256


@dataclass(frozen=True)
class SourceRow:
    """One row and its place.

    Attributes:
        row: what stands there; None if it cannot be read at all.
        source: file or data set.
        line: line number (JSON lines) or row number, from 1.
        problem: why it cannot be read, or None.
        size: in bytes, about; 0 where it is not known.
    """

    row: Any
    source: str
    line: int
    problem: str | None = None
    size: int = 0


@dataclass(frozen=True)
class ChatSource:
    """Rows that can be read, and what is known of them beforehand.

    Attributes:
        name: for messages.
        identity: a function that gives a text which is the same for the same content only, or None
            if this cannot be known without reading the rows.
        columns: names, if known.
        length: number of rows, if known.
    """

    name: str
    rows: Callable[[], Iterator[SourceRow]]
    identity: Callable[[], str] | None = None
    columns: tuple[str, ...] | None = None
    length: int | None = None

    def __iter__(self) -> Iterator[SourceRow]:
        return self.rows()


def open_chat_data(
    dataset: object, *, split: str | None = None, name: str | None = None
) -> ChatSource:
    """Find out how to read a data set.

    Args:
        dataset: a `datasets` object (map-style or streaming), an iterable of rows, a path (.jsonl,
            .json, .ndjson, each also .gz; .parquet; a folder of these, or one written by
            `save_to_disk`), or the id of a data set on the Hub.
        split: which split, where there are several; "train" if there is one of this name.
        name: configuration of a data set on the Hub.

    Raises:
        FileNotFoundError: for a path that does not exist.
        ValueError: if it cannot be told how to read it; the text names what is accepted.
    """
    if isinstance(dataset, str | os.PathLike):
        path = Path(dataset).expanduser()
        if path.is_dir():
            return _open_folder(path, split)
        if path.is_file():
            return _open_files([path], path.name)
        return _open_hub(os.fspath(dataset), split, name)
    if is_datasets_object(dataset):
        return _open_datasets_object(dataset, split)
    if isinstance(dataset, Mapping):
        raise ValueError(
            "a mapping stands for several domains ({name: data set}); one inside another has no "
            f"meaning, got the keys {', '.join(map(str, list(dataset)[:8]))}"
        )
    if isinstance(dataset, Iterable):
        return _open_rows(dataset)
    raise ValueError(
        "a data set must be a datasets object, an iterable of rows, a path or a Hub id, got "
        f"{type(dataset).__name__}"
    )


def is_datasets_object(dataset: object) -> bool:
    """Tell an object of the `datasets` package without importing it."""
    return any(
        base.__module__.partition(".")[0] == "datasets" for base in type(dataset).__mro__[:-1]
    )


def _open_rows(dataset: Iterable[Any]) -> ChatSource:
    def rows() -> Iterator[SourceRow]:
        for number, row in enumerate(dataset, 1):
            yield SourceRow(row, "rows", number)

    length = len(dataset) if isinstance(dataset, Sized) else None
    return ChatSource("rows", rows, length=length)


def _open_datasets_object(dataset: Any, split: str | None) -> ChatSource:
    if isinstance(dataset, Mapping):  # DatasetDict, IterableDatasetDict
        dataset = dataset[_chosen_split(list(dataset), split)]
    info = getattr(dataset, "info", None)
    label = getattr(info, "dataset_name", None) or "dataset"
    part = getattr(dataset, "split", None)
    label = f"{label}[{part}]" if part else label

    def rows() -> Iterator[SourceRow]:
        for number, row in enumerate(dataset, 1):
            yield SourceRow(_without_fill(row), label, number)

    columns = getattr(dataset, "column_names", None)
    own = getattr(dataset, "_fingerprint", None)
    length = len(dataset) if hasattr(dataset, "__len__") else None
    # Only map-style data sets have a fingerprint; it follows every filter, map and selection.
    identity = (lambda: f"datasets:{own}") if own and length is not None else None
    return ChatSource(label, rows, identity, tuple(columns) if columns else None, length)


def _open_hub(dataset: str, split: str | None, name: str | None) -> ChatSource:
    looks_like_path = dataset.endswith(SUFFIXES) or not _HUB_ID.fullmatch(dataset)
    if looks_like_path:
        raise FileNotFoundError(
            f"there is no file or folder {dataset!r}, and it is no Hub id (owner/name)"
        )
    load_dataset = _datasets().load_dataset
    return _open_datasets_object(load_dataset(dataset, name, split=split), split)


def _open_folder(folder: Path, split: str | None) -> ChatSource:
    saved = ("dataset_dict.json", "state.json")
    if any((folder / name).is_file() for name in saved):
        return _open_datasets_object(_datasets().load_from_disk(str(folder)), split)
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.name.lower().endswith(SUFFIXES)
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not files:
        raise ValueError(
            f"the folder {folder} holds no data that can be read: looked for "
            f"{', '.join(SUFFIXES)}, and for what datasets' save_to_disk writes"
        )
    return _open_files(files, folder.name)


def _open_files(files: list[Path], name: str) -> ChatSource:
    for path in files:
        if not path.name.lower().endswith(SUFFIXES):
            raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}")

    def rows() -> Iterator[SourceRow]:
        for path in files:
            is_parquet = path.name.lower().endswith(".parquet")
            yield from _parquet_rows(path) if is_parquet else _json_rows(path)

    def identity() -> str:
        # Names are part of it, since they are shown beside skipped rows.
        return "files:" + ",".join(f"{path.name}={_sha256(path)}" for path in files)

    all_parquet = all(path.name.lower().endswith(".parquet") for path in files)
    length = sum(_parquet(path).metadata.num_rows for path in files) if all_parquet else None
    return ChatSource(name, rows, identity, length=length)


def _json_rows(path: Path) -> Iterator[SourceRow]:
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else Path.open
    try:
        with opener(path, "rb") as file:
            if _is_array(path, file):
                yield from _array_rows(path, file)
                return
            for number, line in enumerate(file, 1):
                if not line.strip(b"\xef\xbb\xbf \t\r\n"):
                    continue
                yield _json_row(line, path.name, number)
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is no whole gzip file: {error}; fetch it again") from error


def _json_row(line: bytes, source: str, number: int) -> SourceRow:
    try:
        row = json.loads(line.decode("utf-8-sig"))
        return SourceRow(row, source, number, size=len(line))
    except UnicodeDecodeError as error:
        return SourceRow(None, source, number, f"not UTF-8: {error.reason}")
    except (ValueError, RecursionError) as error:
        return SourceRow(None, source, number, f"not JSON: {error}")


def _is_array(path: Path, file: Any) -> bool:
    """Tell one JSON list from JSON lines, both of which are called .json."""
    if not path.name.lower().endswith((".json", ".json.gz")):
        return False
    start = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    file.seek(0)
    return bool(start[:1] == b"[")


def _array_rows(path: Path, file: Any) -> Iterator[SourceRow]:
    try:
        rows = json.loads(file.read().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    for number, row in enumerate(rows, 1):
        yield SourceRow(row, path.name, number)


def _parquet(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(f"reading {path.name} needs pyarrow: pip install pyarrow") from error
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} is no whole Parquet file: {error}") from error


def _parquet_rows(path: Path) -> Iterator[SourceRow]:
    with _parquet(path) as file:
        number = 0
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
            size = batch.nbytes // max(1, batch.num_rows)
            for row in batch.to_pylist():
                number += 1
                yield SourceRow(_without_fill(row), path.name, number, size=size)


def _without_fill(value: Any) -> Any:
    """Take out the nulls with which a table fills objects that lack a key others have.

    A template would write them into tool calls that were never made with them. A null that was
    meant cannot be told from these; store arguments as JSON text to keep it.
    """
    if isinstance(value, Mapping):
        return {key: _without_fill(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_fill(item) for item in value]
    return value


def _chosen_split(splits: list[str], split: str | None) -> str:
    wanted = split or (splits[0] if len(splits) == 1 else "train")
    if wanted not in splits:
        raise ValueError(
            f"the data set has no split {wanted!r}: pass split= with one of {', '.join(splits)}"
        )
    return wanted


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ImportError("this data set needs datasets: pip install datasets") from error
    return datasets
