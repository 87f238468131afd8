from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from tiny_models import make_byte_tokenizer, make_tiny
from vtrim_hf import DraftVocabulary, TrimmedDraftForCausalLM, target_answers
from vtrim_hf.cli_training import train
from vtrim_hf.run_lock import RunLock
from vtrim_hf.training_facts import weights_hash

app = typer.Typer()
app.command()(train)

# What `vtrim train` runs, in a process of its own.
PROGRAM = "import typer; from vtrim_hf.cli_training import train; typer.run(train)"
FAST = ("--no-bf16", "--batch-size", "4", "--unroll", "2")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny target, its vocabulary and chat data."""
    folder = tmp_path_factory.mktemp("train")
    tokenizer = make_byte_tokenizer()
    target = make_tiny("llama", num_hidden_layers=4, eos_token_id=2)
    target.save_pretrained(folder / "target")
    tokenizer.save_pretrained(folder / "target")
    for name, ids in (("vocabulary", range(290)), ("other", range(280))):
        made = DraftVocabulary.from_ids(ids, vocab_size=300, tokenizer=tokenizer)
        made.save(folder / name)
    rows = [{"prompt": f"say {n}", "completion": f"number {n} it is"} for n in range(40)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:5]))
    return folder


def invoke(place: Path, *arguments: str, data: str = "data.jsonl") -> Result:
    call = [str(place / "target"), str(place / data), *arguments]
    return CliRunner().invoke(app, call, catch_exceptions=False)


def vocabulary(place: Path) -> tuple[str, str]:
    return "--vocabulary", str(place / "vocabulary")


@pytest.mark.newest
def test_training_goes_on_after_a_kill(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    command = [
        *(sys.executable, "-c", PROGRAM),
        *(str(place / "target"), str(place / "data.jsonl")),
        *vocabulary(place),
        *("-o", str(out), *FAST, "--epochs", "6", "--json"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    log = tmp_path / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        deadline = time.monotonic() + 240
        while not list(tmp_path.glob(".draft.*.training/checkpoint-*/trainer_state.json")):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not out.exists(), "nothing half-written takes the draft's place"

    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=900
    )
    assert "going on from step" in done.stderr
    found = json.loads(done.stdout)
    report = json.loads((out / "training_report.json").read_text())
    assert found["acceptance_length"] == report["best"]["acceptance_length"]
    steps = [point["step"] for point in report["curve"]]
    assert steps == sorted(set(steps))
    assert steps[-1] == found["steps"]
    assert not list(tmp_path.glob(".draft.*")), "checkpoints are gone once the draft is there"
    draft = TrimmedDraftForCausalLM.from_pretrained(out)
    assert str(draft.dtype) == "torch.bfloat16"
    assert draft.config.draft_vocab_size == 290
    assert (out / "tokenizer.json").is_file()


@pytest.mark.newest
def test_of_two_processes_one_answers_begins_anew_and_saves(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    command = [
        *(sys.executable, "-c", PROGRAM),
        *(str(place / "target"), str(place / "data.jsonl")),
        *vocabulary(place),
        *("-o", str(out), *FAST, "--epochs", "1", "--regenerate", "--max-new-tokens", "4"),
        *("--calibration-prompts", "0", "--no-resume", "--quiet", "--json"),
    ]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    known = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
        **{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "VTRIM_CACHE": str(tmp_path / "cache")},
    }
    logs = [tmp_path / f"rank-{rank}.txt" for rank in range(2)]
    both = []
    for rank, log in enumerate(logs):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with log.open("w") as file:
            both.append(subprocess.Popen(command, env=known | own, stdout=file, stderr=file))
    deadline = time.monotonic() + 400
    try:
        while {one.poll() for one in both} == {None}:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        codes = [one.wait(timeout=60) for one in both]  # neither waits for ever for the other
    finally:
        for one in both:
            one.kill()
            one.wait()
    told = [log.read_text() for log in logs]
    assert codes == [0, 0], "\n".join(told)
    assert '"acceptance_length"' in told[0]
    assert '"acceptance_length"' not in told[1]
    report = json.loads((out / "training_report.json").read_text())
    assert report["settings"]["world_size"] == 2
    assert report["answers"]["train"]["answered"] == 40
    assert not list(tmp_path.glob(".draft.*"))


def test_drafts_are_trained_anew_and_further(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    wishes = (*FAST, "--epochs", "1", "--eval", str(place / "eval.jsonl"), "--quiet")
    body = ("--layers", "0", "2", "4", "--mlp-width", "24")
    call = (*vocabulary(place), "-o", str(out), *wishes, *body)
    first = invoke(place, *call)
    assert first.exit_code == 0, first.output
    assert "acceptance_length" in first.stdout
    config = json.loads((out / "config.json").read_text())
    assert config["target_layer_ids"] == [0, 2, 4]
    assert config["body_config"]["intermediate_size"] == 24
    report = json.loads((out / "training_report.json").read_text())
    assert report["data"]["evaluation"]["conversations"] == 5
    assert report["weights"] == weights_hash(out)
    calibration = report["calibration"]
    settings = json.loads((out / "generation_config.json").read_text())
    assert settings["assistant_confidence_calibration"] == [
        calibration["slope"],
        calibration["offset"],
    ]
    assert calibration["prompts"] == 5
    assert calibration["proposals"] > 5
    assert report["seconds"]["calibration"] > 0

    written = (out / "model.safetensors").stat().st_mtime_ns
    again = invoke(place, *call, "--json")
    assert "holds this draft already" in " ".join(again.stderr.split())
    assert json.loads(again.stdout)["output"] == str(out)
    assert (out / "model.safetensors").stat().st_mtime_ns == written
    assert invoke(place, *call, "--no-resume").exit_code == 0
    assert (out / "model.safetensors").stat().st_mtime_ns != written

    further = tmp_path / "further"
    common = ("--from", str(out), "-o", str(further), *wishes)
    more = ("--draft-length", "3", "--calibration-prompts", "0")
    assert invoke(place, *common, *more).exit_code == 0
    assert "calibration" not in json.loads((further / "training_report.json").read_text())
    draft = TrimmedDraftForCausalLM.from_pretrained(further)
    assert draft.config.vocabulary_fingerprint == config["vocabulary_fingerprint"]
    assert draft.generation_config.num_assistant_tokens == 3

    other = invoke(place, *common, "--vocabulary", str(place / "other"))
    assert other.exit_code == 2
    assert "retrim(vocabulary) or draft.extend(vocabulary, target)" in other.stderr
    moved = invoke(place, *common, "--layers", "1", "2", "3")
    assert moved.exit_code == 2
    assert "reads the hidden states [0, 2, 4], got layers [1, 2, 3]" in moved.stderr
    wider = invoke(place, *common, "--mlp-width", "48")
    assert wider.exit_code == 2
    assert "has an MLP already, got mlp_width=48" in " ".join(wider.stderr.split())


def test_a_calibration_that_cannot_be_done_costs_no_training(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: Any, **__: Any) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr("vtrim_hf.training_calibration.calibrate_confidence", out_of_memory)
    out = tmp_path / "draft"
    done = invoke(place, *vocabulary(place), "-o", str(out), *FAST, "--epochs", "1", "--quiet")
    assert done.exit_code == 0, done.output
    assert "is not calibrated: not enough memory" in " ".join(done.stderr.split())
    report = json.loads((out / "training_report.json").read_text())
    assert report["calibration"] == {"skipped": "not enough memory"}
    endless = invoke(place, *vocabulary(place), "-o", str(out), "--minutes", "inf")
    assert endless.exit_code == 2
    assert "--minutes must be a number, got inf" in endless.stderr


def test_the_target_answers_once(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VTRIM_CACHE", str(tmp_path / "cache"))
    asked: list[int] = []
    generate = target_answers._generate

    def counted(model: Any, config: Any, batch: list[Any], seed: int) -> Any:
        asked.append(len(batch))
        return generate(model, config, batch, seed)

    monkeypatch.setattr(target_answers, "_generate", counted)
    out = tmp_path / "draft"
    answering = ("--regenerate", "--max-new-tokens", "6", "--limit", "24")
    common = (*FAST, *answering, "--quiet", "--calibration-prompts", "0", "--epochs", "1")
    call = (*vocabulary(place), "-o", str(out), *common)
    done = invoke(place, *call, "--answer-batch-size", "24")
    assert done.exit_code == 0, done.output
    assert asked == [24]
    told = " ".join(done.stderr.split())
    assert f"answers are kept in {tmp_path / 'cache' / 'answers'}" in told
    report = json.loads((out / "training_report.json").read_text())
    assert report["data"]["train"]["sequences"] + report["data"]["evaluation"]["sequences"] == 24
    assert report["answers"]["train"] == {"answered": 24, "prompts": 24, "stopped": False}
    assert not list(tmp_path.glob(".draft.*"))
    # Another vocabulary, another learning rate: the same answers, and another folder to go on in.
    other = ("--vocabulary", str(place / "other"), "-o", str(out), "--learning-rate", "1e-4")
    again = invoke(place, *other, *common)
    assert again.exit_code == 0, again.output
    assert asked == [24]
    assert len(list((tmp_path / "cache" / "answers").glob("*/answers.jsonl"))) == 1


def test_logs_for_tensorboard_stay(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    out, logs = tmp_path / "draft", tmp_path / "draft.tensorboard"
    call = (*vocabulary(place), "-o", str(out), *FAST, "--epochs", "2", "--tensorboard")
    done = invoke(place, *call, "--quiet", "--calibration-prompts", "0")
    assert done.exit_code == 0, done.output
    assert f"logs for TensorBoard go to {logs}" in " ".join(done.stderr.split())
    (events,) = logs.rglob("events.out.tfevents.*")
    found = reading.EventAccumulator(str(events.parent)).Reload()
    assert "train/acceptance_length" in found.Tags()["scalars"]
    assert not list(tmp_path.glob(".draft.*"))
    # That it is logged changes nothing in a draft.
    again = invoke(place, *call[:-1], "--calibration-prompts", "0")
    assert "holds this draft already" in " ".join(again.stderr.split())


def test_one_call_at_a_time_and_what_others_left(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    call = (*vocabulary(place), "-o", str(out), *FAST, "--calibration-prompts", "0", "--quiet")
    warmed = (*call, "--epochs", "1", "--unroll-warmup", "0")
    assert invoke(place, *warmed, "--keep-checkpoints").exit_code == 0
    report = json.loads((out / "training_report.json").read_text())
    assert report["settings"]["unroll_warmup"] == 0
    (workplace,) = tmp_path.glob(".draft.*.training")
    with RunLock(workplace):
        done = invoke(place, *warmed, "--draft-length", "2")
    assert done.exit_code == 2
    told = " ".join(done.stderr.split())
    assert f"another run (process {os.getpid()}) is at work in {workplace}" in told
    assert "name another --output" in told
    other = invoke(place, *call, "--epochs", "1")
    assert other.exit_code == 0, other.output
    told = " ".join(other.stderr.split())
    assert "trainings with other arguments left" in told
    assert str(workplace) in told
    assert list(workplace.glob("checkpoint-*")), "somebody's hours are in it"


def test_that_a_training_begins_anew_is_told_before_it_does(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[so it did, and said nothing, on another machine or in another number of processes]"""
    ours: list[Path] = []

    def stop(*arguments: Any) -> None:
        ours.append(Path(arguments[3].output_dir))
        raise ValueError("it would train now")

    monkeypatch.setattr("vtrim_hf.training_step._trainer", stop)
    left = tmp_path / ".draft.0123456789ab.training"
    (left / "checkpoint-5").mkdir(parents=True)

    def told(*more: str) -> str:
        done = invoke(place, *vocabulary(place), "-o", str(tmp_path / "draft"), *FAST, *more)
        assert done.exit_code == 2
        return " ".join(done.stderr.split())

    said = told()
    assert f"begins anew: what is in {left} goes on with other arguments only" in said
    assert "--bf16 and --unroll" in said
    assert said.index("begins anew") < said.index("it would train now")
    assert "begins anew" not in told("--no-resume"), "that was asked for"
    ours[0].mkdir()
    (ours[0] / "training_report.json").touch()
    assert "begins anew" not in told(), "there is something of its own to go on with"
    assert left.is_dir()


