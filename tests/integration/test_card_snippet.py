"""The snippet of a published card, run as a stranger does: in a fresh process, from the Hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, hf_hub_download

import vtrim_hf.hub
from hub_client import client_environment, point_client_at, run_client
from published_facts import Pair, make_pair, make_training
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.coverage_metadata import read
from vtrim_hf.hub import publish
from vtrim_hf.local_hub import LocalHub
from vtrim_hf.model_card import split_card
from vtrim_hf.plain_facts import local_path_in
from vtrim_hf.training_facts import TRAINING_JSON

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

TARGET, STANDALONE, EAGLE = "user/tiny-target", "user/sql-draft", "user/sql-eagle"
ASKED = [{"dataset": "user/bench", "task": "sql", "figure": "acceptance_length"}]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    """A hub with a target that says its licence, and a draft of either body."""
    root = tmp_path_factory.mktemp("cards")
    pair = make_pair()
    pair.target.config.name_or_path = TARGET
    pair.target.save_pretrained(root / "target")
    pair.tokenizer.save_pretrained(root / "target")
    (root / "target" / "README.md").write_text(
        "---\nlicense: other\nlicense_name: tiny\nlicense_link: LICENSE\n---\n# Tiny\n"
    )
    with LocalHub(root / "hub") as hub, pytest.MonkeyPatch.context() as patch:
        point_client_at(patch, hub, root / "cache")
        patch.setattr(vtrim_hf.hub, "prove_it_loads", lambda draft, folder: None)
        HfApi().create_repo(TARGET)
        HfApi().upload_folder(repo_id=TARGET, folder_path=root / "target")
        _publish(pair, root)
        yield hub


def _publish(pair: Pair, root: Path) -> None:
    told: dict[str, Any] = {
        "tokenizer": pair.tokenizer,
        "search": pair.search,
        "counts": pair.counts,
        "report": pair.report,
        "target_id": TARGET,
        "progress": False,
    }
    publish(pair.draft, STANDALONE, draft_id="user/small", license="mit", **told)
    eagle = TrimmedDraftForCausalLM.for_target(pair.target, pair.draft.vocabulary)
    eagle.save_pretrained(root / "eagle")
    report = make_training(eagle)
    (root / "eagle" / TRAINING_JSON).write_text(json.dumps(report))
    # Neither licence nor training are handed over.
    publish(root / "eagle", EAGLE, eval_results=ASKED, **told)


def card_of(repo_id: str) -> str:
    return Path(hf_hub_download(repo_id, "README.md")).read_text(encoding="utf-8")


_CHECK = """
alone = target.generate(**inputs, max_new_tokens=64)
assert output.tolist() == alone.tolist()
assert draft.kept_ids.numel() == 24
"""

# The second half is the snippet as it stands; the first what the sentence below it says.
_RUN = """
import builtins, sys
def ask(*args): raise SystemExit("asked about remote code")
builtins.input = ask
code, check = sys.argv[1:3]
first, rest = code.split("\\n", 1)
assert first.startswith("import vtrim_hf"), first
call = "draft = AutoModelForCausalLM.from_pretrained("
at = rest.index(")", rest.index(call))
sys.modules["vtrim_hf"] = None
names = {}
exec(rest[:at] + ", trust_remote_code=True" + rest[at:] + check, names)
assert type(names["draft"]).__module__.startswith("transformers_modules.")
del sys.modules["vtrim_hf"]
names = {}
exec(code + check, names)
assert type(names["draft"]).__module__.startswith("vtrim_hf.")
"""


@pytest.mark.parametrize("repo_id", [pytest.param(STANDALONE, marks=pytest.mark.newest), EAGLE])
def test_it_runs_with_the_package_and_without(hub: LocalHub, repo_id: str, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", card_of(repo_id), re.DOTALL)
    done = run_client(_RUN, client_environment(hub, tmp_path / "cache"), code, _CHECK)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 2, "both say the text"


@pytest.mark.parametrize("repo_id", [STANDALONE, EAGLE])
@pytest.mark.usefixtures("hub")
def test_the_card_tells_all_that_is_known(repo_id: str) -> None:
    front, body = split_card(card_of(repo_id))
    eagle = repo_id == EAGLE
    assert front["library_name"] == "transformers"
    assert front["pipeline_tag"] == "text-generation"
    assert front["base_model"] == (TARGET if eagle else "user/small")
    assert {"vtrim", "sql", "chat"} <= {*front["tags"]}
    assert ("eagle3" in front["tags"]) is eagle
    for said in (
        "A draft model for speculative decoding with",
        "holds 24 of the target's 300 tokens (8.0 %)",
        "| domain | held out |",
        f"vtrim measure {TARGET} {repo_id} PROMPTS --limit 2",
        "Measured on Test CPU",
        "| id | text | share of all tokens |",
        "## Training",
        "## Limits",
        "Fingerprint of the kept ids: `",
        "@misc{benshoham2026balancing",
    ):
        assert said in body, said
    assert ("| learning rate | 0.001, cosine |" in body) is eagle
    for word in ("None", "null", "nan", "np.float", "Undefined", "/home/", "/tmp/"):
        assert word not in body.replace("vtrim-hf", ""), word


@pytest.mark.usefixtures("hub")
def test_what_is_published_of_a_trained_draft() -> None:
    """Its training, its target's licence, and a result for a benchmark where one is asked for."""
    front, _ = split_card(card_of(EAGLE))
    link = f"{HfApi().endpoint}/{TARGET}/blob/main/LICENSE"
    assert (front["license"], front["license_name"]) == ("other", "tiny")
    assert front["license_link"] == link
    facts = read(hf_hub_download(EAGLE, "vtrim/coverage.json"))
    assert facts["training"]["acceptance_length"] == 2.5
    assert facts["training"]["datasets"] == ["me/chats"]
    assert local_path_in(facts) is None
    assert TrimmedDraftForCausalLM.from_pretrained(EAGLE).coverage_metadata == facts
    files = HfApi().list_repo_files(EAGLE)
    assert TRAINING_JSON not in files
    assert ".eval_results/vtrim.yaml" in files
    assert ".eval_results/vtrim.yaml" not in HfApi().list_repo_files(STANDALONE)
    text = Path(hf_hub_download(EAGLE, ".eval_results/vtrim.yaml")).read_text()
    assert "id: user/bench" in text
    assert f"value: {facts['decoding']['acceptance_length']}" in text
