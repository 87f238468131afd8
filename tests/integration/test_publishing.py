"""A draft goes to a Hub and comes back in other processes: with the package and without it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi, constants, hf_hub_download
from safetensors.torch import load_file, save_file

import vtrim_hf.hub
from hub_client import client_environment, point_client_at
from published_facts import Pair, make_pair
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.coverage_metadata import make_metadata
from vtrim_hf.hub import Published, publish
from vtrim_hf.local_hub import LocalHub

# What the client's own HTTP library says of the client; each test begins with fresh filters.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

REPO, TARGET = "user/sql-draft", "user/tiny-target"


@dataclass(frozen=True)
class Shelf:
    """A hub that holds a target and a draft of it."""

    hub: LocalHub
    pair: Pair
    published: Published
    expected: Path


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    root = tmp_path_factory.mktemp("publishing")
    pair = make_pair()
    pair.target.save_pretrained(root / "target")
    pair.tokenizer.save_pretrained(root / "target")
    with LocalHub(root / "hub") as hub, pytest.MonkeyPatch.context() as monkeypatch:
        point_client_at(monkeypatch, hub, root / "cache")
        api = HfApi()
        api.create_repo(TARGET)
        api.upload_folder(repo_id=TARGET, folder_path=root / "target")
        pair.draft.coverage_metadata = make_metadata(
            pair.draft, search=pair.search, counts=pair.counts, target_id=TARGET
        )
        published = publish(
            pair.draft,
            REPO,
            tokenizer=pair.tokenizer,
            license="mit",
            tag="v1",
            progress=False,
        )
        ids = torch.tensor([[1, 40, 50, 60]])
        with torch.no_grad():
            logits = pair.draft(ids).logits
        text = pair.target.generate(ids, max_new_tokens=12, do_sample=False)
        kept = torch.as_tensor(pair.draft.kept_ids)
        facts = {"ids": ids, "logits": logits, "kept_ids": kept, "text": text}
        save_file(facts, root / "expected.safetensors")
        yield Shelf(hub, pair, published, root / "expected.safetensors")


def start(
    code: str, environment: dict[str, str], cwd: Path, *arguments: object
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        env={**environment, "OMP_NUM_THREADS": "1"},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


_CHECK = """
expected = load_file(sys.argv[1])
assert draft.kept_ids.tolist() == expected["kept_ids"].tolist()
with torch.no_grad():
    assert torch.equal(draft(expected["ids"]).logits, expected["logits"])
assert draft.coverage_metadata["target"]["id"] == "user/tiny-target", draft.coverage_metadata
"""

_WITH_PACKAGE = (
    """
import builtins, sys, torch
def ask(*args): raise SystemExit("asked about remote code")
builtins.input = ask
from safetensors.torch import load_file
import vtrim_hf
from transformers import AutoModelForCausalLM
draft = AutoModelForCausalLM.from_pretrained("user/sql-draft", revision=sys.argv[2])
assert type(draft) is vtrim_hf.TrimmedDraftForCausalLM
"""
    + _CHECK
)

_WITHOUT_PACKAGE = (
    """
import importlib.abc, sys, torch
sys.modules["vtrim_hf"] = None
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
draft = AutoModelForCausalLM.from_pretrained(
    "user/sql-draft", revision=sys.argv[2], trust_remote_code=True
)
assert type(draft).__module__.startswith("transformers_modules."), type(draft)
"""
    + _CHECK
    + """
