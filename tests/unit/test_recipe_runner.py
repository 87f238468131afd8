"""Running recipes on tiny models: what is made, kept and made anew; kills; goals; two at once."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from recipes import RECIPE, make_recipe_folder, write_rows
from tiny_models import perturbed
from vtrim_hf import DecodeReport, SearchResult, TokenCounts, TrimmedDraftForCausalLM
from vtrim_hf.recipe import load_recipe
from vtrim_hf.recipe_runner import RunReport, run_recipe
from vtrim_hf.run_folder import RunFolder
from vtrim_hf.run_lock import LOCK_FILE, RunLock

pytestmark = pytest.mark.newest  # on the oldest releases test_cli_running.py runs a recipe

ROOT = Path(__file__).resolve().parents[2]
ALL = ["count a", "count b", "search", "trim", "measure"]


def run(folder: Path, **options: Any) -> RunReport:
    return run_recipe(
        load_recipe(folder / "recipe.yaml"), folder / "run", progress=False, **options
    )


def done(report: RunReport, status: str = "done") -> list[str]:
    return [piece.piece for piece in report.pieces if piece.status == status]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe that was run once; copy it before anything is changed."""
    folder = tmp_path_factory.mktemp("finished")
    make_recipe_folder(folder)
    report = run(folder)
    assert done(report) == ALL
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "recipe.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_the_folder_holds_everything(finished: Path) -> None:
    place = finished / "run"
    assert (place / "recipe.yaml").read_text("utf-8") == RECIPE
    counts = TokenCounts.load(place / "count" / "a.safetensors")
    result = SearchResult.load(place / "search" / "search.json")
    draft = TrimmedDraftForCausalLM.from_pretrained(place / "draft")
    report = DecodeReport.load(place / "measure" / "decode_report.json")
    assert counts.conversations("all", "a") == 30
    assert set(result.per_domain) == {"a", "b"}
    assert draft.config.vocabulary_fingerprint == result.vocabulary.fingerprint
    assert draft.generation_config.num_assistant_tokens == 2
    assert draft.coverage_metadata["draft"]["k"] == result.k
    assert {"draft", "full"} <= set(report.entries)
    assert len(report.rows) == 4
    assert list(place.glob("count/*.b.answers.jsonl"))
    for plot in ("search/search.png", "measure/decode_report.png"):
        assert (place / plot).is_file()
    known = json.loads((place / "versions.json").read_text("utf-8"))
    assert known["packages"]["torch"]
    assert known["machine"]["cpu"]
    summary = json.loads((place / "report.json").read_text("utf-8"))
    (one,) = summary["drafts"]
    assert one["k"] == result.k
    assert one["speedup"] == report.speedup
    assert set(one["measured_by_domain"]) == {"a", "b"}
    text = (place / "report.md").read_text("utf-8")
    assert f"{result.k} of 300 ids" in text
    assert "](search/search.png)" in text
    assert not [path for path in place.rglob(".*") if path.name != LOCK_FILE]
    assert not list(place.rglob("*.rows.jsonl"))


def test_prompts_without_test_data_are_held_out(finished: Path) -> None:
    rows = (finished / "run" / "count" / "b.heldout.jsonl").read_text("utf-8").splitlines()
    counts = TokenCounts.load(finished / "run" / "count" / "b.safetensors")
    assert 0 < len(rows) == counts.conversations("heldout", "b")
    assert not (finished / "run" / "count" / "a.heldout.jsonl").exists()


def change_weights(folder: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "target")
    perturbed(model, 0.01).save_pretrained(folder / "target")


