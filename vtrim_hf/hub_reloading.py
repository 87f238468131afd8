"""Proof that a folder loads: a fresh process reads it as a stranger will, and says the same.

The process loads the draft twice: with the code that lies in the folder, the package hidden, and
with the package. Both must have the ids, the fingerprint and the logits of the draft in memory.
This file is the program of that process, too, so it imports nothing of the package.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_PROMPT = 8
_FULL, _HALF = 1e-4, 3e-2


def prove_it_loads(draft: Any, folder: str | Path) -> None:
    """Raise unless a fresh process loads the draft back from `folder`.

    Args:
        draft: what was saved there, on any device.
        folder: what will be published.

    Raises:
        ValueError: with what the process said.
    """
    import torch
    from safetensors.torch import save_file

    kept = draft.vocabulary.ids
    inputs = _inputs(draft)
    training = [module for module in draft.modules() if module.training]
    draft.eval()
    try:
        with torch.no_grad():
            logits = draft(**_fitting(inputs, draft)).logits.float().cpu().contiguous()
    finally:
        for module in training:
            module.training = True
    # Beside the folder, so that whoever removes what a killed process left finds both.
    beside = Path(folder).resolve().parent
    with tempfile.TemporaryDirectory(prefix="vtrim-hf-check-", dir=beside) as scratch:
        expected = Path(scratch) / "expected.safetensors"
        facts = {"fingerprint": draft.vocabulary.fingerprint}
        save_file(
            {**inputs, "kept_ids": kept.contiguous(), "logits": logits},
            expected,
            metadata=facts,
        )
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_MODULES_CACHE": str(Path(scratch) / "modules"),
            "PYTHONWARNINGS": "ignore",
            "CUDA_VISIBLE_DEVICES": "",
        }
        # -P: what lies in the current folder is not what a stranger has.
        done = subprocess.run(
            [sys.executable, "-P", __file__, str(Path(folder).resolve()), str(expected)],
            cwd=scratch,
            env=environment,
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
        )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ValueError(lines[-1] if lines else f"exit code {done.returncode}")


def _inputs(draft: Any) -> dict[str, Any]:
    """Make something to read for a draft, by names of `forward`."""
    import torch

    if draft.config.body != "eagle3":
        kept = draft.vocabulary.ids
        return {"input_ids": kept[:: max(1, len(kept) // _PROMPT)][:_PROMPT][None].contiguous()}
    generator = torch.Generator().manual_seed(0)
    width = draft.config.hidden_size
    sizes = {"inputs_embeds": width, "target_hidden_states": 3 * width}
    return {name: torch.randn(1, _PROMPT, n, generator=generator) for name, n in sizes.items()}


def _fitting(inputs: dict[str, Any], draft: Any) -> dict[str, Any]:
    """Put inputs where a draft is, numbers in its dtype."""
    return {
        name: value.to(draft.device, draft.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
    }


def _main(folder: str, expected: str) -> None:
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    with safe_open(expected, "pt") as file:
        wanted = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        fingerprint = file.metadata()["fingerprint"]
    hidden: Any = None
    sys.modules["vtrim_hf"] = hidden
    remote: Any = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    _compare(remote, wanted, fingerprint, "the code in the folder")
    del remote, sys.modules["vtrim_hf"]
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    package = importlib.import_module("vtrim_hf")
    own = package.TrimmedDraftForCausalLM.from_pretrained(folder)
    _compare(own, wanted, fingerprint, "the package")
    recorded = (Path(folder) / "vtrim" / "coverage.json").is_file()
    if recorded and own.coverage_metadata is None:
        raise ValueError("the facts in vtrim/coverage.json do not come back")
    if (Path(folder) / "tokenizer_config.json").is_file():
        from transformers import AutoTokenizer

        found = importlib.import_module("vtrim_hf.vocabulary").tokenizer_fingerprint(
            AutoTokenizer.from_pretrained(folder)
        )
        if own.config.tokenizer_hash not in (None, found):
            raise ValueError("the tokenizer that comes back is another one than the draft's")


def _compare(draft: Any, wanted: dict[str, Any], fingerprint: str, by: str) -> None:
    import torch

    vocabulary = draft.vocabulary
    if (
        not torch.equal(vocabulary.ids, wanted["kept_ids"])
        or vocabulary.fingerprint != fingerprint
    ):
        raise ValueError(f"loaded by {by}, the draft has other kept ids")
    inputs = {name: wanted[name] for name in wanted.keys() - {"kept_ids", "logits"}}
    with torch.no_grad():
        found = draft(**_fitting(inputs, draft)).logits.float()
    said, same = wanted["logits"], torch.equal(found.isinf(), wanted["logits"].isinf())
    finite = said.isfinite()
    near = _FULL if draft.dtype in (torch.float32, torch.float64) else _HALF
    scale = float(said[finite].abs().max()) if bool(finite.any()) else 1.0
    if not same or not torch.allclose(found[finite], said[finite], rtol=near, atol=near * scale):
        raise ValueError(f"loaded by {by}, the draft says something else")


if __name__ == "__main__":
    _main(*sys.argv[1:])
