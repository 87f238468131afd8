"""A family is published with all checks, and other processes find, choose and load its drafts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hub_client import client_environment, point_client_at, run_client
from published_facts import TEXTS, make_pair, make_report
from vtrim_hf.coverage_metadata import make_metadata
from vtrim_hf.hub_family import PublishedFamily, publish_family
from vtrim_hf.local_hub import LocalHub

pytestmark = [
    pytest.mark.newest,  # what test_hub_family.py and test_publishing.py ask, in more processes
    pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning"),
]

TARGET, ONE, TEMPLATE = "user/tiny-target", "user/tiny-drafts", "user/tiny-{domain}"


@dataclass(frozen=True)
class Scene:
    hub: LocalHub
    branches: PublishedFamily
    repositories: PublishedFamily
    root: Path


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["lfs", "xet"]
)
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("families")
    run = root / "run"
    for seed, name in enumerate(("chat", "sql")):
        pair = make_pair(seed)
        pair.draft.coverage_metadata = make_metadata(
            pair.draft, search=pair.search, target_id=TARGET
        )
        pair.draft.save_pretrained(run / "domains" / name / "draft")
        pair.tokenizer.save_pretrained(run / "domains" / name / "draft")
    (run / "domains/sql/measure").mkdir()
    make_report(pair.search.k).save(run / "domains/sql/measure/decode_report.json")
    pair.target.config.save_pretrained(root / "target")
    pair.tokenizer.save_pretrained(root / "target")
    with (
        LocalHub(root / "hub", xet=request.param) as hub,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        point_client_at(monkeypatch, hub, root / "cache")
        branches = publish_family(run, ONE, license="mit", progress=False)
        # The same drafts, which were proven to load a moment ago.
        monkeypatch.setattr("vtrim_hf.hub.prove_it_loads", lambda draft, folder: None)
        repositories = publish_family(run, TEMPLATE, license="mit", progress=False)
        yield Scene(hub, branches, repositories, root)


_CHOOSE = """
import json, sys
from vtrim_hf import TrimmedDraftForCausalLM, find_drafts
found = find_drafts(sys.argv[1])
draft = TrimmedDraftForCausalLM.from_hub_for(sys.argv[1], domain="sql")
print(json.dumps({
    "found": [[one.repo_id, one.revision, one.commit, one.speedup] for one in found],
    "fingerprints": [one.fingerprint for one in found],
    "name": draft.name_or_path,
    "loaded": draft.vocabulary.fingerprint,
    "measured": "decoding" in draft.coverage_metadata,
}))
"""


@dataclass(frozen=True)
class Choice:
    """What a fresh process chose: its environment, what it said, the weights that it asked for."""

    environment: dict[str, str]
    told: dict[str, Any]
    weights: list[str]


@pytest.fixture(scope="module")
def choice(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Choice:
    environment = client_environment(scene.hub, tmp_path_factory.mktemp("home"))
    scene.hub.clear_log()
    done = run_client(_CHOOSE, environment, TARGET)
    assert done.returncode == 0, done.stderr
    weights = [row.path for row in scene.hub.log.matching("*", r"/model\.safetensors$")]
    return Choice(environment, json.loads(done.stdout.splitlines()[-1]), weights)


def test_a_fresh_process_finds_and_loads_the_best(scene: Scene, choice: Choice) -> None:
    told = choice.told
    family = scene.branches.drafts
    single = scene.repositories.drafts
    # Equal coverage, so what was measured comes first, then the names.
    assert told["found"] == [
        [ONE, "sql", family["sql"].commit, told["found"][0][3]],
        ["user/tiny-sql", None, single["sql"].commit, told["found"][0][3]],
        ["user/tiny-chat", None, single["chat"].commit, None],
        [ONE, "chat", family["chat"].commit, None],
    ]
    assert told["name"] == ONE
    assert told["loaded"] in told["fingerprints"]
    assert told["measured"]
    commit = family["sql"].commit
    assert set(choice.weights) == {f"/{ONE}/resolve/{commit}/model.safetensors"}


def test_the_choice_loads_again_without_a_network(scene: Scene, choice: Choice) -> None:
    code = """
import sys
from vtrim_hf import TrimmedDraftForCausalLM
draft = TrimmedDraftForCausalLM.from_pretrained(sys.argv[1], revision=sys.argv[2])
assert draft.coverage_metadata["target"]["id"] == sys.argv[3]
try:
    TrimmedDraftForCausalLM.from_hub_for(sys.argv[3])
except OSError as error:
    assert "HF_HUB_OFFLINE is set" in str(error), error
else:
    raise SystemExit("nothing can be listed offline")
"""
    commit = str(scene.branches.drafts["sql"].commit)
    offline = choice.environment | {"HF_HUB_OFFLINE": "1"}
    done = run_client(code, offline, ONE, commit, TARGET)
    assert done.returncode == 0, done.stderr


def test_without_the_package_the_way_out_is_told(scene: Scene, tmp_path: Path) -> None:
    code = """
import sys
sys.modules["vtrim_hf"] = None
from transformers import AutoModelForCausalLM
draft = AutoModelForCausalLM.from_pretrained(
    sys.argv[1], revision="chat", trust_remote_code=True
)
try:
    type(draft).from_hub_for("user/tiny-target")
except ImportError as error:
    assert "pip install vtrim_hf" in str(error), error
else:
    raise SystemExit("it was found without the package")
"""
    done = run_client(code, client_environment(scene.hub, tmp_path), ONE)
    assert done.returncode == 0, done.stderr


def test_the_commands_in_fresh_processes(scene: Scene, tmp_path: Path) -> None:
    rows = [
        {
            "messages": [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": TEXTS["sql"].format(number)},
            ]
        }
        for number in range(5)
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = client_environment(scene.hub, tmp_path / "home")

    def vtrim(*arguments: object) -> dict[str, list[dict[str, object]]]:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "vtrim_hf.cli", *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
        return found

    listed = vtrim("catalogue", "--target", TARGET, "--domain", "sql", "--json")["drafts"]
    assert listed[0]["repo_id"] == ONE
    scene.hub.clear_log()
    target = scene.root / "target"
    scored = vtrim("recommend", "--target", target, "--data", data, "--json", "-q")["drafts"]
    assert len(scored) == 4
    assert all(0 < float(str(one["coverage_of_data"])) <= 1 for one in scored)
    assert not scene.hub.log.matching("*", r"/model\.safetensors$")
