"""What `bench_vllm.py` serves: each domain's draft as two exports, and its prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_parts import named_drafts, rows_of
from vllm_report import FULL, TRIMMED

from vtrim_hf.chat_data import open_chat_data
from vtrim_hf.exporting import export_draft
from vtrim_hf.measuring_step import ExtendedDraft, read_prompts
from vtrim_hf.named_models import NamedModel

MOST_READ = 10_000  # prompts, of which the first that are short enough are taken


@dataclass(frozen=True)
class Domain:
    """A trained draft and the data that it is measured on."""

    name: str
    draft: NamedModel
    data: str

    @property
    def facts(self) -> dict[str, Any]:
        """What is told of it."""
        identify = open_chat_data(self.data).identity
        return {
            "draft": self.draft.name,
            "draft_identity": self.draft.identity,
            "data": self.data,
            "data_fingerprint": None if identify is None else identify(),
        }


def domains_of(drafts: Sequence[str], data: Sequence[str]) -> list[Domain]:
    """Return the domains that were asked for.

    Args:
        drafts: NAME=DRAFT, or a folder of drafts.
        data: folders of domains, and NAME=FILE.

    Raises:
        SystemExit: if one has no data, or is named twice.
    """
    files = {name: file for one in data for name, _, file in [one.partition("=")] if file}
    folders = [Path(one) for one in data if "=" not in one]
    found = []
    for name, draft in named_drafts(drafts).items():
        places = [folder / name / "test.jsonl" for folder in folders]
        place = files.get(name) or next((str(path) for path in places if path.is_file()), None)
        if place is None:
            raise SystemExit(
                f"no --data holds {name}/test.jsonl: name a folder that does, or the file itself, "
                f"--data {name}=FILE"
            )
        found.append(Domain(name, draft, place))
    return found


def check_trimmed(domains: Sequence[Domain], target: NamedModel) -> None:
    """Raise unless every draft is trimmed; only configs are read.

    Raises:
        SystemExit: for a draft that has every row already, or is none for this target.
    """
    for domain in domains:
        rows = rows_of(domain.draft, target)
        if rows == target.vocab_size:
            raise SystemExit(
                f"{domain.draft} has every row already ({rows:,}), and the two ways with a draft "
                "would be one: give a trimmed draft"
            )


def prompts_of(
    domain: Domain, tokenizer: Any, number: int, longest: int
) -> tuple[list[list[int]], list[int]]:
    """Return the first prompts of a domain that are not too long, and which were passed over.

    Args:
        domain: what is served.
        tokenizer: the target's.
        number: how many.
        longest: tokens of a prompt.

    Returns:
        Ids, one list a prompt; and the places in the data, from 1, of longer prompts before the
        last of these.

    Raises:
        SystemExit: if there are fewer.
    """
    found: list[list[int]] = []
    longer: list[int] = []
    for place, prompt in enumerate(read_prompts(domain.data, tokenizer, MOST_READ), 1):
        if len(found) == number:
            break
        if len(prompt) > longest:
            longer.append(place)
        else:
            found.append(list(map(int, prompt)))
    if len(found) < number:
        raise SystemExit(
            f"{domain.data} holds {len(found)} prompts of at most {longest} tokens, asked for "
            f"{number}: lower --prompts or raise --max-prompt-tokens"
        )
    return found, longer


def prepare(domain: Domain, target: NamedModel, dtype: str, folder: Path) -> dict[str, int]:
    """Export a draft as it is and with every row; return the rows of both."""
    rows = {}
    for way, draft in ((TRIMMED, domain.draft), (FULL, ExtendedDraft(domain.draft, target))):
        model = draft.model(dtype)
        rows[way] = int(model.config.draft_vocab_size)
        export_draft(model, "eagle", folder / way, dtype=dtype)
    domain.draft.release()
    target.release()
    return rows
