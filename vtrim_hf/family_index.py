"""The index of a family: one small file that lists a target's drafts by domain, and its card."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .card_words import cell, code, python_text
from .coverage_schema import check_against
from .draft_on_hub import FAMILY_JSON as FAMILY_JSON
from .hub_account import MAIN, Destination, check_reference
from .hub_errors import PublishError
from .model_card import LICENSE_FIELDS, renew, split_card, words
from .plain_facts import DEFAULT_DOMAIN, domain_tag
from .published_draft import Covered, PublishedDraft

FAMILY_TAG = "vtrim-family"
FORMAT_VERSION = 1

_WORD = {"type": "string", "minLength": 1, "maxLength": 300}
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["format_version", "drafts"],
    "additionalProperties": False,
    "properties": {
        "format_version": {"const": FORMAT_VERSION},
        "drafts": {
            "type": "array",
            "maxItems": 1000,
            "items": {
                "type": "object",
                "required": ["domain", "repo_id"],
                "additionalProperties": False,
                "properties": {
                    "domain": _WORD,
                    "repo_id": {
                        "type": "string",
                        "maxLength": 96,
                        "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*$",
                    },
                    "revision": _WORD,  # and what `check_reference` takes
                    "commit": {"type": "string", "pattern": "^[0-9a-f]{40}$"},
                },
            },
        },
    },
}
"""What `vtrim/family.json` may hold, beside the rule for the names of branches."""


def parse_family(text: str | bytes) -> dict[str, Any]:
    """Read an index from JSON text.

    Raises:
        ValueError: if it is no JSON, or not what an index may hold.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{FAMILY_JSON} is no JSON: {error}") from error
    version = found.get("format_version") if isinstance(found, dict) else None
    if type(version) is int and version > FORMAT_VERSION:
        raise ValueError(
            f"{FAMILY_JSON} is of the format {version}, this release reads {FORMAT_VERSION}: "
            "upgrade with `pip install -U vtrim_hf`"
        )
    try:
        _check(found)
    except ValueError as error:
        raise ValueError(f"{FAMILY_JSON}: {error}") from error
    index: dict[str, Any] = found
    return index


def _check(index: Any) -> None:
    check_against(index, SCHEMA)
    for entry in index["drafts"]:
        # The same rule as for publishing: what got a branch can be listed.
        check_reference(entry.get("revision"), "revision")


def check_holds_no_index(place: Destination) -> None:
    """Raise if a draft would go to the main of a repository that lists drafts.

    It would be listed among itself, and the next draft of the family would find no index.

    Raises:
        PublishError: naming the way out.
    """
    if place.revision == MAIN and FAMILY_JSON in place.files:
        raise PublishError(
            f"the main of {place.repo_id} holds a family's index, a draft there would end the "
            "family",
            "name the draft's own branch with revision=, or take another name",
        )


def merged(
    old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Put new entries in the place of old ones of the same domain; sorted by domain."""
    found = {entry["domain"]: dict(entry) for entry in [*old, *new]}
    return [found[name] for name in sorted(found)]


def family_text(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of `vtrim/family.json`.

    Raises:
        ValueError: if an entry is not what an index may hold.
    """
    index = {"format_version": FORMAT_VERSION, "drafts": [dict(entry) for entry in entries]}
    _check(index)
    return json.dumps(index, indent=2, ensure_ascii=False) + "\n"


def family_card(
    repo_id: str,
    entries: Sequence[Mapping[str, Any]],
    drafts: Mapping[str, PublishedDraft],
    *,
    tags: Iterable[str],
    license: Mapping[str, str],
    existing: str | None = None,
) -> str:
    """Write the card of an index, or renew our section of one that is there.

    Args:
        repo_id: of the index.
        entries: of `vtrim/family.json`.
        drafts: what is known of them, by domain; an entry without is only named.
        tags: of the card, beside those of the domains.
        license: fields of the front matter, if all drafts have one licence.
        existing: text of the card that is there.
    """
    import yaml

    held, text = split_card(existing or "")
    kept = words(held.get("tags"))
    # Of what was counted, too: a folder may be called as it likes.
    domains = [
        name
        for entry in entries
        for name in (entry["domain"], *_counted(drafts.get(entry["domain"])))
    ]
    named = [tag for name in domains if (tag := domain_tag(name)) != DEFAULT_DOMAIN]
    front = {name: value for name, value in held.items() if name not in LICENSE_FIELDS}
    front |= {"tags": list(dict.fromkeys([*kept, *tags, *named])), **license}
    ours = _section(repo_id, entries, drafts)
    title = f"# {repo_id.rpartition('/')[2]}\n\n"
    try:
        body = renew(text, ours) if text.strip() else f"{title}{ours}\n"
    except ValueError as error:
        raise ValueError(f"{repo_id}: {error}") from error
    written = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{written}---\n\n{body.lstrip()}"


def _section(
    repo_id: str, entries: Sequence[Mapping[str, Any]], drafts: Mapping[str, PublishedDraft]
) -> str:
    targets = sorted({draft.target for draft in drafts.values() if draft.target})
    of = f" for {', '.join(f'`{name}`' for name in targets)}" if targets else ""
    lines = [
        "<!-- vtrim:begin family -->",
        f"Draft models{of}, each with the vocabulary that one domain really uses.",
        "",
        "| domain | draft | k | share of vocabulary | coverage | acceptance length | speed-up |",
        "|---|---|---|---|---|---|---|",
    ]
    for entry in entries:
        draft = drafts.get(entry["domain"])
        where = code(entry["repo_id"]) + (
            f", revision {code(entry['revision'])}" if "revision" in entry else ""
        )
        lines.append(" | ".join([f"| {cell(entry['domain'])}", where, *_figures(draft), ""]))
    first = next((entry for entry in entries if entry["domain"] in drafts), entries[0])
    revision = f", revision={python_text(first['revision'])}" if "revision" in first else ""
    lines += [
        "",
        "Coverage is the share of tokens that a draft can say, of held-out data where there was "
        "any; a speed-up is over the target alone on the machine that the draft's own card names.",
        "",
        "```python",
        "from vtrim_hf import TrimmedDraftForCausalLM",
        "",
        f'draft = TrimmedDraftForCausalLM.from_pretrained("{first["repo_id"]}"{revision})',
    ]
    # A branch is found only by the index that lies in the same repository.
    found = "revision" not in first or first["repo_id"] == repo_id
    if targets and found:
        lines += [
            "# or the best one that is published:",
            f"draft = TrimmedDraftForCausalLM.from_hub_for({python_text(targets[0])}, "
            f"domain={python_text(first['domain'])})",
        ]
    return "\n".join([*lines, "```", "<!-- vtrim:end family -->"])


def _counted(draft: PublishedDraft | None) -> tuple[str, ...]:
    return () if draft is None else draft.domains


def _figures(draft: PublishedDraft | None) -> list[str]:
    if draft is None:
        return [""] * 5
    return [
        f"{draft.k:,}",
        f"{100 * draft.share_of_vocabulary:.1f} %",
        covered_text(draft.overall),
        "" if draft.acceptance_length is None else f"{draft.acceptance_length:.2f}",
        "" if draft.speedup is None else f"{draft.speedup:.2f}",
    ]


def covered_text(known: Covered | None) -> str:
    """Return a coverage in per cents, with its interval if it is known."""
    if known is None:
        return ""
    text = f"{100 * known.share:.2f} %"
    if known.interval is not None:
        text += f" ({100 * known.interval[0]:.2f} to {100 * known.interval[1]:.2f})"
    return text