def test_a_draft_of_all_ids_is_trained_to_compare_with(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    call = ("--vocabulary", "full", "-o", str(out), *FAST, "--epochs", "1", "--quiet")
    done = invoke(place, *call, "--calibration-prompts", "0")
    assert done.exit_code == 0, done.output
    draft = TrimmedDraftForCausalLM.from_pretrained(out)
    assert draft.config.draft_vocab_size == draft.config.vocab_size == 300
    assert draft.body.lm_head.out_features == 300


def test_another_draft_length_needs_no_new_training(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    call = (*vocabulary(place), "-o", str(out), *FAST, "--epochs", "1", "--keep-checkpoints")
    assert invoke(place, *call, "--quiet").exit_code == 0
    first = TrimmedDraftForCausalLM.from_pretrained(out)
    done = invoke(place, *call, "--draft-length", "2", "--calibration-prompts", "0")
    assert done.exit_code == 0, done.output
    steps = json.loads((out / "training_report.json").read_text())["curve"][-1]["step"]
    assert f"going on from step {steps}" in " ".join(done.stderr.split())
    again = TrimmedDraftForCausalLM.from_pretrained(out)
    assert again.generation_config.num_assistant_tokens == 2
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "a new draft needs a vocabulary"),
        (("--vocabulary", "nowhere"), "holds no vocabulary"),
        (("--layers", "3", "2", "1"), "layers must be 3 ascending"),
        (("--layers", "1", "2", "9"), "layers must be 3 ascending"),
        (("--limit", "3"), "are for --regenerate"),
        (("--answer-batch-size", "3"), "are for --regenerate"),
        (("--unroll-warmup", "2"), "unroll_warmup must lie in [0, 1], got 2"),
        (("--epochs", "0"), "--epochs must be more than 0"),
        (("--learning-rate", "-1"), "learning_rate must be more than 0"),
        (("--minutes", "0"), "max_minutes must be more than 0"),
        (("--max-length", "1"), "max_length must be at least 3"),
        (("--eval", "nowhere.jsonl"), "no file or folder 'nowhere.jsonl'"),
    ],
)
def test_mistakes_are_answered_before_the_target_is_loaded(
    arguments: tuple[str, ...],
    words: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("the target was loaded")

    monkeypatch.setattr("vtrim_hf.named_models.load_model", load)
    given = () if "--vocabulary" in arguments or not arguments else vocabulary(place)
    done = invoke(place, *given, "-o", str(tmp_path / "draft"), *arguments)
    assert done.exit_code == 2, done.output
    assert words in " ".join(done.stderr.split())
    assert not (tmp_path / "draft").exists()


def test_data_and_output_are_looked_at_first(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtrim_hf.named_models.load_model", None)
    file = tmp_path / "draft"
    file.touch()
    done = invoke(place, *vocabulary(place), "-o", str(file))
    assert done.exit_code == 2
    assert "is a file: name another" in done.stderr
    (place / "odd.jsonl").write_text('{"odd": 1}\n')
    done = invoke(place, *vocabulary(place), "-o", str(tmp_path / "x"), data="odd.jsonl")
    assert done.exit_code == 2
    assert "no assistant turn" in done.stderr
    wide = DraftVocabulary.from_ids(range(50), vocab_size=320)
    wide.save(tmp_path / "wide")
    done = invoke(place, "--vocabulary", str(tmp_path / "wide"), "-o", str(tmp_path / "x"))
    assert done.exit_code == 2
    assert "for a target of width 320" in done.stderr
    assert not list(tmp_path.glob(".x*"))
