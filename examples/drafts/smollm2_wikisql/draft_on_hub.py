"""What a draft has because it may lie on a Hub: facts that travel with it, one commit, publishing.

Config, weights, generation settings and facts of one `from_pretrained` come from one commit, even
if somebody publishes meanwhile. This module ships with the modelling code, so it knows the facts
only as plain JSON of this vocabulary; where `vtrim_hf` is installed, its schema decides.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors.torch import save
from transformers.utils import CONFIG_NAME, cached_file, extract_commit_hash, resolve_revision

from .vocabulary_files import write_atomically

logger = logging.getLogger(__name__)

COVERAGE_JSON = "vtrim/coverage.json"
KEPT_IDS_FILE = "vtrim/vocabulary.safetensors"
FAMILY_JSON = "vtrim/family.json"
LARGEST_FILE = 1 << 20
_DEEPEST = 20

# What `from_pretrained` takes to find a file, and `cached_file` takes, too.
_WHERE = ("cache_dir", "force_download", "local_files_only", "proxies", "subfolder", "token")


class DraftOnHub:
    """What `TrimmedDraftForCausalLM` has to be published and to come back.

    Attributes:
        coverage_metadata: what is known of the draft (`vtrim_hf.coverage_metadata.make_metadata`
            makes it), as JSON types; None if nothing is. Saved and loaded with the draft.
    """

    config: Any
    vocabulary: Any
    coverage_metadata: dict[str, Any] | None = None

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> Any:
        """Publish the draft with its card and the facts recorded with it, in one commit.

        Args:
            repo_id: `NAMESPACE/NAME`.
            kwargs: see `vtrim_hf.hub.publish`; what `PreTrainedModel.push_to_hub` takes is among
                it. An existing repository needs `exist_ok=True`.

        Returns:
            A `vtrim_hf.hub.Published`.

        Raises:
            ImportError: if `vtrim_hf` is not installed, only the code that it ships.
            OSError: a `PublishError` that says what happened, what was done, and the way out.
        """
        return _installed("hub", "publishing a draft").publish(self, repo_id, **kwargs)

    @classmethod
    def from_hub_for(
        cls,
        target_id: str,
        domain: str | None = None,
        *,
        author: str | None = None,
        k_max: int | None = None,
        license: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Load the published draft that fits a target and a domain best.

        It is the one that `find_drafts` lists first, at the very commit that its facts are from.

        Args:
            target_id: Hub id of the model to draft for.
            domain: what it shall be good at; None takes the best for all that was counted.
            author: user or organization that published it; name one that you trust.
            k_max: most kept ids.
            license: identifier of the licence.
            kwargs: what `from_pretrained` takes, `token` among it; not what the choice decides
                (`revision`, `subfolder`), nor another place to ask.

        Raises:
            ImportError: if `vtrim_hf` is not installed, only the code that it ships.
            ValueError: if no published draft fits; the text says what there is instead.
            OSError: if the Hub does not answer; the text names what is in the cache.

        Example:
            ```python
            draft = TrimmedDraftForCausalLM.from_hub_for("me/my-target", domain="sql")
            target.generate(**inputs, assistant_model=draft)
            ```
        """
        for name in ("revision", "code_revision", "subfolder", "endpoint", "local_files_only"):
            if kwargs.get(name):
                raise ValueError(
                    "from_hub_for lets the Hub of HF_ENDPOINT choose the draft and its commit, so "
                    f"it takes no {name}, got {kwargs[name]!r:.80}: name the draft's repository "
                    "with from_pretrained instead"
                )
        catalogue = _installed("catalogue", "finding a published draft")
        token, wanted = kwargs.get("token"), {"author": author, "k_max": k_max, "license": license}
        found = catalogue.best_draft(target_id, domain, token=token, **wanted)
        logger.info("The draft for %s is %s at %s", target_id, found.name, found.commit)
        loaded: Any = cls
        with catalogue.loading(found):
            return loaded.from_pretrained(found.repo_id, revision=found.commit, **kwargs)

    def check_facts(self) -> None:
        """Raise unless `coverage_metadata` can be saved and will come back.

        Raises:
            ValueError: if the facts are not plain JSON, or of another vocabulary.
        """
        facts: Any = self.coverage_metadata
        if facts is None:
            return
        try:
            if type(facts) is not dict:
                raise ValueError(f"it must be a dict, got {facts!r:.80}")
            check_plain(facts)
            self._check_own(facts)
        except ValueError as error:
            raise ValueError(
                f"draft.coverage_metadata cannot be saved: {error}; make it with "
                "vtrim_hf.coverage_metadata.make_metadata, or set it to None"
            ) from error

    def save_facts(self, folder: str | Path) -> None:
        """Write facts and kept ids into a draft's folder, or remove those of an earlier draft.

        The kept ids lie in the weights, too; here they can be read without these.
        """
        place, table = Path(folder) / COVERAGE_JSON, Path(folder) / KEPT_IDS_FILE
        if self.vocabulary.is_full:
            table.unlink(missing_ok=True)
        else:
            table.parent.mkdir(parents=True, exist_ok=True)
            ids = self.vocabulary.ids.to(torch.int32).contiguous()
            write_atomically(table, save({"kept_ids": ids}))
        if self.coverage_metadata is None:
            place.unlink(missing_ok=True)
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.coverage_metadata, indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(place, (text + "\n").encode())

    def load_facts(self, name: Any, where: Mapping[str, Any]) -> None:
        """Set `coverage_metadata` from the folder or repository that the draft came from.

        A draft works without its facts, so a file that is damaged or of another draft is left
        alone, with a warning.

        Args:
            name: folder or Hub id.
            where: the arguments of `from_pretrained`, the revision resolved.
        """
        self.coverage_metadata = None
        if name is None:  # the weights were handed over
            return
        try:
            place = _found(name, COVERAGE_JSON, where)
            if place is None:
                if not _is_known_to_lack(name, COVERAGE_JSON, where):
                    raise OSError("the Hub did not send it, and it is not in the cache")
                return
            facts = _read(Path(place))
            self._check_own(facts)
        except (OSError, ValueError, RecursionError) as error:
            logger.warning(
                "The draft is loaded without its facts: %s of %s is not used, for %s",
                COVERAGE_JSON,
                name,
                error,
            )
            return
        self.coverage_metadata = facts

    def _check_own(self, facts: Mapping[str, Any]) -> None:
        told = facts.get("draft")
        found = told.get("fingerprint") if isinstance(told, dict) else None
        own = self.vocabulary.fingerprint
        if found != own:
            raise ValueError(
                f"its $.draft.fingerprint is {str(found)[:12]!r}, the draft's is {own[:12]!r}"
            )
        try:
            schema = importlib.import_module("vtrim_hf.coverage_metadata")
        except ImportError:
            return  # without the package nothing but this module reads the facts
        schema.check_metadata(dict(facts))