target = AutoModelForCausalLM.from_pretrained("user/tiny-target")
said = target.generate(
    expected["ids"], assistant_model=draft, max_new_tokens=12, do_sample=False
)
assert torch.equal(said, expected["text"])
try: draft.push_to_hub("user/again", license="mit")
except ImportError as error: assert "pip install vtrim_hf" in str(error)
else: raise SystemExit("published without the package")
"""
)


def test_it_comes_back_in_other_processes(shelf: Shelf, tmp_path: Path) -> None:
    """With the package without a question, and without it with the code that lies there."""
    environment = client_environment(shelf.hub, tmp_path)
    alone = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    processes = {
        "with the package": start(_WITH_PACKAGE, environment, tmp_path, shelf.expected, "v1"),
        "without": start(
            _WITHOUT_PACKAGE, alone, tmp_path, shelf.expected, shelf.published.commit
        ),
    }
    for name, process in processes.items():
        _, errors = process.communicate()
        assert process.returncode == 0, f"{name}: {errors[-3000:]}"


def test_it_comes_back_from_the_cache(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load_file(shelf.expected)

    def loads() -> None:
        draft = TrimmedDraftForCausalLM.from_pretrained(REPO, cache_dir=tmp_path)
        assert torch.equal(draft(expected["ids"]).logits, expected["logits"])
        assert draft.coverage_metadata["target"]["id"] == TARGET
        assert draft.generation_config.num_assistant_tokens == 4

    loads()
    shelf.hub.log.clear()
    with monkeypatch.context() as offline:
        offline.setattr(constants, "HF_HUB_OFFLINE", True)
        loads()
        assert not [*shelf.hub.log]
        with pytest.raises(OSError, match="cached"):
            TrimmedDraftForCausalLM.from_pretrained(REPO, cache_dir=tmp_path / "empty")
    shelf.hub.faults.add("*", "/api/models/", status=503, times=None)
    try:
        loads()
    finally:
        shelf.hub.faults.clear()


def test_the_snippet_of_the_card_runs(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(hf_hub_download(REPO, "README.md", revision="v1")).read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert type(names["draft"]) is TrimmedDraftForCausalLM
    said = names["tokenizer"].decode(names["output"][0])
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("told", [True, False])
def test_one_load_is_of_one_commit_while_main_moves(
    told: bool, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody publishes between the download of the config and that of the weights.

    Whether the Hub tells which commit main is, or only its files can be had.
    """
    monkeypatch.setattr(vtrim_hf.hub, "prove_it_loads", lambda draft, folder: None)
    repo = f"user/moving-{told}"
    first, second = make_pair().draft, make_pair(seed=1)
    for draft in (first, second.draft):
        draft.coverage_metadata = make_metadata(draft, search=second.search)
    old = publish(first, repo, license="mit", progress=False)

    def meanwhile() -> None:
        shelf.hub.faults.clear()
        second.draft.push_to_hub(
            repo, exist_ok=True, report=second.report, license="mit", progress=False
        )

    fault = shelf.hub.faults.add("*", r"resolve/.*model\.safetensors$", before=meanwhile)
    if not told:
        shelf.hub.faults.add("GET", f"/api/models/{repo}", status=503, times=None)
    shelf.hub.log.clear()
    loaded = TrimmedDraftForCausalLM.from_pretrained(repo, cache_dir=tmp_path)
    assert fault.met == 1
    assert HfApi().model_info(repo).sha != old.commit
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded(ids).logits, first(ids).logits)
    assert "decoding" not in loaded.coverage_metadata
    asked = {row.path.split("/")[4] for row in shelf.hub.log.matching("*", f"^/{repo}/resolve/")}
    assert asked == ({old.commit} if told else {old.commit, "main"})
    again = TrimmedDraftForCausalLM.from_pretrained(repo, cache_dir=tmp_path)
    assert torch.equal(again(ids).logits, second.draft(ids).logits)
    assert "decoding" in again.coverage_metadata


_PUBLISH = """
import sys
import vtrim_hf.hub
vtrim_hf.hub.prove_it_loads = lambda draft, folder: None
vtrim_hf.hub.publish(sys.argv[1], "user/cut", license="mit", progress=False)
"""


@pytest.mark.newest
@pytest.mark.parametrize("xet", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_killed_upload_leaves_nothing_half_made(
    xet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vtrim_hf.hub, "prove_it_loads", lambda draft, folder: None)
    draft = make_pair().draft
    draft.save_pretrained(tmp_path / "draft")
    with LocalHub(tmp_path / "hub", xet=xet) as hub:
        # Weights are there by then, the commit is not made.
        killed = threading.Event()
        hub.faults.add("POST", "/commit/", before=lambda: killed.wait(60), status=503)
        process = start(
            _PUBLISH, client_environment(hub, tmp_path / "c"), tmp_path, tmp_path / "draft"
        )
        patience = time.monotonic() + 300
        while not hub.log.matching("POST", "/commit/") and process.poll() is None:
            assert time.monotonic() < patience
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        killed.set()
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors[-2000:]
        hub.faults.clear()
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        api = HfApi()
        assert api.list_repo_files("user/cut") == [".gitattributes"]
        publish(tmp_path / "draft", "user/cut", license="mit", progress=False)
        assert [commit.title for commit in api.list_repo_commits("user/cut")][1:] == [
            "initial commit"
        ]
        loaded: Any = TrimmedDraftForCausalLM.from_pretrained("user/cut")
        ids = torch.tensor([[1, 2, 3]])
        assert torch.equal(loaded(ids).logits, draft(ids).logits)


def test_a_draft_of_hidden_states_is_published_for_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EAGLE-3: the card names the one target, whose licence and head it is."""
    pair = make_pair()
    pair.target.config.name_or_path = TARGET
    draft = TrimmedDraftForCausalLM.for_target(pair.target, pair.draft.vocabulary)
    prompt = torch.tensor([[1, 40, 50, 60]])
    text = pair.target.generate(prompt, max_new_tokens=8, do_sample=False)
    with LocalHub(tmp_path / "hub") as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        publish(draft, "user/eagle", tokenizer=pair.tokenizer, license="mit", progress=False)
        card = Path(hf_hub_download("user/eagle", "README.md")).read_text(encoding="utf-8")
        assert "It is an EAGLE-3 draft" in card
        assert f"base_model: {TARGET}" in card
        assert "any model of the" not in card
        assert "for the one target whose hidden states it was made for" in card
        loaded = TrimmedDraftForCausalLM.from_pretrained("user/eagle")
    assert loaded.coverage_metadata["target"]["id"] == TARGET
    settings: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(pair.target.generate(prompt, assistant_model=loaded, **settings), text)
    with pytest.raises(ValueError, match=f"made for {TARGET}, not for user/other"):
        make_metadata(draft, target_id="user/other")
