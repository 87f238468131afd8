"""The benchmark of task quality, on tiny models: what it asks, what it writes, its verdict."""

from __future__ import annotations

import importlib
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from drafting import make_eagle
from tiny_models import make_byte_tokenizer, make_tiny

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KEPT = range(0, 300, 2)
CALL = '[{"name": "f", "arguments": {"x": 1}}]'
ROWS = {
    "math": [("1 + 1?", "1 + 1 = 2\n#### 2"), ("2 + 3?", "#### 5"), ("4 + 4?", "#### 8")],
    "ner": [("who? Ada slept.", '{"person": ["Ada"]}'), ("who? It rains.", "{}")] * 2,
    "function_calling": [("call f", CALL), ("call it" + " long" * 200, CALL), ("again", CALL)],
}


@pytest.fixture(autouse=True)
def _examples_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.fixture
def bench() -> Any:
    return importlib.import_module("bench_task_quality")


@pytest.fixture
def answers() -> Any:
    return importlib.import_module("task_answers")


@pytest.fixture
def asked() -> Any:
    return importlib.import_module("task_questions")


def write(path: Path, rows: list[tuple[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for question, answer in rows:
            turns = [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
            file.write(json.dumps({"messages": turns}) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quality")
    target = make_tiny("llama", num_hidden_layers=4, eos_token_id=2)
    target.save_pretrained(folder / "target")
    make_byte_tokenizer().save_pretrained(folder / "target")
    make_eagle(target, KEPT, length=2).save_pretrained(folder / "draft")
    make_eagle(target, length=2).save_pretrained(folder / "wide")
    for name, rows in ROWS.items():
        write(folder / "data" / name / "test.jsonl", rows)
        write(folder / "data" / name / "train.jsonl", [("so long" * 300, "x"), *rows[:2]])
    return folder


def words(folder: Path, output: Path, *more: str) -> list[str]:
    files = {"target": "target", "data": "data"}
    named = [word for name, file in files.items() for word in (f"--{name}", str(folder / file))]
    numbers = ["--prompts", "2", "--shots", "1", "--max-new-tokens", "8"]
    limit = ["--max-prompt-tokens", "400", "--draft", str(folder / "draft")]
    places = ["--output", str(output), "--work", str(output / "work")]
    return [*named, *numbers, *limit, *places, *more]


def test_it_scores_and_writes(
    bench: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    bench.main(words(folder, output, "--draft", f"ner={folder / 'wide'}"))
    found = json.loads((output / "figures.json").read_text(encoding="utf-8"))
    assert list(found["tasks"]) == ["math", "ner", "function_calling"]
    for name, metric in (
        ("math", "number_match"),
        ("ner", "entity_f1"),
        ("function_calling", "call_match"),
    ):
        one = found["tasks"][name]
        exact = one["float32"]
        assert exact["identical"] == [2, 2]
        assert exact["plain"] == exact["draft"]
        assert metric in exact["plain"]
        assert exact["plain"]["total"] == one["bfloat16"]["plain"]["total"] == 2
        assert exact["acceptance_length"]["acceptance_length"] >= 1
        assert one["longer"] == (1 if name == "function_calling" else 0)
        assert one["draft_vocab_size"] == (300 if name == "ner" else len(KEPT))
        answers = (output / "work" / f"{name}_answers.jsonl").read_text("utf-8").splitlines()
        assert len(answers) == 2
        for line in answers:
            answer = json.loads(line)
            assert answer["float32"]["plain"] == answer["float32"]["draft"]
    assert found["tasks"]["ner"]["float32"]["token_coverage"] is None  # its draft says all
    covered = found["tasks"]["math"]["float32"]["token_coverage"]
    assert all(one["id"] % 2 and one["text"] for one in covered["most_missed"])
    machines = found["tasks"]["math"]["machines"]
    assert [machine["versions"]["torch"] for machine in machines] == [version("torch")]
    assert {path.name for path in output.iterdir()} == {
        "figures.json",
        "report.md",
        "report.png",
        "work",
    }
    assert not list(output.glob("work/*.rows.jsonl"))
    assert (output / "report.png").read_bytes().startswith(b"\x89PNG")
    text = (output / "report.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    for said in (
        "In float32 all 6 texts are the target's own, token by token",
        "| math: GSM8K, final number | float32 |",
        "| function_calling: function calls, all right | bfloat16 |",
        "- ner: draft ",
        "1 of more than 400 tokens passed over",
        "unreadable 2 of 2",
        "    python examples/bench_task_quality.py --target ",
        ", evaluate ",
        "(report.png)",
    ):
        assert said in text, said


def test_a_killed_run_goes_on_and_tasks_come_together(
    bench: Any, answers: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []
    real = answers.DecodingRuns.call

    def counted(run: Any, way: Any, inputs: Any, index: int, **how: Any) -> Any:
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append((way.name, index))
        return real(run, way, inputs, index, **how)

    monkeypatch.setattr(answers.DecodingRuns, "call", counted)
    only = words(folder, tmp_path, "--tasks", "math")
    with pytest.raises(KeyboardInterrupt):
        bench.main(only)
    assert not (tmp_path / "figures.json").exists()
    calls[:] = [("", 0)] * 9  # never 3 again
    bench.main(only)
    assert [index for _, index in calls[9:]] == [1, 1, 0, 0, 1, 1]  # float32's rest, bfloat16
    first = (tmp_path / "figures.json").read_bytes()
    number = len(calls)
    bench.main(only)
    assert len(calls) == number
    assert (tmp_path / "figures.json").read_bytes() == first
    bench.main(words(folder, tmp_path, "--tasks", "ner"))
    found = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert list(found["tasks"]) == ["math", "ner"]
    assert found["tasks"]["math"] == json.loads(first)["tasks"]["math"]
    assert (tmp_path / "report.md").read_text("utf-8").count("    python examples/") == 2

    # What another target did does not go, and is not mixed with.
    there = (tmp_path / "figures.json").read_bytes()
    other = make_tiny("llama", num_hidden_layers=4, eos_token_id=2, seed=5)
    other.save_pretrained(tmp_path / "other")
    make_byte_tokenizer().save_pretrained(tmp_path / "other")
    with pytest.raises(SystemExit, match=r"was measured with target_identity .* another --output"):
        bench.main(words(folder, tmp_path, "--target", str(tmp_path / "other")))
    assert (tmp_path / "figures.json").read_bytes() == there
    with pytest.raises(SystemExit, match=r"0 minutes are over .*: the same command goes on"):
        bench.main(words(folder, tmp_path, "--minutes", "0"))


def test_rows_stay_until_the_figures_are_written(
    bench: Any, answers: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    only = words(folder, tmp_path, "--tasks", "math")
    with monkeypatch.context() as patched:
        patched.setattr(bench, "write_results", killed)
        with pytest.raises(KeyboardInterrupt):
            bench.main(only)
    assert len(list(tmp_path.glob("work/*.rows.jsonl"))) == 2
    monkeypatch.setattr(answers.DecodingRuns, "call", killed)  # nothing is answered again
    bench.main(only)
    assert (tmp_path / "figures.json").is_file()
    assert not list(tmp_path.glob("work/*.rows.jsonl"))


def test_the_drawing_shows_every_score_and_length(bench: Any) -> None:
    def part(alone: float, drafted: float, length: float | None) -> dict[str, Any]:
        scores = {
            way: {"number_match": score, "low": score - 0.1, "high": score + 0.1}
            for way, score in (("plain", alone), ("draft", drafted))
        }
        taken = None if length is None else {"acceptance_length": length}
        return {**scores, "acceptance_length": taken}

    one = {"float32": part(0.5, 0.5, 1.5), "bfloat16": part(0.4, 0.3, None)}
    scores, lengths = bench.draw({"tasks": {"math": one}}).axes
    drawn = [[*line[0].get_xdata()] for line in scores.containers]
    assert drawn == [[0.5, 0.4], [0.5, 0.3]]
    assert [bar.get_width() for bar in lengths.patches] == [1.5, 0]
    names = [label.get_text() for label in scores.get_yticklabels()]
    assert names == ["math, float32", "math, bfloat16"]


def test_a_changed_text_is_found(
    bench: Any,
    answers: Any,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = answers.DecodingRuns.call

    def changed(run: Any, way: Any, inputs: Any, index: int, **how: Any) -> Any:
        ids, tally = real(run, way, inputs, index, **how)
        if way.draft is not None and index == 1:
            ids = [*ids[:-1], (ids[-1] + 1) % 300]
        return ids, tally

    monkeypatch.setattr(answers.DecodingRuns, "call", changed)
    with pytest.raises(SystemExit, match=r"changed a text in float32.*: math, prompt 1, token 7"):
        bench.main(words(folder, tmp_path, "--tasks", "math"))
    assert "In float32 1 of 2 texts are not the target's own, 0 of them" in capsys.readouterr().out


def test_drafts_are_counted_by_their_length(answers: Any) -> None:
    # 5 drafts: two of nothing, one of 1, two of 3
    assert answers.each_draft([3, 2, 2], 5) == [0, 0, 1, 3, 3]
    assert answers.each_draft([], 2) == [0, 0]
    assert answers.each_draft([], 0) == []


def test_where_texts_part(answers: Any, tiny_llama: Any) -> None:
    prompt = torch.tensor([[5, 6, 7]])
    logits = tiny_llama(torch.tensor([[5, 6, 7, 9]])).logits[0, -1].detach()
    found = answers.first_difference(tiny_llama, prompt, [9, 11, 4], [9, 12, 4])
    assert found["position"] == 1
    assert found["gap"] == pytest.approx(float((logits[11] - logits[12]).abs()), rel=1e-4)
    assert found["near_tie"] is False
    with torch.no_grad():  # two tokens that can never be told apart
        head = tiny_llama.get_output_embeddings().weight
        head[12] = head[11]
    assert answers.first_difference(tiny_llama, prompt, [9, 11], [9, 12])["near_tie"] is True
    ends = answers.first_difference(tiny_llama, prompt, [9], [9, 12])
    assert ends == {
        "position": 1,
        "plain_token": None,
        "token": 12,
        "gap": None,
        "near_tie": False,
    }


def test_prompts_begin_with_short_answered_conversations(
    asked: Any, folder: Path, byte_tokenizer: Any
) -> None:
    train = folder / "data" / "ner" / "train.jsonl"  # a long one, one of Ada, one without entity
    assert [turn["content"] for turn in asked.examples(train, 1)] == list(ROWS["ner"][0])
    data = folder / "data" / "math"
    found = asked.read_questions(
        data, asked.TASKS["math"], byte_tokenizer, 3, shots=1, longest=400
    )
    assert found.answers == [answer for _, answer in ROWS["math"]]
    text = byte_tokenizer.decode(found.prompts[1])
    assert [text.count(part) for part in ("1 + 1?", "#### 2", "2 + 3?", "#### 5")] == [1, 1, 1, 0]
    assert text.endswith("<|im_start|>assistant\n")
    bare = asked.read_questions(data, asked.TASKS["math"], byte_tokenizer, 1, shots=0, longest=400)
    assert "#### 2" not in byte_tokenizer.decode(bare.prompts[0])
    with pytest.raises(SystemExit, match="holds 3 prompts of at most 400 tokens, asked for 4"):
        asked.read_questions(data, asked.TASKS["math"], byte_tokenizer, 4, shots=1, longest=400)
    with pytest.raises(SystemExit, match=r"there is no .*build_domains.py makes it"):
        asked.read_questions(folder, asked.TASKS["math"], byte_tokenizer, 1, shots=0, longest=400)


def test_fewer_conversations_than_shots_are_refused(
    asked: Any, folder: Path, byte_tokenizer: Any
) -> None:
    with pytest.raises(
        SystemExit, match=r"train.jsonl holds 1 answered .* asked for 2: lower --shots"
    ):
        asked.read_questions(
            folder / "data" / "ner", asked.TASKS["ner"], byte_tokenizer, 1, shots=2, longest=400
        )


def test_rows_are_read_in_every_shape(asked: Any, tmp_path: Path, byte_tokenizer: Any) -> None:
    task = asked.TASKS["math"]
    turns = [{"role": "user", "content": "who?"}, {"role": "assistant", "content": "7"}]
    said = [{"from": "human", "value": "who?"}, {"from": "gpt", "value": "7"}]
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    rows = [
        {"messages": turns},
        {"vtrim_record": 1},
        {"conversations": said},
        {"messages": [turns[0], called]},  # has no answer of text
        {"prompt": "who?", "completion": "7"},
        {"messages": turns[:1]},
        {"instruction": "who?", "output": "7"},
    ]
    for name in ("train", "test"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    found = asked.read_questions(tmp_path, task, byte_tokenizer, 4, shots=4, longest=4000)
    assert found.answers == ["7"] * 4
    assert found.prompts == [found.prompts[0]] * 4
    assert byte_tokenizer.decode(found.prompts[0]).count("who?") == 5
    # As the tokenizer itself renders it.
    bare = asked.read_questions(tmp_path, task, byte_tokenizer, 1, shots=0, longest=4000)
    rendered = byte_tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True)
    assert bare.prompts == [list(rendered["input_ids"])]


@pytest.mark.parametrize(
    ("task", "wrong", "told"),
    [
        ("math", "no idea", "must hold a number, got 'no idea'"),
        ("ner", "Ada", "must be a JSON object of lists by kind, got 'Ada'"),
        ("function_calling", "f(x=1)", "must be a JSON list of calls"),
    ],
)
def test_right_answers_that_cannot_be_scored_are_named_before_any_is_asked(
    bench: Any, folder: Path, tmp_path: Path, task: str, wrong: str, told: str
) -> None:
    data = tmp_path / "data" / task
    write(data / "train.jsonl", ROWS[task])
    write(data / "test.jsonl", [ROWS[task][0], ("again?", wrong)])
    call = words(folder, tmp_path / "out", "--data", str(tmp_path / "data"), "--tasks", task)
    with pytest.raises(SystemExit, match=f"test.jsonl:2: the right answer {told}"):
        bench.main(call)
    assert not list(tmp_path.glob("out/work/*"))


def test_a_draft_of_another_target_is_refused_before_anything_is_answered(
    bench: Any, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "draft", tmp_path / "other")
    config = json.loads((tmp_path / "other/config.json").read_text("utf-8"))
    config["target_num_hidden_layers"] = 28
    (tmp_path / "other/config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(SystemExit, match=r"other cannot draft for .*target: "):
        bench.main(words(folder, tmp_path / "out", "--draft", f"ner={tmp_path / 'other'}"))
    assert not list(tmp_path.glob("out/work/*"))


def test_a_score_without_an_interval_of_its_own_is_told_alone(bench: Any) -> None:
    report = importlib.import_module("task_quality_report")
    flat = {"entity_f1": 0.0, "low": 0.0, "high": 0.0}
    wide = {"entity_f1": 0.25, "low": 0.0, "high": 0.5}
    assert report.share(flat, "entity_f1") == "0.0%"
    assert report.share(wide, "entity_f1") == "25.0% (0.0% to 50.0%)"
    parts = importlib.import_module("readme_parts")
    assert parts.scored(flat, "entity_f1") == "0.0 %"
    assert parts.scored(wide, "entity_f1") == "25.0 % (0.0 % to 50.0 %)"
    tasks = {"ner": {dtype: {"plain": wide, "draft": wide} for dtype in report.DTYPES}}
    assert report.missing_intervals(tasks) == []
    tasks["ner"]["bfloat16"]["draft"] = flat
    (_, said) = report.missing_intervals(tasks)
    assert said.startswith("A score without an interval ")


def test_the_committed_report_is_that_of_its_figures(bench: Any) -> None:
    folder = EXAMPLES / "evidence/quality"
    found = json.loads((folder / "figures.json").read_text("utf-8"))
    assert bench.markdown(found) == (folder / "report.md").read_text("utf-8")


def test_drafts_by_task(bench: Any) -> None:
    assert bench.named(["a", "ner=b"], ["math", "ner"]) == {"math": "a", "ner": "b"}
    assert bench.named(["ner=b"], ["ner"]) == {"ner": "b"}
    with pytest.raises(ValueError, match="math has no draft: give --draft math=DRAFT"):
        bench.named(["ner=b"], ["ner", "math"])
    # Tasks that have a draft are measured, where none is named.
    assert bench.named(["ner=b", "math=c"], None) == {"math": "c", "ner": "b"}
    assert list(bench.named(["a"], None)) == ["math", "ner", "function_calling"]
    assert bench.named(["ner=runs/k=8"], None) == {"ner": "runs/k=8"}
    call = ["--data", "d", "--draft", "ner=b"]
    assert bench.parsed(call).tasks == [*bench.parsed(call).new_tokens] == ["ner"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "b"], "two drafts for all tasks, a and b: .* give TASK=DRAFT"),
        (["ner=a", "ner=b"], "two drafts for ner, a and b"),
        (["sql=b"], "sql=b names no task, which are math, ner, function_calling: .* math=sql=b"),
        (["a", "nre=b"], "nre=b names no task"),
        (["runs/k=8"], "if runs/k=8 is the place of a draft, give it so: math=runs/k=8"),
        (["a", "ner="], "ner= names no draft"),
    ],
)
def test_drafts_that_could_be_misread_are_refused(bench: Any, words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bench.named(words, None)


@pytest.mark.parametrize(
    "more", [["--prompts", "0"], ["--max-new-tokens", "0"], ["--shots", "-1"], ["--tasks", "sql"]]
)
def test_refusals(bench: Any, folder: Path, tmp_path: Path, more: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        bench.main(words(folder, tmp_path, *more))
    assert raised.value.code == 2
