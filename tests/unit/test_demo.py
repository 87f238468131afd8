"""The demo: how it asks for more time on a slow machine, and the whole of it, in short."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vtrim_hf.training_pace import NoTimeLeftError

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo.py"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "step", lambda text: None)
    monkeypatch.setattr(module.TrimmedDraftForCausalLM, "from_pretrained", lambda *_, **__: None)
    return module


class SlowMachine:
    """Trains nothing: the target's states alone take so many minutes, a little more each time."""

    def __init__(self, minutes: float) -> None:
        self.asked: list[float] = []
        self._states = minutes
        self._spent = 0.0

    def __call__(self, *_: Any, settings: dict[str, Any], **__: Any) -> Any:
        budget = settings["max_minutes"]
        self.asked.append(budget)
        self._states += 0.001
        self._spent = min(self._states, max(self._spent, 0.9 * budget))
        if self._spent >= 0.9 * budget:
            raise NoTimeLeftError(self._spent, budget)
        seconds = {"features": 60 * self._spent, "training": 1.0, "evaluation": 1.0}
        return SimpleNamespace(draft=None, report={"tokens_seen": 1, "seconds": seconds})


@pytest.mark.parametrize("states", [0.5, 3.9, 40.0])
def test_a_slow_machine_gets_more_time_and_asks_for_the_same_again(
    states: float, demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = SlowMachine(states)
    monkeypatch.setattr(demo, "train_draft", machine)
    demo.trained_draft(None, tmp_path, tmp_path, 4)
    enough = machine.asked[-1]
    assert enough - states >= 4 or enough == 4
    assert len(machine.asked) < 30
    machine.asked.clear()
    demo.trained_draft(None, tmp_path, tmp_path, 4)
    assert machine.asked == [enough], "or its checkpoints would not be found"


@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path, smollm2_tokenizer: object) -> None:
    pytest.importorskip("matplotlib")
    process = subprocess.run(
        [
            *(sys.executable, str(DEMO), "--output", str(tmp_path / "out")),
            *("--minutes", "0.5", "--prompts", "1"),
        ],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
        | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    said = " ".join(process.stdout.split())
    assert "trained on" in said
    assert "the same answer" in said
    assert "DIFFERENT" not in said
    for name in ("decode_report.json", "search.png", "draft/training_report.json"):
        assert (tmp_path / "out" / name).is_file()
