"""Two processes train one draft, as `torchrun` starts them, on CPUs that talk by gloo.

This file is also what the two run: their results lie in files that the tests read.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from drafting import make_eagle
from tiny_models import make_tiny
from training_samples import settings
from vtrim_hf import training_pace, training_report
from vtrim_hf.training import DraftTrainer
from vtrim_hf.training_data import TrainingSequences
from vtrim_hf.training_progress import TrainingBar

ROOT = Path(__file__).resolve().parents[2]
STEPS, SAVED_AT, KILLED_AT = 6, 3, 5
PATIENCE = 400  # seconds; all is done in a tenth of it where nothing hangs


class Kill(TrainerCallback):
    """Stops, as a kill would, before a step."""

    def __init__(self, at: int) -> None:
        self._at = at

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self._at:
            raise KeyboardInterrupt


class Clock(TrainerCallback):
    """Goes on by so many seconds at each step, and at no other time."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._now = seconds, 0.0

    def monotonic(self) -> float:
        return self._now

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._now += self._seconds


def trainer_of(folder: Path, *callbacks: Any, **wishes: Any) -> DraftTrainer:
    """Return the trainer of one small training, the same in every process."""
    target = make_tiny("llama", num_hidden_layers=4)
    random = np.random.default_rng(5)
    # Of different lengths, so that processes differ in tokens and columns.
    texts = TrainingSequences.from_pairs(
        (random.integers(10, 70, 10 + at), np.arange(10 + at) >= 4) for at in range(24)
    )
    torch.manual_seed(3)
    return DraftTrainer(
        make_eagle(target, range(300), initializer_range=0.1),
        target,
        args=settings(
            folder,
            **{
                "max_steps": STEPS,
                "gradient_accumulation_steps": 2,
                "eval_strategy": "steps",
                "eval_steps": SAVED_AT,
                "save_strategy": "steps",
                "save_steps": SAVED_AT,
                "per_device_eval_batch_size": 4,
                "feature_cache": str(folder.parent / "features"),
                **wishes,
            },
        ),
        train_dataset=texts,
        eval_dataset=texts,
        callbacks=callbacks,
    )


def train_in_this_process(place: Path) -> None:
    """Train to the end, then with a kill and again, then in a given time; write what came out."""
    rank, two = int(os.environ["RANK"]), {"per_device_train_batch_size": 2}
    found: dict[str, Any] = {}
    whole = trainer_of(place / "whole", **two)
    whole.train()
    whole.save_model(str(place / "saved"))
    found["whole"] = whole.report.data

    # Saved between two logs: the sums that were not logged yet are those of both.
    rarely = {**two, "logging_steps": 2}
    seldom = trainer_of(place / "seldom", **rarely)
    seldom.train()
    found["seldom"] = seldom.report.data
    try:
        trainer_of(place / "killed", Kill(KILLED_AT), **rarely).train()
    except KeyboardInterrupt:
        again = trainer_of(place / "killed", **rarely)
        again.train(resume_from_checkpoint=True)
        found["again"] = again.report.data

    said: list[str] = []
    clock: Any = Clock((5.0, 0.0)[rank])  # the other's would never end
    for module in (training_pace, training_report):
        vars(module)["time"] = clock
    timed = trainer_of(place / "timed", clock, **two, max_steps=-1, max_minutes=1, evaluations=2)
    timed.add_callback(TrainingBar(timed.pace.share, said.append, shown=False))
    if rank == 1:  # and by it there would be no time left to begin with
        timed.report.data["seconds"]["features"] = 1e6
    timed.train()
    found["timed"] = {"said": said, **timed.report.data}
    (place / f"rank-{rank}.json").write_text(json.dumps(found))
    # Neither takes away what the other still talks by, nor exits with it open: it may abort.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run_two(place: Path) -> None:
    """Run this file in two processes; neither outlives the other's failure."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    known = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests"))),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    logs = [place / f"rank-{rank}.log" for rank in range(2)]
    both = []
    for rank, log in enumerate(logs):
        with log.open("w") as file:
            both.append(
                subprocess.Popen(
                    [sys.executable, __file__, str(place)],
                    env=known | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
    end = time.monotonic() + PATIENCE
    try:
        while any(one.poll() is None for one in both):
            if any(one.poll() for one in both) or time.monotonic() > end:
                break
            time.sleep(0.2)
    finally:
        codes = [one.poll() for one in both]
        for one in both:
            one.kill()
            one.wait()
    told = "\n".join(log.read_text()[-3000:] for log in logs)
    assert codes == [0, 0], f"exit codes {codes} (None: it hung)\n{told}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    run_two(folder)
    return folder


@pytest.fixture(scope="module")
def found(place: Path) -> list[dict[str, Any]]:
    return [json.loads((place / f"rank-{rank}.json").read_text()) for rank in range(2)]


def test_two_processes_train_as_one_with_twice_the_batch(
    place: Path, found: list[dict[str, Any]], tmp_path: Path
) -> None:
    alone = trainer_of(tmp_path / "alone", per_device_train_batch_size=4)
    alone.train()
    one, two = alone.report.data, found[0]["whole"]
    assert (one["settings"]["world_size"], two["settings"]["world_size"]) == (1, 2)
    assert two["tokens_seen"] == one["tokens_seen"]
    for kind, steps in (("curve", list(range(1, STEPS + 1))), ("evaluations", [3, 6])):
        for training in (one, two):
            assert [point["step"] for point in training[kind]] == steps
        for name in ("loss", "acceptance_length", "masked_share", "tokens"):
            assert [point[name] for point in two[kind]] == pytest.approx(
                [point[name] for point in one[kind]], rel=1e-4
            ), (kind, name)
    weights = load_file(place / "saved" / "model.safetensors")
    own = alone.model.state_dict()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, own[name], rtol=1e-3, atol=1e-5)


def test_two_processes_go_on_after_a_kill(found: list[dict[str, Any]]) -> None:
    whole, again = found[0]["seldom"], found[0]["again"]
    assert [point["step"] for point in again["curve"]] == [2, 4, 6]
    assert [point["loss"] for point in again["curve"]] == pytest.approx(
        [point["loss"] for point in whole["curve"]], rel=1e-6
    )
    assert again["tokens_seen"] == whole["tokens_seen"]


def test_a_timed_training_of_two_processes_ends_by_one_clock(
    found: list[dict[str, Any]],
) -> None:
    main, other = (one["timed"] for one in found)
    assert main["finished"]
    assert other["finished"]
    for one in (main, other):
        assert [point["step"] for point in one["evaluations"]] == [6, 12]
        lengths = [len(point["acceptance"]) for point in one["curve"]]
        assert lengths == [2] * 8 + [4] * 4  # 5 of 60 seconds a step, 60 % of them warm up
    rates = [point["learning_rate"] for point in main["curve"]]
    assert rates == [point["learning_rate"] for point in other["curve"]]
    assert len(main["said"]) == 2
    assert other["said"] == [], "one process speaks"


if __name__ == "__main__":
    train_in_this_process(Path(sys.argv[1]))
