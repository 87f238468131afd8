"""The benchmark of how many conversations it takes, on tiny data: drawings, where it settles."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recipes import write_rows
from tiny_models import make_byte_tokenizer, make_tiny
from vtrim_hf import TokenCounts, search_vocabulary

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.newest


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = importlib.util.spec_from_file_location(
        "bench_stability", EXAMPLES / "bench_stability.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SIZES", (5, 10, 1000))
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stability")
    make_tiny("llama").config.save_pretrained(folder / "target")
    make_byte_tokenizer().save_pretrained(folder / "target")
    for name, words in (("sql", "SELECT name"), ("general", "the lazy dog")):
        (folder / "data" / name).mkdir(parents=True)
        write_rows(folder / "data" / name / "train.jsonl", words, 0, 40)
    rows = [{"messages": [{"role": "user", "content": "only asked"}]}, {"text?": 1}]
    with (folder / "data/sql/train.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)  # neither is a conversation
    return folder


def words(folder: Path, output: Path, *more: str) -> list[str]:
    files = ["--data", str(folder / "data"), "--output", str(output), "--resamples", "3"]
    return [*files, "--target", str(folder / "target"), *more]


def library_counts(target: Any, path: Path) -> TokenCounts:
    return TokenCounts.from_dataset(str(path), target.tokenizer, vocab_size=300, progress=False)


def test_conversations_sum_to_what_the_package_counts(bench: Any, folder: Path) -> None:
    target = bench.Target(str(folder / "target"))
    path = folder / "data/sql/train.jsonl"
    counts = library_counts(target, path)
    found = bench.read_conversations(path, target, 0.2)
    assert found.heldout.size == counts.conversations("all") == 40
    assert found.summed(found.heldout, 300).tolist() == counts.array("heldout").tolist()
    assert found.summed(~found.heldout, 300).tolist() == counts.array("search").tolist()
    again = bench.read_conversations(path, target, 0.2)
    for name, array in vars(found).items():
        assert (getattr(again, name) == array).all(), name
    both = bench.Conversations.together([found, found])
    every = np.ones(80, dtype=bool)
    assert both.summed(every, 300).tolist() == (2 * counts.array("all")).tolist()


def test_all_conversations_give_what_the_search_gives(
    bench: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.main(words(folder, tmp_path))
    output = tmp_path / "target"
    found = json.loads((output / "figures.json").read_text("utf-8"))
    target = bench.Target(str(folder / "target"))
    assert list(found["domains"]) == ["general", "sql", "all domains"]
    for name in ("general", "sql"):
        counts = library_counts(target, folder / f"data/{name}/train.jsonl")
        exact = search_vocabulary(counts, target.latency, required=target.required)
        points = found["domains"][name]["points"]
        assert [point["size"] for point in points] == [5, 10, counts.conversations("search")]
        assert [len(point["k_drawn"]) for point in points] == [3, 3, 1]
        last = points[-1]
        assert last["k"] == {"median": exact.k, "q25": exact.k, "q75": exact.k}
        assert last["coverage"]["median"] == pytest.approx(exact.heldout_coverage)
        assert last["tokens"]["median"] == counts.total("search")
    sizes = [found["domains"][name]["points"][-1]["size"] for name in found["domains"]]
    assert sizes[0] + sizes[1] == sizes[2]
    assert (output / "stability.png").read_bytes().startswith(b"\x89PNG")
    text = (output / "report.md").read_text("utf-8")
    assert text in capsys.readouterr().out
    for said in ("settled from", "## all domains", "13,000 and 13,300", "| 5 | "):
        assert said in text, said


def test_drawings_have_their_own_seeds(bench: Any, folder: Path) -> None:
    target = bench.Target(str(folder / "target"))
    found = bench.read_conversations(folder / "data/general/train.jsonl", target, 0.2)
    held = found.summed(found.heldout, 300)

    def drawn(size: int, resample: int) -> dict[str, Any]:
        made: dict[str, Any] = bench.drawn(
            found, size, resample, held, target.latency, target.required.ids
        )
        return made

    assert drawn(5, 0) == drawn(5, 0)
    assert len({drawn(5, i)["tokens"] for i in range(8)}) > 1
    assert drawn(10, 0)["tokens"] > drawn(5, 0)["tokens"]
    assert 0 < drawn(5, 1)["coverage"] <= 1


def point(size: int, k: float, wide: float = 0.0) -> dict[str, Any]:
    return {"size": size, "k": {"median": k, "q25": k - wide, "q75": k + wide}}


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([point(100, 960), point(200, 990), point(400, 1000)], 100),
        ([point(100, 900), point(200, 1040), point(400, 1000)], 200),
        # Near by chance once, and away from it again.
        ([point(100, 990), point(200, 900), point(400, 1000)], None),
        # Its drawings differ too much.
        ([point(100, 990, wide=60), point(200, 990, wide=30), point(400, 1000)], 200),
        # Only where most conversations are shared.
        ([point(100, 900), point(300, 990), point(400, 1000)], None),
        ([point(400, 1000)], None),
    ],
)
def test_where_it_settles(bench: Any, points: list[Any], expected: int | None) -> None:
    assert bench.settled(points, "k", 50) == expected
    wanted = [{**one, "coverage": {"median": 0.9, "q25": 0.9, "q75": 0.906}} for one in points]
    assert bench.both_settled(wanted) == {"k": expected, "coverage": None}


def test_what_is_finished_is_not_done_again(
    bench: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    real = bench.drawn

    def counted(conversations: Any, size: int, resample: int, *rest: Any) -> Any:
        if len(asked) == 5:
            raise KeyboardInterrupt
        asked.append((size, resample))
        return real(conversations, size, resample, *rest)

    monkeypatch.setattr(bench, "drawn", counted)
    only = ("--domains", "general")
    with pytest.raises(KeyboardInterrupt):
        bench.main(words(folder, tmp_path, *only))
    asked[:] = []
    bench.main(words(folder, tmp_path, *only))
    assert [pair[0] for pair in asked[:3]] == [10, 10, 10]  # 5 was whole, 10 was not
    assert len(asked) == 4
    first = (tmp_path / "target/figures.json").read_bytes()
    found = json.loads(first)
    assert list(found["domains"]) == ["general"]
    bench.main(words(folder, tmp_path, *only))
    assert len(asked) == 4
    assert (tmp_path / "target/figures.json").read_bytes() == first


def test_rows_of_an_older_format_are_not_gone_on_with(
    bench: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = bench.drawn

    def counted(conversations: Any, size: int, *rest: Any) -> Any:
        if len(asked) == 4:
            raise KeyboardInterrupt
        asked.append(size)
        return real(conversations, size, *rest)

    monkeypatch.setattr(bench, "drawn", counted)
    with pytest.raises(KeyboardInterrupt):
        bench.main(words(folder, tmp_path))
    asked[:] = []
    monkeypatch.setattr(bench, "FORMAT", bench.FORMAT + 1)
    with pytest.raises(KeyboardInterrupt):
        bench.main(words(folder, tmp_path))
    assert asked == [5, 5, 5, 10]


def test_a_figure_that_is_no_number_is_not_written(bench: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        bench.write_figures(tmp_path, {"coverage": float("nan")})
    assert not [*tmp_path.iterdir()]


def test_refusals(bench: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as raised:
        bench.main(words(folder, tmp_path, "--resamples", "0"))
    assert raised.value.code == 2
