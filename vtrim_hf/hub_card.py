"""Cards on the Hub: the one that is there, the source's licence, and whether ours is taken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .hub_account import Destination
from .hub_errors import explained
from .model_card import license_of
from .plain_facts import hub_id


def existing_card(
    api: Any, place: Destination, token: str, source: Path | None, scratch: Path
) -> str | None:
    """Return the text of the card that is there, on the Hub or else beside the draft."""
    if "README.md" in place.files:
        with explained("reading the card", api.endpoint):
            path = api.hf_hub_download(
                place.repo_id, "README.md", revision=place.head, token=token, cache_dir=scratch
            )
        return Path(path).read_text(encoding="utf-8")
    beside = None if source is None else source / "README.md"
    return beside.read_text(encoding="utf-8") if beside and beside.is_file() else None


def license_of_source(
    api: Any, facts: Mapping[str, Any], token: str, scratch: str
) -> dict[str, str]:
    """Return the licence that the card of the cut model names, if it can be read."""
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

    source = hub_id(facts["draft"].get("id"), "draft")
    if source is None:
        return {}
    with explained(f"reading the licence of {source}", api.endpoint):
        try:
            path = api.hf_hub_download(source, "README.md", token=token, cache_dir=scratch)
        except (EntryNotFoundError, RepositoryNotFoundError):
            return {}
    return license_of(Path(path).read_text(encoding="utf-8"))


def check_card(api: Any, text: str, token: str) -> None:
    """Let the Hub check the front matter, as it does at a commit, but before anything is made."""
    from huggingface_hub.utils import get_session, hf_raise_for_status

    with explained("checking the card", api.endpoint):
        answer = get_session().post(
            f"{api.endpoint}/api/validate-yaml",
            json={"content": text, "repoType": "model"},
            headers={"Authorization": f"Bearer {token}"},
        )
        if answer.status_code == 400:
            told = "; ".join(str(e.get("message")) for e in answer.json().get("errors", ()))
            raise ValueError(f"README.md: {told}")
        hf_raise_for_status(answer)
