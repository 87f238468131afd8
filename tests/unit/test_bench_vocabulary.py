"""The benchmark of vocabularies, on tiny data: its figures, other ways to choose, going on."""

from __future__ import annotations

import importlib
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
        "bench_vocabulary", EXAMPLES / "bench_vocabulary.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    for place in (module, importlib.import_module("vocabulary_figures")):
        monkeypatch.setattr(place, "ALPHAS", (0.5, 0.9))
        monkeypatch.setattr(place, "FLOORS", (0.0, 0.95))
    return module


def write_chats(path: Path, *pairs: tuple[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]}
        for a, b in pairs
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    make_tiny("llama").config.save_pretrained(folder / "Target One")
    make_byte_tokenizer().save_pretrained(folder / "Target One")
    make_byte_tokenizer().save_pretrained(folder / "words")
    sql = [(f"Number {i}? @@@@@@", f"SELECT {i % 7} FROM dogs") for i in range(40)]
    write_chats(folder / "data/sql/train.jsonl", *sql)
    write_chats(folder / "data/sql/test.jsonl", *[(f"Q{i}", f"SELECT {i}") for i in range(5)])
    (folder / "data/general").mkdir()
    write_rows(folder / "data/general/train.jsonl", "the lazy dog", 0, 40)
    write_chats(folder / "data/ood/far.jsonl", *[("?", f"{i} ~ {{{i}}}") for i in range(9)])
    write_chats(folder / "data/ood/near.jsonl", ("?", "SELECT 1"))
    return folder


def words(folder: Path, output: Path, *more: str) -> list[str]:
    files = ["--data", str(folder / "data"), "--output", str(output), "--trials", "2"]
    return [*files, "--target", str(folder / "Target One"), *more]


