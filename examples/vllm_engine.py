"""Engines of vLLM for `bench_vllm.py`, a process each: their Python, their life, their words.

What runs over there is `serve_with_vllm.py`; the two speak in lines of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

SERVING_HALF = Path(__file__).with_name("serve_with_vllm.py")
GOODBYE = 60.0  # seconds that an engine has to go by itself
PAUSE = 1.5  # seconds: a worker of vLLM looks out for work, busily, for one more second
TOLD = 25  # lines of its log


def installed(python: str) -> dict[str, Any]:
    """Return what is installed in vLLM's Python, and what the environment says to it.

    Raises:
        SystemExit: if it cannot be run, or has no vLLM.
    """
    try:
        process = subprocess.run(
            [python, str(SERVING_HALF), "--versions"], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise SystemExit(
            f"{python} cannot be run ({error.strerror}): `make bench-vllm` makes that "
            "environment; or name another Python that has vLLM with --vllm-python"
        ) from error
    if process.returncode:
        raise SystemExit(process.stderr.strip() or f"{python} ended with {process.returncode}")
    found: dict[str, Any] = json.loads(process.stdout)
    return found


class Engine:
    """A running engine; as a context manager it goes at the end.

    Args:
        python: vLLM's Python.
        asked: what `serve_with_vllm.engine_arguments` takes.
        log: file for all that vLLM prints.

    Raises:
        SystemExit: if it does not start; the text ends with its last words.
    """

    def __init__(self, python: str, asked: Mapping[str, Any], log: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [python, str(SERVING_HALF)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # a group that can be ended as a whole
            )
        try:
            self.ask(asked)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            SystemExit: if the engine is gone.
        """
        source, sink = self._process.stdout, self._process.stdin
        line = ""
        if source is not None and sink is not None:
            try:
                sink.write(json.dumps(request) + "\n")
                sink.flush()
                line = source.readline()
            except BrokenPipeError:
                pass
        if not line:
            raise SystemExit(
                f"vLLM ended without an answer; all it said is in {self._log}, at last:\n"
                f"{self._last_words()}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Let the engine go, by force if it stays."""
        try:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GOODBYE)
        finally:
            # Also where this is interrupted, as by the end of the time.
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def _last_words(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-TOLD:])

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass
class Engines:
    """The engines that run, each started when it is first asked; all go at the end.

    Attributes:
        python: vLLM's Python.
        logs: folder for what they print.
        running: by what they were asked for.
    """

    python: str
    logs: Path
    running: dict[str, Engine] = field(default_factory=dict)

    def keep(self, wanted: Sequence[Mapping[str, Any]]) -> None:
        """Let those go that are not among the wanted."""
        names = [json.dumps(one, sort_keys=True) for one in wanted]
        with ExitStack() as going:  # all of them, though one is interrupted
            for name in [name for name in self.running if name not in names]:
                going.callback(self.running.pop(name).close)

    def answer(self, asked: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the engine for answers while the others rest."""
        name = json.dumps(asked, sort_keys=True)
        if name not in self.running:
            log = self.logs / f"{len(list(self.logs.glob('*.log')))}.log"
            self.running[name] = Engine(self.python, asked, log)
        time.sleep(PAUSE)
        return self.running[name].ask(request)

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_: object) -> None:
        self.keep([])
