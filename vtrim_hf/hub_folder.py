"""The folder that is published: whole before anything is uploaded, and silent about its maker."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .coverage_metadata import COVERAGE_JSON, check_metadata
from .plain_facts import hub_id, local_path_in, without_local_paths

# What Transformers notes down about where a tokenizer came from.
_OF_THIS_MACHINE = (
    "name_or_path",
    "_name_or_path",
    "is_local",
    "local_files_only",
    "cache_dir",
    "tokenizer_file",
    "vocab_file",
    "merges_file",
    "special_tokens_map_file",
)

# Files of tokens hold texts of all kinds, and nothing about a machine.
_OF_TOKENS = frozenset({"tokenizer.json", "vocab.json", "added_tokens.json"})
_STRICT = frozenset({"config.json", "generation_config.json", COVERAGE_JSON})


def build_folder(
    draft: Any,
    folder: Path,
    *,
    facts: Mapping[str, Any],
    card: str,
    tokenizer: Any = None,
    source: Path | None = None,
    max_shard_size: int | str | None = None,
) -> tuple[str, ...]:
    """Write everything that is published into an empty folder.

    Args:
        draft: a `TrimmedDraftForCausalLM`.
        folder: where to.
        facts: what `vtrim/coverage.json` says.
        card: text of README.md.
        tokenizer: the target's.
        source: folder that the draft came from; its path is in nothing that is published.
        max_shard_size: see `save_pretrained`.

    Returns:
        The names of the files, ascending.

    Raises:
        ValueError: if the draft cannot be saved (its generation config is not valid, say), or a
            file would hold a path of this machine.
    """
    check_metadata(dict(facts))
    try:
        draft.generation_config.validate(strict=True)
    except ValueError as error:
        told = " ".join(str(error).split())
        raise ValueError(
            f"the draft's generation config is not valid: {told}; mend draft.generation_config"
        ) from error
    sizes = {} if max_shard_size is None else {"max_shard_size": max_shard_size}
    draft.save_pretrained(folder, **sizes)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    _drop_from(folder / "tokenizer_config.json", _OF_THIS_MACHINE)
    _clean_config(folder / "config.json")
    _write_json(folder / COVERAGE_JSON, facts)
    (folder / "README.md").write_text(card, encoding="utf-8")
    files = tuple(
        sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    )
    _refuse_local_paths(folder, files, source)
    return files


def _drop_from(place: Path, names: tuple[str, ...]) -> None:
    if place.is_file():
        held = json.loads(place.read_text(encoding="utf-8"))
        _write_json(place, {name: value for name, value in held.items() if name not in names})


def _clean_config(place: Path) -> None:
    """Keep of where things came from only what is on a Hub."""
    config = _without_private_names(json.loads(place.read_text(encoding="utf-8")))
    if config.get("vocabulary_provenance"):
        config["vocabulary_provenance"] = without_local_paths(config["vocabulary_provenance"])
    _write_json(place, config)


def _without_private_names(held: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_private_names(value) if isinstance(value, dict) else value
        for name, value in held.items()
        if name not in ("name_or_path", "_name_or_path") or _is_on_a_hub(value)
    }


def _is_on_a_hub(name: Any) -> bool:
    try:
        return isinstance(name, str) and hub_id(name, "source") is not None
    except ValueError:
        return False


def _write_json(place: Path, held: Mapping[str, Any]) -> None:
    place.parent.mkdir(exist_ok=True)
    text = json.dumps(held, indent=2, ensure_ascii=False, allow_nan=False)
    place.write_text(text + "\n", encoding="utf-8")


def _refuse_local_paths(folder: Path, files: tuple[str, ...], source: Path | None) -> None:
    own = [
        folder,
        Path.home(),
        Path.cwd(),
        Path(tempfile.gettempdir()),
        *([source] if source else []),
    ]
    private = {f"{place.absolute()}/" for place in own if len(place.absolute().parts) > 1}
    for name in files:
        if not name.endswith(".json") or name in _OF_TOKENS:
            continue
        text = (folder / name).read_text(encoding="utf-8")
        found = local_path_in(json.loads(text)) if name in _STRICT else None
        for path in private:
            if found is None and path in text:
                found = ("it", path)
        if found is not None:
            raise ValueError(
                f"{name} would publish a path of this machine, {found[0]} is {found[1]!r:.120}: "
                "take it out of the draft or the tokenizer first"
            )
