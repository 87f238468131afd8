"""Cards on the Hub: the one that is there, the source's licence, and whether ours is taken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .hub_account import Destination
from .hub_errors import AGAIN, PublishError, explained
from .model_card import LICENSE_FIELDS, license_of, source_of
from .plain_facts import hub_id

_LINK = LICENSE_FIELDS[2]


def existing_card(
    api: Any, place: Destination, token: str, source: Path | None, scratch: Path
) -> str | None:
    """Return the text of the card that is there, on the Hub or else beside the draft."""
    if "README.md" in place.files:
        with explained("reading the card", api.endpoint):
            path = api.hf_hub_download(
                place.repo_id, "README.md", revision=place.head, token=token, cache_dir=scratch
            )
            return _text(path)
    beside = None if source is None else source / "README.md"
    return _text(beside) if beside and beside.is_file() else None


def license_of_source(
    api: Any, facts: Mapping[str, Any], token: str, scratch: str
) -> dict[str, str]:
    """Return the licence that the card of the cut model names, of EAGLE-3 its target's.

    Returns:
        What `license_of` finds, a link to a file of the source leading there; nothing if the
        source is not on the Hub or has no card that says it.
    """
    from huggingface_hub.errors import (
        EntryNotFoundError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    source = hub_id(source_of(facts), "source")
    if source is None:
        return {}
    with explained(f"reading the licence of {source}", api.endpoint):
        try:
            path = api.hf_hub_download(source, "README.md", token=token, cache_dir=scratch)
        except LocalEntryNotFoundError:
            raise  # the Hub did not answer, which is no answer
        except (EntryNotFoundError, RepositoryNotFoundError):
            return {}
        said = license_of(_text(path))
    link = said.get(_LINK)
    if link and "://" not in link:
        said[_LINK] = f"{api.endpoint}/{source}/blob/main/{link.removeprefix('./')}"
    return said


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PublishError(
            f"the card that is there is no UTF-8 text ({error.reason} at byte {error.start})",
            f"save it as UTF-8, then {AGAIN}",
        ) from error


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