def test_it_measures_and_writes(
    bench: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.main(words(folder, tmp_path))
    output = tmp_path / "target-one"
    found = json.loads((output / "figures.json").read_text("utf-8"))
    target = bench.Target(str(folder / "Target One"))
    counts = TokenCounts.from_dataset(
        str(folder / "data/sql/train.jsonl"), target.tokenizer, vocab_size=300, progress=False
    )
    chosen = search_vocabulary(counts, target.latency, required=target.required)
    assert list(found["domains"]) == ["general", "sql"]
    sql = found["domains"]["sql"]
    assert sql["tokens"] == {p: counts.total(p) for p in ("search", "heldout")}
    cells = {(c["alpha"], c["min_coverage"]): c for c in sql["grid"]}
    assert set(cells) == {(0.5, 0.0), (0.5, 0.95), (0.9, 0.0), (0.9, 0.95)}
    seen = np.flatnonzero(counts.array("search"))
    assert sql["sayable"] == np.union1d(seen, target.required.ids).size
    exact = cells[0.5, 0.0]["exact"]
    assert exact["k"] == chosen.k
    assert exact["reduction"] == target.latency.reduction(chosen.k)
    assert exact["heldout"]["coverage"] == counts.coverage(chosen.vocabulary, "heldout")
    assert exact["heldout"]["low"] <= exact["heldout"]["coverage"] <= exact["heldout"]["high"]
    assert exact["gap_to_exact"] == 0
    assert 0 < exact["test"]["coverage"] <= 1
    for cell in sql["grid"]:
        assert cell["tpe"]["utility"] <= cell["exact"]["utility"]
        assert cell["exact"]["search"]["coverage"] >= cell["min_coverage"]
    assert found["domains"]["general"]["grid"][0]["exact"]["test"] is None
    assert sql["paper"]["exact"]["k"] < exact["k"]  # nothing is required there

    crossed = found["crossed"]["general"]
    assert set(crossed["domains"]) == {"general", "sql"}
    assert set(crossed["ood"]) == {"far", "near"}
    # SmolLM2's way: the required ids hold every byte, so all can be said that is not merged.
    assert crossed["ood"]["far"]["coverage"] == pytest.approx(1)
    mean = np.average(
        [crossed["ood"][name]["coverage"] for name in ("far", "near")],
        weights=[
            bench.assistant_counts(folder / f"data/ood/{n}.jsonl", n, target, 0.0).total("all")
            for n in ("far", "near")
        ],
    )
    assert crossed["ood_weighted"] == pytest.approx(mean)
    assert (output / "heat_map.png").read_bytes().startswith(b"\x89PNG")
    text = (output / "report.md").read_text("utf-8")
    assert text in capsys.readouterr().out
    for said in (
        "# Vocabularies for ",
        f"| sql | {counts.total():,} | {sql['sayable']} | {chosen.k:,} |",
        "of a step saved",
        "## Other ways to choose, judged alike",
        "| general (",
        "Weighted by tokens: ",
        "    python examples/bench_vocabulary.py --data ",
    ):
        assert said in text, said


def test_other_ways_count_other_things(bench: Any, folder: Path) -> None:
    target = bench.Target(str(folder / "Target One"))
    path = folder / "data/sql/train.jsonl"
    texts = bench.text_counts(path, target, 0.2)
    counts = bench.assistant_counts(path, "sql", target, 0.2)
    prompt = target.tokenizer.encode("@", add_special_tokens=False)[0]
    im_start = target.tokenizer.convert_tokens_to_ids("<|im_start|>")
    own = counts.array("search")
    assert own[prompt] == 0
    search = counts.conversations("search")
    assert texts.conversation[prompt] == texts.raw[prompt] == 6 * search
    assert texts.conversation[im_start] == 2 * search
    assert texts.raw[im_start] == 0
    # The assistant's tokens are some of the conversation's.
    assert (own <= texts.conversation).all()
    again = bench.text_counts(path, target, 0.2)
    assert (again.raw == texts.raw).all()

    general = np.zeros(300, dtype=np.int64)
    general[[7, 9]] = 5
    found = bench.ways(counts, None, texts, texts.raw, general, target)
    assert {name: way["k"] for name, way in found.items()} == {
        **dict.fromkeys(("vtrim", "assistant", "conversation", "raw"), found["vtrim"]["k"]),
        **dict.fromkeys(("fixed", "fixed_general"), 300),
    }
    assert found["vtrim"]["required_missing"] == 0 < found["assistant"]["required_missing"]
    assert found["fixed"]["heldout"]["coverage"] == 1
    assert found["fixed"]["reduction"] == 0
    assert found["vtrim"]["test"] is None


def killed_after_general(
    bench: Any, folder: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Kill a run behind its first domain; return the list that later runs add theirs to."""
    searched: list[str] = []
    real = bench.grid

    def killed(counts: Any, *rest: Any) -> Any:
        if searched == ["general"]:
            raise KeyboardInterrupt
        searched.extend(counts.domains)
        return real(counts, *rest)

    monkeypatch.setattr(bench, "grid", killed)
    with pytest.raises(KeyboardInterrupt):
        bench.main(words(folder, output))
    return searched


def test_what_is_finished_is_not_done_again(
    bench: Any,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = killed_after_general(bench, folder, tmp_path, monkeypatch)
    assert not (tmp_path / "target-one/figures.json").exists()
    searched[:] = []
    bench.main(words(folder, tmp_path))
    assert searched == ["sql"]
    first = (tmp_path / "target-one/figures.json").read_bytes()
    assert "going on, 1 domains are searched already" in capsys.readouterr().out
    bench.main(words(folder, tmp_path))
    assert searched == ["sql"]
    assert (tmp_path / "target-one/figures.json").read_bytes() == first
    assert sorted(path.name for path in (tmp_path / "target-one").iterdir()) == [
        "figures.json",
        "heat_map.png",
        "report.md",
    ]


def test_rows_of_an_older_format_are_not_gone_on_with(
    bench: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = killed_after_general(bench, folder, tmp_path, monkeypatch)
    searched[:] = []
    monkeypatch.setattr(bench, "FORMAT", bench.FORMAT + 1)
    with pytest.raises(KeyboardInterrupt):
        bench.main(words(folder, tmp_path))
    assert searched == ["general"]


def test_sets_called_like_a_domain_or_without_answers(
    bench: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of prompts alone do for bench_decoding.py; here they are left out, and it is said."""
    data = tmp_path / "data"
    for name in ("sql", "general"):
        (data / name).mkdir(parents=True)
        rows = (folder / "data" / name / "train.jsonl").read_bytes()
        (data / name / "train.jsonl").write_bytes(rows)
    asked = json.dumps({"messages": [{"role": "user", "content": "only asked"}]}) + "\n"
    (data / "ood").mkdir()
    (data / "ood/asked.jsonl").write_text(asked, "utf-8")
    (data / "general/test.jsonl").write_text(asked, "utf-8")
    rows = (folder / "data/general/train.jsonl").read_bytes()
    (data / "ood/sql.jsonl").write_bytes(rows)
    plots = importlib.import_module("vocabulary_plots")
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda _, figure, *rest, dpi: drawn.append(figure))
    bench.main([*words(folder, tmp_path / "out"), "--data", str(data)])
    output = tmp_path / "out/target-one"
    found = json.loads((output / "figures.json").read_text("utf-8"))
    assert found["unanswered"] == [str(data / "ood/asked.jsonl"), str(data / "general/test.jsonl")]
    told = (output / "report.md").read_text("utf-8")
    assert f"Left out, for nobody answers in them: {data / 'ood/asked.jsonl'}, " in told
    row = found["crossed"]["sql"]
    assert set(row["ood"]) == {"sql"}
    assert row["ood"]["sql"]["coverage"] != row["domains"]["sql"]["coverage"]
    (axes, _) = drawn[0].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "general",
        "sql",
        "ood: sql",
    ]
    shown = [text.get_text() for text in axes.texts[3:]]
    values = (row["domains"]["general"], row["domains"]["sql"], row["ood"]["sql"])
    assert shown == [f"{value['coverage']:.1%}" for value in values]