def append_row(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        write_rows(folder / "more.jsonl", "rain", 90, 91)
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write((folder / "more.jsonl").read_text("utf-8"))

    return change


def edited(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: edit(folder, old, new)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda folder: None, []),
        (edited("target: target\n", "# the same\ntarget: ./target\n"), []),
        (edited("prompts: 2", "prompts: 2\n  min_speedup: 0.001"), []),
        (edited("batch_size: 4", "batch_size: 5"), []),
        (append_row("a.jsonl"), ["count a", "search", "trim", "measure"]),
        (append_row("a_test.jsonl"), ["measure"]),
        (append_row("b.jsonl"), ["count b"]),
        (edited("limit: 16", "limit: 12"), ["count b", "search", "trim", "measure"]),
        (
            edited("train: a.jsonl", "train: [a.jsonl, a_test.jsonl]"),
            ["count a", "search", "trim", "measure"],
        ),
        (edited("heldout: 0.4", "heldout: 0.4\n    weight: 3"), ["search", "trim", "measure"]),
        (edited("min_coverage: 0.9", "min_coverage: 0.99"), ["search", "trim", "measure"]),
        (edited("draft_length: 2", "draft_length: 3"), ["trim", "measure"]),
        (edited("dtype: float32", "dtype: bfloat16"), ["trim", "measure"]),
        (edited("dtype: float32", "dtype: float32\n  layers: 1"), ["search", "trim", "measure"]),
        (edited("max_new_tokens: 6\n", "max_new_tokens: 5\n"), ["measure"]),
        (edited("prompts: 2", "prompts: 1"), ["measure"]),
        (change_weights, ["count a", "count b", "search", "trim", "measure"]),
        (lambda folder: (folder / "run/search/search.json").unlink(), ["search"]),
        (lambda folder: append_row("run/measure/decode_report.json")(folder), ["measure"]),
        (lambda folder: shutil.rmtree(folder / "run/draft"), ["trim"]),
    ],
    ids=[
        "nothing", "a comment and a path spelt otherwise", "a goal", "the batch size",
        "train data", "test data", "train data beyond the limit", "answers", "more files",
        "a weight", "a coverage", "the draft length", "the dtype", "the layers",
        "new tokens", "prompts", "the target", "a product deleted", "a product changed",
        "a draft deleted",
    ],
)  # fmt: skip
def test_only_what_depends_on_a_change_runs_again(
    folder: Path,
    change: Callable[[Path], None],
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vtrim_hf.recipe_work.Workshop.plot", lambda *a: None)  # takes seconds
    change(folder)
    before = sorted(folder.rglob("*"))
    foreseen = run(folder, dry_run=True)
    assert sorted(folder.rglob("*")) == before
    report = run(folder)
    assert done(report) == expected
    assert done(report, "kept") == [piece for piece in ALL if piece not in expected]
    for piece, seen in zip(report.pieces, foreseen.pieces, strict=True):
        assert piece.piece == seen.piece
        # What was foreseen as sure came true.
        assert seen.status == "may run" or (seen.status == "will run") == (piece.status == "done")


def test_of_several_processes_each_would_run_the_whole_recipe(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"one process, got WORLD_SIZE=2.*vtrim_hf.cli train"):
        run(folder)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert done(run(folder)) == []


def test_the_code_format_is_part_of_the_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vtrim_hf import recipe_plan

    monkeypatch.setitem(recipe_plan.FORMATS, "trim", 2)
    report = run(folder)
    # The draft came out the same, so it need not be measured again.
    assert done(report) == ["trim"]
    assert "format" in report.pieces[3].reason


def test_answers_are_kept_when_more_are_wanted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vtrim_hf import target_answers

    asked: list[int] = []
    generate = target_answers._generate

    def counted(model: Any, config: Any, batch: list[Any], seed: int) -> Any:
        asked.append(len(batch))
        return generate(model, config, batch, seed)

    monkeypatch.setattr(target_answers, "_generate", counted)
    edit(folder, "limit: 16", "limit: 20")
    assert "count b" in done(run(folder, until="count"))
    assert sum(asked) == 4


def test_a_dry_run_writes_nothing_and_says_why(finished: Path, tmp_path: Path) -> None:
    report = run_recipe(load_recipe(finished / "recipe.yaml"), tmp_path / "new", dry_run=True)
    assert not (tmp_path / "new").exists()
    assert [piece.status for piece in report.pieces] == ["will run"] * 5
    assert {piece.reason for piece in report.pieces} == {"not made yet"}
    forced = run(finished, dry_run=True, force=["search"])
    assert [piece.status for piece in forced.pieces] == [
        "kept", "kept", "will run", "may run", "may run"
    ]  # fmt: skip
    assert forced.pieces[2].reason == "forced"
    assert "search" in forced.pieces[3].reason


def test_force_and_until(folder: Path) -> None:
    assert done(run(folder, force=["search"])) == ["search"]
    report = run(folder, until="search", force=["count"])
    assert [piece.piece for piece in report.pieces] == ["count a", "count b", "search"]
    assert done(report) == ["count a", "count b"]
    with pytest.raises(ValueError, match="one of count, search, trim, measure, publish"):
        run(folder, until="train")


def test_a_draft_for_each_domain(folder: Path) -> None:
    edit(folder, "domains:\n", "drafts: per_domain\ndomains:\n")
    report = run(folder, until="trim")
    assert done(report) == ["search a", "search b", "trim a", "trim b"]
    sizes = {}
    for name in ("a", "b"):
        place = folder / "run" / "domains" / name
        sizes[name] = SearchResult.load(place / "search" / "search.json")
        assert set(sizes[name].per_domain) == {name}
        draft = TrimmedDraftForCausalLM.from_pretrained(place / "draft")
        assert draft.config.draft_vocab_size == sizes[name].k
    assert sizes["a"].vocabulary.fingerprint != sizes["b"].vocabulary.fingerprint
    assert report.summary is not None
    assert [draft["name"] for draft in report.summary["drafts"]] == ["a", "b"]
    edit(folder, "    train: b.jsonl\n", "    train: b.jsonl\n    floor: 0.95\n")
    assert done(run(folder, until="trim")) == ["search b", "trim b"]


KILLS = {
    "answering": ("vtrim_hf.target_answers", "_generate", 2),
    "counting": ("vtrim_hf.batch_counting.BatchCounter", "finish", 1),
    "measuring": ("vtrim_hf.decoding_runs.DecodingRuns", "row", 3),
}
KILLED = """
import importlib, os, signal, sys
module, name, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
try:
    owner = importlib.import_module(module)
except ModuleNotFoundError:
    path, _, cls = module.rpartition(".")
    owner = getattr(importlib.import_module(path), cls)
kept, calls = getattr(owner, name), []
def killing(*args, **kwargs):
    calls.append(1)
    if len(calls) == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return kept(*args, **kwargs)
setattr(owner, name, killing)
from vtrim_hf.recipe import load_recipe
from vtrim_hf.recipe_runner import run_recipe
run_recipe(load_recipe(sys.argv[4]), sys.argv[5], progress=False, on_step=print)
"""


def test_a_killed_run_goes_on(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while answering, while counting and while measuring, each time in a new process."""
    recipe, place = finished / "recipe.yaml", tmp_path / "run"

    def killed(kill: str) -> str:
        process = subprocess.run(
            [sys.executable, "-c", KILLED, *map(str, KILLS[kill]), str(recipe), str(place)],
            env=os.environ | {"PYTHONPATH": str(ROOT), "VTRIM_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == -signal.SIGKILL, process.stdout + process.stderr
        return process.stdout

    killed("counting")
    assert not list(place.glob("count/*.safetensors"))
    assert "count a: done" in killed("answering")
    (answers,) = place.glob("count/*.answers.jsonl")
    lines = len(answers.read_text("utf-8").splitlines())
    assert lines == 1 + 4  # the header, and the one batch that was finished
    assert "count a: kept" in killed("measuring")
    assert len(answers.read_text("utf-8").splitlines()) == 1 + 16 + 1
    (rows,) = place.glob("measure/*.rows.jsonl")
    assert len(rows.read_text("utf-8").splitlines()) == 2

    from vtrim_hf.decoding_runs import DecodingRuns

    measured: list[int] = []
    row = DecodingRuns.row

    def noted(self: DecodingRuns, index: int, *others: Any) -> dict[str, Any]:
        measured.append(index)
        return row(self, index, *others)

    monkeypatch.setattr(DecodingRuns, "row", noted)
    (place / "count" / ".a.safetensors.a1_b2c3d").write_bytes(b"half")
    report = run_recipe(load_recipe(recipe), place, progress=False)
    assert measured == [2, 3]
    assert done(report) == ["measure"]
    assert not list(place.glob("measure/*.rows.jsonl"))
    assert not [path for path in place.rglob(".*") if path.name != LOCK_FILE]
    ours, theirs = (
        SearchResult.load(one / "search" / "search.json") for one in (place, finished / "run")
    )
    assert ours.vocabulary.fingerprint == theirs.vocabulary.fingerprint


@pytest.mark.parametrize("step", ["trim", "search", "measure"])
def test_ctrl_c_leaves_no_half_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    from vtrim_hf.decoding_runs import DecodingRuns

    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    owner, name = {
        "trim": (
            type(TrimmedDraftForCausalLM.from_pretrained(folder / "run/draft")),
            "save_facts",
        ),
        "search": (SearchResult, "plot"),
        "measure": (DecodingRuns, "row"),
    }[step]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, interrupt)
        before = {
            path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()
        }
        with pytest.raises(KeyboardInterrupt):
            run(folder, force=[step])
    ours = ("versions.json", LOCK_FILE, "report.json", "report.md")
    after = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    assert {p: d for p, d in after.items() if p.name not in ours} == {
        p: d for p, d in before.items() if p.name not in ours
    }
    assert done(run(folder)) == []


def test_two_runs_at_once(folder: Path) -> None:
    with RunLock(folder / "run"):
        with pytest.raises(ValueError, match=rf"process {os.getpid()}\) is at work"):
            run(folder)
        assert run(folder, dry_run=True).pieces
    assert done(run(folder)) == []


def test_a_folder_of_something_else_is_refused(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine", encoding="utf-8")
    recipe = load_recipe(finished / "recipe.yaml")
    with pytest.raises(ValueError, match="no run's folder"):
        run_recipe(recipe, tmp_path)
    with pytest.raises(ValueError, match="is a file"):
        run_recipe(recipe, tmp_path / "thesis.tex", dry_run=True)
    shutil.copytree(finished / "run", tmp_path / "run")
    record = tmp_path / "run" / "run.json"
    good = json.loads(record.read_text("utf-8"))
    damaged: list[Any] = [
        {"format": 1, "pieces": {"x": 3}},
        {"format": 1, "pieces": []},
        {**good, "repositories": [["http://hub"]]},
        {**good, "repositories": [[1, 2]]},
    ]
    for key, value in (("files", [1]), ("files", {"x": 1}), ("needs", 3), ("seconds", "long")):
        piece = {**good["pieces"]["search"], key: value}
        damaged.append({**good, "pieces": {**good["pieces"], "search": piece}})
    for data in damaged:
        record.write_text(json.dumps(data), "utf-8")
        with pytest.raises(
            ValueError, match=r"no record of this release's runs.* delete the file"
        ):
            RunFolder(tmp_path / "run")


def test_without_its_record_all_is_made_anew(folder: Path) -> None:
    """What the message about a damaged record advises."""
    (folder / "run" / "run.json").unlink()
    assert done(run(folder, until="search")) == ["count a", "count b", "search"]


def test_what_a_user_put_into_the_folder_stays(folder: Path) -> None:
    place = folder / "run"
    theirs = [".git/config", ".gitignore", "count/.ipynb_checkpoints/a.safetensors", ".vtrim/x",
              "count/.notes.safetensors", "search/.keep", "domains/.keep",
              "notes/.vtrim-tmp-1/x", ".run.json.swp", "count/.a.safetensors.backup",
              "draft/.search.abcd1234/x"]  # fmt: skip
    ours = [".vtrim-tmp-abc/new/x", ".run.json.abcd_123", "count/.b.heldout.jsonl.abcd1234",
            "measure/.decode_report.json.abcd1234", "domains/a/.vtrim-tmp-abc/old/x"]  # fmt: skip
    for name in (*theirs, *ours):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("x", encoding="utf-8")
    (place / ".vtrim-tmp-link").symlink_to(folder, target_is_directory=True)
    run(folder, until="count")
    assert [name for name in theirs if not (place / name).is_file()] == []
    assert [name for name in ours if (place / name).exists()] == []
    assert not (place / ".vtrim-tmp-abc").exists()
    assert (folder / "recipe.yaml").is_file()


def test_a_run_that_fails_leaves_no_report_of_an_earlier_recipe(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ValueError("no luck")

    monkeypatch.setattr("vtrim_hf.recipe_work.search_counts", fail)
    edit(folder, "min_coverage: 0.9", "min_coverage: 0.95")
    with pytest.raises(ValueError, match="no luck"):
        run(folder)
    assert "0.95" in (folder / "run" / "recipe.yaml").read_text("utf-8")
    assert not list((folder / "run").glob("report.*"))


def test_what_is_published_is_noted_before(tmp_path: Path) -> None:
    """A kill may follow at once; an error that changed nothing is taken back."""
    from vtrim_hf.hub_errors import PublishError

    def publish(name: str, error: BaseException, *, proposed: bool = False) -> bool:
        folder = RunFolder(tmp_path)

        def fail() -> None:
            with folder.publishing("http://hub", name, proposed=proposed) as own:
                assert own is False
                assert RunFolder(tmp_path).owns("http://hub", name) is not proposed
                raise error

        with pytest.raises(type(error)):
            fail()
        again = RunFolder(tmp_path)
        assert not again.owns("http://other", name)
        return again.owns("http://hub", name)

    RunFolder(tmp_path).begin()
    assert publish("me/killed", KeyboardInterrupt())
    assert publish("me/half", PublishError("the upload failed", "again", ["it was created"]))
    assert not publish("me/taken", PublishError("it exists already", "another name"))
    assert not publish("me/wrong", ValueError("no licence"))
    assert not publish("me/theirs", KeyboardInterrupt(), proposed=True)
    lost = PublishError("the connection was lost", "again")
    lost.__cause__ = type("ReadError", (OSError,), {"__module__": "httpx"})()
    assert publish("me/lost", lost)
    with RunFolder(tmp_path).publishing("http://hub", "me/killed", proposed=False) as own:
        assert own


def test_a_domain_without_a_prompt_is_noticed_when_it_is_counted(folder: Path) -> None:
    write_rows(folder / "one.jsonl", "fox", 1, 2)
    edit(folder, "train: b.jsonl", "train: one.jsonl")
    edit(folder, "heldout: 0.4", "heldout: 0.0001")
    with pytest.raises(ValueError, match=r"recipe.yaml:\d+: none of the held-out .* greater"):
        run(folder)
    edit(folder, "    heldout: 0.0001\n", "    test: a_test.jsonl\n    heldout: 0.9\n")
    with pytest.raises(ValueError, match=r"recipe.yaml:11: of 1 conversations none is left"):
        run(folder)


def test_a_folder_where_the_run_starts_is_not_taken_for_a_hub_id(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = (finished / "recipe.yaml").read_text("utf-8").replace("small", "me/small")
    recipe = recipe.replace("train: a.jsonl", "train: me/data")
    for name in ("target", "a.jsonl", "a_test.jsonl", "b.jsonl"):
        (tmp_path / name).symlink_to(finished / name)
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    loaded = load_recipe(tmp_path / "recipe.yaml")
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(finished / "small", elsewhere / "me" / "small")
    shutil.copyfile(finished / "a.jsonl", elsewhere / "me" / "data")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(ValueError, match="2 mistakes") as caught:
        run_recipe(loaded, tmp_path / "run", dry_run=True)
    assert str(caught.value).count("which would be read instead") == 2


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("target: target", "target: me/gone-model", 1, "cannot load"),
        ("model: small", "model: other", 3, "must share its target's tokenizer"),
        ("dtype: float32", "layers: 9", 4, "has 2 layers, got 9"),
        ("train: a.jsonl", "train: odd.jsonl", 8, "no row that can be read"),
        ("test: a_test.jsonl", "test: empty.jsonl", 9, "it is empty"),
        ("test: a_test.jsonl", "test: alone.jsonl", 9, "holds no prompt"),
        ("train: b.jsonl", "train: alone.jsonl", 11, "holds no prompt"),
        ("min_coverage: 0.9", "k_min: 301", 14, "the target"),
        ("min_coverage: 0.9", "multiple_of: 301", 14, "has 300 ids in all"),
        (
            "min_coverage: 0.9",
            "{k_min: 275, k_max: 280, multiple_of: 64}",
            14,
            "no multiple of 64",
        ),
        ("min_coverage: 0.9", "{k_min: 1, k_max: 1, keep: abc}", 14, "ids must stay"),
    ],
)
def test_what_opening_shows_is_a_mistake_with_its_line(
    folder: Path, old: str, new: str, line: int, said: str
) -> None:
    from tiny_models import make_byte_tokenizer

    shutil.copytree(folder / "small", folder / "other")
    tokenizer = make_byte_tokenizer()
    tokenizer.add_tokens(["<other>"])
    tokenizer.save_pretrained(folder / "other")
    (folder / "odd.jsonl").write_text('{"x": 1}\n', encoding="utf-8")
    (folder / "empty.jsonl").write_text("", encoding="utf-8")
    alone = {"messages": [{"role": "assistant", "content": "nobody asked"}]}
    (folder / "alone.jsonl").write_text(json.dumps(alone) + "\n", encoding="utf-8")
    edit(folder, old, new)
    before = (folder / "run" / "report.json").stat().st_mtime_ns
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        run(folder)
    assert f"recipe.yaml:{line}: " in str(caught.value)
    assert (folder / "run" / "report.json").stat().st_mtime_ns == before


def test_a_missed_goal_withholds_the_draft(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[tuple[Any, ...]] = []
    checked: list[bool] = []

    def publish(draft: Any, name: str, **options: Any) -> Any:
        published.append((Path(draft).name, name, options))
        return types.SimpleNamespace(
            url=f"http://hub/{name}", commit="c" * 40, revision="main", files=(), steps=()
        )

    hub = types.ModuleType("vtrim_hf.hub")
    monkeypatch.setattr(hub, "publish", publish, raising=False)
    monkeypatch.setitem(sys.modules, "vtrim_hf.hub", hub)

    def check(recipe: Any, scopes: list[str | None], owns: Callable[[str, str], bool]) -> None:
        checked.extend(owns("http://hub", "me/draft") for _ in scopes)

    monkeypatch.setattr("vtrim_hf.recipe_runner.check_publishing", check)
    edit(folder, "  prompts: 2\n", "  prompts: 2\n  min_speedup: 100\n")
    with (folder / "recipe.yaml").open("a", encoding="utf-8") as file:
        file.write("publish:\n  repo_id: me/draft\n  license: mit\n  endpoint: http://hub\n")
    # It is known already that it will be withheld: nobody has to be logged in.
    assert done(run(folder, dry_run=True), "withheld") == ["publish"]
    remarks: list[str] = []
    report = run(folder, say=remarks.append)
    assert report.goal_met is False
    assert checked == []
    assert any("withheld" in remark for remark in remarks)
    assert done(report, "withheld") == ["publish"]
    assert published == []
    assert "**missed**" in (folder / "run" / "report.md").read_text("utf-8")

    edit(folder, "license: mit\n", "license: mit\n  despite_missed_goal: true\n")
    report = run(folder)
    assert (report.goal_met, done(report)) == (False, ["publish"])
    ((draft, name, options),) = published
    assert (draft, name, options["license"], options["exist_ok"]) == (
        "draft", "me/draft", "mit", False
    )  # fmt: skip
    assert isinstance(options["report"], DecodeReport)
    assert options["search"].k == options["report"].draft.facts["draft_vocab_size"]
    assert report.summary is not None
    assert report.summary["drafts"][0]["published"]["url"] == "http://hub/me/draft"
    assert done(run(folder)) == []

    edit(folder, "license: mit\n", "license: apache-2.0\n")
    edit(folder, "min_speedup: 100", "min_speedup: 0.0001")
    report = run(folder)
    assert (report.goal_met, done(report)) == (True, ["publish"])
    assert published[1][2]["exist_ok"], "this run made the repository"
    assert checked == [False, False, True, True], "at the start and again before each"


def test_nobody_logged_in_is_noticed_before_any_work(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vtrim_hf.hub_account")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    text = (finished / "recipe.yaml").read_text("utf-8")
    for name in ("target", "small", "a.jsonl", "a_test.jsonl", "b.jsonl"):
        (tmp_path / name).symlink_to(finished / name)
    (tmp_path / "recipe.yaml").write_text(
        text + "publish:\n  repo_id: me/x\n  license: mit\n", encoding="utf-8"
    )
    for dry in (True, False):
        with pytest.raises(ValueError, match=r"recipe\.yaml:20: publish: nobody is logged in"):
            run(tmp_path, dry_run=dry)
    assert not (tmp_path / "run" / "count").exists()
    assert done(run(tmp_path, until="count")) == ["count a", "count b"]
