"""Small files of published repositories: read at one commit, kept in the cache, never weights.

Whoever may publish may publish anything, so a file's size is asked for before it is fetched, and
what it holds is checked before it is believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .coverage_metadata import COVERAGE_JSON, LARGEST_FILE, parse, read
from .draft_on_hub import KEPT_IDS_FILE
from .hub_errors import AGAIN, PublishError, explained
from .published_draft import PublishedDraft
from .vocabulary import DraftVocabulary

MOST_IDS = 1 << 24
"""No tokenizer is near it, and a table of so many takes little memory."""

_HEADER = 1 << 16  # bytes that a safetensors file of one tensor may have beside it


def read_facts(
    api: Any, repo_id: str, commit: str, token: str | bool | None = None
) -> dict[str, Any]:
    """Read `vtrim/coverage.json` of a commit.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is too large, or holds nothing that `check_metadata` lets through.
    """
    place = small_file(api, repo_id, commit, COVERAGE_JSON, token, largest=LARGEST_FILE)
    return parse(place.read_bytes())


def read_vocabulary(
    draft: PublishedDraft, *, token: str | bool | None = None, endpoint: str | None = None
) -> DraftVocabulary:
    """Read which tokens a published draft can say, without its weights.

    Args:
        draft: as `find_drafts` gives it.
        token: of the Hub.
        endpoint: of the Hub, if it is another.

    Returns:
        The vocabulary, proven by the fingerprint in the draft's facts.

    Raises:
        FileNotFoundError: if the draft was published without the file.
        ValueError: if the file is damaged or another draft's.
    """
    import torch
    from huggingface_hub import HfApi
    from safetensors import SafetensorError
    from safetensors.torch import load

    name = f"{KEPT_IDS_FILE} of {draft.repo_id}"
    if draft.k > MOST_IDS:
        raise ValueError(f"its facts tell of {draft.k:,} kept ids, at most {MOST_IDS:,} are read")
    if draft.k == draft.vocab_size:
        ids = torch.arange(draft.k)
    else:
        api = HfApi(endpoint=endpoint)
        # No id takes more than eight bytes.
        largest = 8 * draft.k + _HEADER
        place = small_file(api, draft.repo_id, draft.commit, KEPT_IDS_FILE, token, largest=largest)
        try:
            ids = load(place.read_bytes())["kept_ids"].to(torch.int64)
        except (SafetensorError, KeyError) as error:
            raise ValueError(f"{name} holds no table of kept ids: {error}") from error
    vocabulary = DraftVocabulary(ids, draft.vocab_size, draft.tokenizer_hash)
    if vocabulary.fingerprint != draft.fingerprint:
        raise ValueError(
            f"{name} has the fingerprint {vocabulary.fingerprint[:12]}, its facts name "
            f"{draft.fingerprint[:12]}: the draft must be published again"
        )
    return vocabulary


def drafts_in_cache(target: str) -> list[tuple[str, str]]:
    """Return repository and commit of each draft for a target that is on this machine, whole."""
    from huggingface_hub import constants

    found = []
    for place in Path(constants.HF_HUB_CACHE).glob(f"models--*--*/snapshots/*/{COVERAGE_JSON}"):
        snapshot = place.parents[1]
        if not (any(snapshot.glob("*.safetensors")) and (snapshot / "config.json").is_file()):
            continue
        with suppress(OSError, ValueError):  # nobody's fault here: it is only not named
            known = read(place)["target"].get("id", "")
            if known.casefold() == target.casefold():
                name = snapshot.parents[1].name.removeprefix("models--").replace("--", "/")
                found.append((name, snapshot.name))
    return sorted(found)


def small_file(
    api: Any, repo_id: str, commit: str, name: str, token: str | bool | None, *, largest: int
) -> Path:
    """Return where a file of a commit is on this machine, after fetching it if it is not there.

    Raises:
        FileNotFoundError: if the commit has no such file.
        ValueError: if it is larger than `largest` bytes.
    """
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(repo_id, name, revision=commit)
    if isinstance(cached, str):
        return Path(cached)
    rows = api.get_paths_info(repo_id, [name], revision=commit, token=token)
    sizes = [row.size for row in rows if row.path == name and hasattr(row, "size")]
    if not sizes:
        raise FileNotFoundError(f"{repo_id} has no {name}")
    if sizes[0] > largest:
        raise ValueError(f"{name} of {repo_id} takes {sizes[0]} bytes, at most {largest} are read")
    return Path(api.hf_hub_download(repo_id, name, revision=commit, token=token))


@contextmanager
def loading(draft: PublishedDraft) -> Iterator[None]:
    """Say of an error which published draft cannot be loaded, and the way out."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise OSError(
            f"the draft that fits best, {draft.name} at {draft.commit}, cannot be loaded: {error}"
            "; name somebody else's with author=, or load another one of find_drafts with "
            "from_pretrained(draft.repo_id, revision=draft.commit)"
        ) from error


@contextmanager
def answered(doing: str, endpoint: str) -> Iterator[None]:
    """Turn what the Hub's client raises while something is read into an `OSError`."""
    try:
        with explained(doing, endpoint):
            yield
    except PublishError as error:
        first = error.__cause__
        if type(first).__name__ == "OfflineModeIsEnabled":
            raise OSError(
                f"{doing} needs the Hub, and HF_HUB_OFFLINE is set: unset it, or load a draft "
                "that is in the cache by its name"
            ) from first
        remedy = error.remedy.replace(AGAIN, "try again later")
        raise OSError(f"{error.happened}: {remedy}") from first
