"""Is an installed wheel whole? Run by `make check-wheel` in an environment that holds it alone.

python tests/smoke_installed.py        (from anywhere, with the environment's own python)
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

# A script's own folder is looked at first: nothing of this checkout may be found.
sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).resolve().parent)]
SCRATCH = Path(tempfile.mkdtemp(prefix="vtrim-hf-smoke-"))
os.environ.update(
    HF_HOME=str(SCRATCH / "hf"), HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_XET="1"
)

LOAD_BACK = """
import sys, vtrim_hf, torch
from transformers import AutoModelForCausalLM
draft = AutoModelForCausalLM.from_pretrained(sys.argv[1])
assert type(draft).__name__ == "TrimmedDraftForCausalLM"
assert draft.kept_ids.tolist() == list(range(10, 60)), draft.kept_ids
print(draft(torch.tensor([[10, 20, 30]])).logits[0, -1, 10:60].argmax().item())
"""


def check_place() -> Path:
    """The package comes from the environment, with its type marker, cards and shipped code."""
    import vtrim_hf

    place = Path(vtrim_hf.__file__).resolve().parent
    installed = Path(sysconfig.get_path("purelib")).resolve()
    assert place.parent == installed, f"{place} is not the installed package in {installed}"
    for name in (
        "py.typed",
        "local_hub/__init__.py",
        "metrics/token_coverage/README.md",
        "modeling_trimmed_draft.py",
        "report_page.html.jinja",
    ):
        assert (place / name).is_file(), f"{name} is missing in {place}"
    cards = {path.name for path in (place / "hub_cards").iterdir()}
    assert {"coverage.schema.json", "model_card.md.jinja"} <= cards, cards
    return place


def check_command() -> None:
    """`vtrim` is on the path, and names its subcommands."""
    command = Path(sysconfig.get_path("scripts")) / "vtrim"
    told = subprocess.run([command, "--help"], check=True, capture_output=True, text=True).stdout
    for name in ("count", "search", "trim", "measure", "publish", "report", "run", "hub"):
        assert f" {name} " in told, f"vtrim --help does not name {name}:\n{told}"


def check_round_trip() -> None:
    """A draft goes to a local Hub and comes back in another process, with card and metadata."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from vtrim_hf import DraftVocabulary, TrimmedDraftForCausalLM
    from vtrim_hf.local_hub import LocalHub

    with LocalHub(SCRATCH / "hub") as hub:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=100,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
        )
        small = LlamaForCausalLM(config)
        kept = DraftVocabulary.from_ids(range(10, 60), vocab_size=100)
        draft = TrimmedDraftForCausalLM.from_draft_model(small.eval(), kept)
        draft.push_to_hub(
            "user/tiny-draft", license="apache-2.0", endpoint=hub.endpoint, token=hub.token
        )
        told = subprocess.run(
            [sys.executable, "-c", LOAD_BACK, "user/tiny-draft"],
            check=True,
            capture_output=True,
            text=True,
            cwd=SCRATCH,
            env={**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.token},
        ).stdout
        best = draft(torch.tensor([[10, 20, 30]])).logits[0, -1, 10:60].argmax().item()
        assert int(told) == best, f"the draft that came back says {told}, not {best}"


if __name__ == "__main__":
    place = check_place()
    check_command()
    check_round_trip()
    print(f"the wheel in {place} is whole")
