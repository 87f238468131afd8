"""Clients of a local hub: another process by its environment, this process by patching.

`huggingface_hub` reads its environment when it is imported, and binds the endpoint in several
places, so a process that has it loaded must be patched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from vtrim_hf.local_hub import LocalHub

CHECKOUT = Path(__file__).resolve().parents[1]


def client_environment(hub: LocalHub, cache: Path, *, token: str | None = "") -> dict[str, str]:
    """Return the environment of a subprocess whose Hub is `hub`, and whose cache is `cache`.

    Args:
        hub: Which one; whether it serves Xet decides whether the client uses it.
        cache: Folder in place of the user's, token and all.
        token: The client's token; the hub's own by default, None for a client without.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))
    }
    found = kept | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "PYTHONPATH": str(CHECKOUT),
        "NO_PROXY": "127.0.0.1,localhost",
    }
    if not hub.xet:
        found["HF_HUB_DISABLE_XET"] = "1"
    if token is not None:
        found["HF_TOKEN"] = token or hub.token
    return found


def run_client(
    code: str, environment: Mapping[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a fresh process and return what it did; a failure is not raised."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        env=dict(environment),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def point_client_at(
    monkeypatch: pytest.MonkeyPatch, hub: LocalHub, cache: Path, *, token: str | None = ""
) -> None:
    """Make `hub` the Hub of this process, for `HfApi()`, downloads and `from_pretrained`.

    Args:
        monkeypatch: Undoes it all after the test.
        hub: Which one; whether it serves Xet decides whether the client uses it.
        cache: Folder in place of the user's, token and all.
        token: The client's token; the hub's own by default, None for a client without.
    """
    from huggingface_hub import constants, hf_api
    from huggingface_hub.utils import _xet

    values = {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_URL_HOSTS": constants.HF_URL_HOSTS | {hub.host},
        "HF_HUB_OFFLINE": False,
        "HF_HOME": str(cache),
        "HF_HUB_CACHE": str(cache / "hub"),
        "HUGGINGFACE_HUB_CACHE": str(cache / "hub"),
        "HF_ASSETS_CACHE": str(cache / "assets"),
        "HF_XET_CACHE": str(cache / "xet"),
        "HF_TOKEN_PATH": str(cache / "token"),
        "HF_STORED_TOKENS_PATH": str(cache / "stored_tokens"),
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_DISABLE_XET": not hub.xet,
    }
    for name, value in values.items():
        monkeypatch.setattr(constants, name, value, raising=False)
    # The functions at the top of huggingface_hub are methods of this one object.
    monkeypatch.setattr(hf_api.api, "endpoint", hub.endpoint)
    # Transformers keeps its first client, with the endpoint of an earlier hub.
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)
    # Answers of another hub that had the same port.
    monkeypatch.setattr(_xet, "XET_CONNECTION_INFO_CACHE", {})
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token or hub.token)
    # What the client's own HTTP library says of the client; pytest forgets it after the test.
    warnings.filterwarnings("ignore", "Use 'content=", DeprecationWarning)