@pytest.mark.parametrize("script", ["bench_vocabulary", "bench_stability"])
def test_a_domain_without_answers_in_a_part_is_named_before_anything_is_searched(
    bench: Any, folder: Path, tmp_path: Path, script: str
) -> None:
    module = importlib.import_module(script)
    call = ["--target", str(folder / "Target One"), "--output", str(tmp_path / "out")]
    data = tmp_path / "data"
    write_chats(data / "law/train.jsonl", ("a", "b"))
    with pytest.raises(SystemExit, match=r"part of .*law/train\.jsonl must hold answers.*0\.2"):
        module.main([*call, "--data", str(data)])
    write_chats(data / "law/train.jsonl")
    with pytest.raises(SystemExit, match=r"law/train\.jsonl must hold answers.* --domains"):
        module.main([*call, "--data", str(data)])
    write_chats(data / "all domains/train.jsonl", ("a", "b"))
    with pytest.raises(SystemExit, match="'all domains' is taken"):
        module.main([*call, "--data", str(data), "--domains", "all domains"])
    assert not [*tmp_path.glob("out/*/figures.json")]


def test_figures_of_another_target_or_script_are_not_written_over(
    bench: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "target-one/figures.json"
    figures.parent.mkdir()
    facts = {"target": "other/Target One"}
    held = {"facts": facts, "command": "python examples/bench_vocabulary.py"}
    for change in ({}, {"facts": {"target": str(folder / "Target One")}, "command": "else"}):
        figures.write_text(json.dumps(held | change), "utf-8")
        with pytest.raises(SystemExit, match=r"must be of the target .* name another --output"):
            bench.main(words(folder, tmp_path))
        assert json.loads(figures.read_text("utf-8")) == held | change
    with pytest.raises(SystemExit):
        bench.main(words(folder, tmp_path, "--target", "llama3", "--target", "/models/llama3"))
    assert "targets must have different names" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"{}", b"\xff", b'{"facts": []}', b'{"facts": {"target": "x"}}']
)
def test_damaged_figures_are_named(
    bench: Any, folder: Path, tmp_path: Path, content: bytes
) -> None:
    figures = tmp_path / "target-one/figures.json"
    figures.parent.mkdir()
    figures.write_bytes(content)
    with pytest.raises(SystemExit, match=r"figures.json is damaged: .*; delete it"):
        bench.main(words(folder, tmp_path))


def test_the_committed_figures_may_be_measured_again_by_their_own_commands(bench: Any) -> None:
    runs = importlib.import_module("vocabulary_runs")
    for kind in ("vocabulary", "stability"):
        places = sorted((EXAMPLES / "evidence" / kind).glob("*/figures.json"))
        assert places
        for figures in places:
            told = json.loads(figures.read_text("utf-8"))["command"].split()
            name = told[told.index("--target") + 1]
            assert runs.slug_of(name) == figures.parent.name
            runs._refuse_others(name, Path(told[1]).name, figures)  # raises if it may not


def test_a_tokenizer_alone_takes_the_layer_of_another(bench: Any, folder: Path) -> None:
    target = bench.Target(str(folder / "words"), layer_of=str(folder / "Target One"))
    assert target.vocab_size == 300
    assert target.latency.body == bench.Target(str(folder / "Target One")).latency.body
    assert target.tokenizer.eos_token_id in target.required
    with pytest.raises(SystemExit, match="--layer-of MODEL"):
        bench.measure(
            bench.Target(str(folder / "words")),
            [],
            folder,
            folder,
            trials=1,
            heldout=0.2,
            command="",
        )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--domains", "law"], "no 'law'"),
        (["--data", "nowhere"], "holds no DOMAIN/train.jsonl"),
        (["--trials", "0"], None),
        (["--heldout", "1"], None),
        (["--target", "x/Target One"], None),
    ],
)
def test_refusals(
    bench: Any,
    folder: Path,
    tmp_path: Path,
    more: list[str],
    said: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as raised:
        bench.main(words(folder, tmp_path, *more))
    if said is None:
        assert raised.value.code == 2
        assert "must" in capsys.readouterr().err
    else:
        assert said in str(raised.value)
