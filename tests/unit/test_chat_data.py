"""Where rows come from: files, folders, data set objects; their places and fingerprints."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from vtrim_hf.chat_data import open_chat_data

ROWS = [{"prompt": f"q{i}", "completion": f"a{i}"} for i in range(5)]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def read(source: Any) -> list[Any]:
    return [row.row for row in open_chat_data(source)]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.jsonl.gz", "a.parquet"])
def test_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(write_lines(tmp_path / "plain", ROWS).read_bytes()))
    elif name.endswith(".parquet"):
        write_parquet(path, ROWS)
    else:
        write_lines(path, ROWS)
    assert read(path) == ROWS
    assert read(str(path)) == ROWS
    places = [(row.source, row.line) for row in open_chat_data(path)]
    assert places == [(name, i) for i in range(1, 6)]


def test_a_json_file_may_be_one_list(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROWS, indent=1), "utf-8")
    assert read(path) == ROWS


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / ".hidden").mkdir()
    write_lines(tmp_path / "b.jsonl", ROWS[:1])
    write_parquet(tmp_path / "deep" / "c.parquet", ROWS[1:3])
    write_lines(tmp_path / ".hidden" / "d.jsonl", ROWS)
    (tmp_path / "README.md").write_text("not data")
    assert read(tmp_path) == ROWS[:3]


def test_lines_that_are_no_json_keep_their_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n{"a": \n\xff\xfe\n{"a": 2}')
    rows = list(open_chat_data(path))
    assert [(row.line, row.row) for row in rows] == [
        (1, {"a": 1}),
        (3, None),
        (4, None),
        (5, {"a": 2}),
    ]
    assert "not JSON" in str(rows[1].problem)
    assert "not UTF-8" in str(rows[2].problem)


def test_deeply_nested_json_is_a_bad_line_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("[" * 200_000 + "\n" + '{"a": 1}\n')
    first, second = open_chat_data(path)
    assert first.problem is not None
    assert second.row == {"a": 1}


def test_datasets_objects(tmp_path: Path) -> None:
    import datasets

    data = datasets.Dataset.from_list(ROWS)
    source = open_chat_data(data)
    assert [row.row for row in source] == ROWS
    assert source.length == 5
    assert source.columns == ("prompt", "completion")
    assert source.identity is not None
    same, part = open_chat_data(data).identity, open_chat_data(data.select([1, 2])).identity
    assert same is not None
    assert part is not None
    assert same() == source.identity()
    assert part() != source.identity()

    stream = open_chat_data(data.to_iterable_dataset())
    assert [row.row for row in stream] == ROWS
    assert stream.identity is None

    data.save_to_disk(str(tmp_path / "saved"))
    assert read(tmp_path / "saved") == ROWS


def test_nulls_that_a_table_fills_in_are_taken_out(tmp_path: Path) -> None:
    """Arrow gives every object the keys of all others; a tool call must not show them."""
    import datasets

    def call(**arguments: Any) -> dict[str, Any]:
        function = {"name": "f", "arguments": arguments}
        return {"role": "assistant", "tool_calls": [{"function": function}]}

    user = {"role": "user", "content": "q"}
    rows = [{"messages": [user, call(a=1)]}, {"messages": [user, call(b=[1, 2]), user]}]
    table = datasets.Dataset.from_list(rows)
    assert table[0] != rows[0]  # the fill is there
    assert read(table) == rows
    assert read(table.to_iterable_dataset()) == rows
    assert read(write_parquet(tmp_path / "a.parquet", rows)) == rows
    explicit = [{"messages": [user, call(a=None)]}]
    assert read(write_lines(tmp_path / "a.jsonl", explicit)) == explicit


def test_splits() -> None:
    import datasets

    one, two = datasets.Dataset.from_list(ROWS[:2]), datasets.Dataset.from_list(ROWS[2:])
    assert read(datasets.DatasetDict({"only": one})) == ROWS[:2]
    both = datasets.DatasetDict({"train": one, "test": two})
    assert read(both) == ROWS[:2]
    assert [row.row for row in open_chat_data(both, split="test")] == ROWS[2:]
    with pytest.raises(ValueError, match="no split 'train': pass split= with one of a, b"):
        open_chat_data(datasets.DatasetDict({"a": one, "b": two}))


def test_iterables_of_rows() -> None:
    source = open_chat_data(iter(ROWS))
    assert source.identity is None
    assert [(row.row, row.line) for row in source] == [(row, i + 1) for i, row in enumerate(ROWS)]
    assert open_chat_data(ROWS).length == 5


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    first = open_chat_data(write_lines(tmp_path / "a.jsonl", ROWS)).identity
    (tmp_path / "copy").mkdir()
    same = open_chat_data(write_lines(tmp_path / "copy" / "a.jsonl", ROWS)).identity
    assert first is not None
    assert same is not None
    assert first() == same()
    before = first()
    write_lines(tmp_path / "a.jsonl", ROWS[1:])
    assert first() != before


@pytest.mark.parametrize(
    ("data", "error", "rule"),
    [
        ("no/such/file.jsonl", FileNotFoundError, "no file or folder"),
        ("./nowhere", FileNotFoundError, "no Hub id"),
        (5, ValueError, "got int"),
        ({"inner": ROWS}, ValueError, "several domains"),
    ],
)
def test_what_cannot_be_read(data: Any, error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=rule):
        open_chat_data(data)


def test_files_of_another_kind_and_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match=r"must end in one of \.jsonl"):
        open_chat_data(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="holds no data that can be read"):
        open_chat_data(tmp_path)


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(ValueError, match=r"a\.parquet is no whole Parquet file"):
        open_chat_data(tmp_path / "a.parquet")
    whole = gzip.compress(json.dumps(ROWS[0]).encode() * 100)
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz is no whole gzip file"):
        list(open_chat_data(tmp_path / "a.jsonl.gz"))


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    """Streams: the first row comes without reading the second."""
    pulled = []

    def rows() -> Any:
        for row in ROWS:
            pulled.append(row)
            yield row

    iterator = iter(open_chat_data(rows()))
    next(iterator)
    assert len(pulled) == 1


def test_hub_ids_go_to_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load_dataset(path: str, name: str | None, split: str | None) -> Any:
        asked.append((path, name, split))
        return datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read("someone/chats") == ROWS
    assert asked == [("someone/chats", None, None)]