def _installed(module: str, what: str) -> Any:
    try:
        return importlib.import_module(f"vtrim_hf.{module}")
    except ImportError as error:
        raise ImportError(
            f"{what} needs the package, this is the code that it ships: `pip install vtrim_hf` "
            f"({error})"
        ) from error


def pinned(name: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` with the revision resolved to one commit.

    Without a network the commit is the cache's; a folder has none. Where the Hub does not tell,
    it is the commit that the config comes from.
    """
    if name is None or Path(name).exists():
        return kwargs
    revision = resolve_revision(
        name,
        kwargs.get("revision"),
        token=kwargs.get("token"),
        local_files_only=bool(kwargs.get("local_files_only")),
        cache_dir=kwargs.get("cache_dir"),
    )
    if getattr(revision, "resolved", None) is None:
        revision = extract_commit_hash(_found(name, CONFIG_NAME, kwargs), None)
    where = kwargs if revision is None else {**kwargs, "revision": revision}
    if _found(name, CONFIG_NAME, where) is None and _found(name, FAMILY_JSON, where) is not None:
        raise OSError(
            f"{name} holds a family's index here and no draft: each lies on a branch or in a "
            f"repository of its own, which {FAMILY_JSON} lists; name one with revision="
        )
    return where


def _found(name: Any, file: str, where: Mapping[str, Any]) -> str | None:
    """Return where a file of a folder or repository is on this machine, None if it is not."""
    place: str | None = cached_file(
        name,
        file,
        revision=where.get("revision"),
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **{key: where[key] for key in _WHERE if where.get(key) is not None},
    )
    return place


def _is_known_to_lack(name: Any, file: str, where: Mapping[str, Any]) -> bool:
    """Whether a file that was not found is not there; a Hub that does not answer lacks nothing."""
    if Path(name).exists():
        return True
    inside = "/".join(part for part in (where.get("subfolder"), file) if part)
    cached = try_to_load_from_cache(
        str(name), inside, cache_dir=where.get("cache_dir"), revision=where.get("revision")
    )
    return cached is not None and not isinstance(cached, str)  # the client's mark of a 404


def take_publishing(kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Take the arguments of `push_to_hub` out of those of `save_pretrained(push_to_hub=True)`.

    Returns:
        They, or None if nothing is to be published.

    Raises:
        ValueError: if what would be saved is not what would be published.
    """
    if not kwargs.pop("push_to_hub", False):
        return None
    for name in ("state_dict", "variant"):
        if kwargs.get(name) is not None:
            raise ValueError(
                f"push_to_hub=True publishes the draft's own weights, so it does not go with "
                f"{name}: save first, then vtrim_hf.hub.publish(folder, repo_id)"
            )
    # Everything that save_pretrained itself does not take is meant for publishing.
    own = ("is_main_process", "max_shard_size", "save_original_format", "save_peft_format")
    taken = {name: kwargs.pop(name) for name in [*kwargs] if name not in own}
    if "repo_id" not in taken:
        raise ValueError(
            "push_to_hub=True needs repo_id='NAMESPACE/NAME': the folder's name alone does not "
            "say whose repository it is"
        )
    if "max_shard_size" in kwargs:
        taken["max_shard_size"] = kwargs["max_shard_size"]
    return taken


def check_plain(value: Any, at: str = "$", deep: int = 0) -> None:
    """Raise unless a value is plain JSON without null, in reasonable depth.

    Raises:
        ValueError: naming the JSON path.
    """
    if deep > _DEEPEST:
        raise ValueError(f"{at:.200} is nested deeper than {_DEEPEST} levels")
    if type(value) is dict:
        for name, member in value.items():
            if type(name) is not str:
                raise ValueError(f"{at} has the name {name!r}, a name is text")
            check_plain(member, f"{at}.{name:.80}", deep + 1)
    elif type(value) is list:
        for position, item in enumerate(value):
            check_plain(item, f"{at}[{position}]", deep + 1)
    elif type(value) not in (str, int, float, bool) or (
        type(value) is float and not math.isfinite(value)
    ):
        raise ValueError(f"{at} must be text, a finite number, true or false, got {value!r:.80}")


def _read(place: Path) -> dict[str, Any]:
    size = place.stat().st_size
    if size > LARGEST_FILE:
        raise ValueError(f"it takes {size} bytes, at most {LARGEST_FILE} are read")
    try:
        facts = json.loads(place.read_bytes())
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from error
    if not isinstance(facts, dict):
        raise ValueError(f"it holds a {type(facts).__name__} where an object belongs")
    check_plain(facts)
    found: dict[str, Any] = facts
    return found
