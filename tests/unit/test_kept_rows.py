"""Rows of work that was interrupted: kept whole, found by the same call only."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtrim_hf.kept_rows import KeptRows


def test_rows_come_back(tmp_path: Path) -> None:
    kept = KeptRows.beside(tmp_path / "report.json", {"model": "a", "n": 4})
    assert kept.rows == []
    assert not kept.path.exists()
    kept.add({"prompt": 0, "text": "é\u2028"})
    kept.add({"prompt": 1})
    again = KeptRows.beside(tmp_path / "report.json", {"n": 4, "model": "a"})
    assert again.path == kept.path
    assert again.rows == kept.rows == [{"prompt": 0, "text": "é\u2028"}, {"prompt": 1}]


def test_another_call_has_another_file(tmp_path: Path) -> None:
    kept = KeptRows.beside(tmp_path / "report.json", {"n": 4})
    kept.add({"prompt": 0})
    assert KeptRows.beside(tmp_path / "report.json", {"n": 5}).rows == []
    assert KeptRows.beside(tmp_path / "other.json", {"n": 4}).rows == []


@pytest.mark.parametrize("torn", ['{"prom', '{"prompt": 1}', "\x00\x00"])
def test_a_torn_last_line_is_dropped_and_overwritten(tmp_path: Path, torn: str) -> None:
    kept = KeptRows(tmp_path / "rows.jsonl")
    kept.add({"prompt": 0})
    with kept.path.open("a", encoding="utf-8") as file:
        file.write(torn)
    again = KeptRows(kept.path)
    assert again.rows == [{"prompt": 0}]
    again.add({"prompt": 2})
    assert kept.path.read_text("utf-8") == '{"prompt": 0}\n{"prompt": 2}\n'


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": 0}\n[1]\n{"prompt": 2}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"rows\.jsonl:2 is no row"):
        KeptRows(path)


def test_remove(tmp_path: Path) -> None:
    kept = KeptRows(tmp_path / "rows.jsonl")
    kept.remove()
    kept.add({"prompt": 0})
    kept.remove()
    assert not list(tmp_path.iterdir())
