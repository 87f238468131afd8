"""The card of a published draft: text from recorded facts, and nothing that is not recorded.

Our sections stand between marks. Renewing a card writes them anew and leaves all other text, and
every field of the front matter that is not ours, as the user wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .coverage_schema import card_file

TEMPLATE = "model_card.md.jinja"
TAGS = ("vtrim", "speculative-decoding", "draft-model", "trimmed-vocabulary")
_MISSED_OF = {
    "heldout": "the held-out conversations",
    "search": "the counted conversations",
    "decoding": "the target's answers while measuring",
}
LICENSE_FIELDS = ("license", "license_name", "license_link")

_FRONT_MATTER = re.compile(
    r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_MARK = re.compile(r"^<!-- vtrim:(begin|end) ([a-z]+) -->[ \t]*\r?$", re.MULTILINE)


def render_card(
    repo_id: str,
    facts: Mapping[str, Any],
    license: str | Mapping[str, str],
    *,
    existing: str | None = None,
    language: str | Iterable[str] | None = None,
    tags: Iterable[str] = (),
    chat: bool = True,
    tokenizer: bool = False,
    endpoint: str = "https://huggingface.co",
) -> str:
    """Write the card of a draft, or renew an existing one.

    Args:
        repo_id: where the draft is published.
        facts: what `coverage_metadata.make_metadata` made.
        license: its identifier on the Hub; or a mapping with `license_name` and `license_link`
            beside `license`, for licences of one's own.
        existing: text of the card that is there.
        language: codes of languages; left as it is if not given.
        tags: more tags.
        chat: whether the tokenizer has a chat template, for the snippet.
        tokenizer: whether the target's tokenizer lies beside the draft.
        endpoint: of the Hub, for links.

    Returns:
        Markdown with front matter.

    Raises:
        ValueError: if there is no licence, or the existing card cannot be renewed: its front
            matter is no YAML, or one of our marks is missing.
    """
    held, text = split_card(existing or "")
    front = _front_matter(held, facts, license, language, tags)
    ours = _render(repo_id, facts, chat, tokenizer, endpoint)
    body = renew(text, ours) if text.strip() else ours
    return f"---\n{_to_yaml(front)}---\n\n{body.lstrip()}"


def split_card(text: str) -> tuple[dict[str, Any], str]:
    """Return the front matter of a card, and its text.

    Raises:
        ValueError: if the front matter is no YAML mapping.
    """
    import yaml

    found = _FRONT_MATTER.match(text)
    if found is None:
        return {}, text
    try:
        held = yaml.safe_load(found[1]) or {}
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(
            f"the front matter of the card (README.md) is no YAML: {error}; mend it by hand first"
        ) from error
    if not isinstance(held, dict):
        raise ValueError(
            f"the front matter of the card (README.md) must be a YAML mapping, got {held!r:.80}: "
            "mend it by hand first"
        )
    return held, text[found.end() :]


def license_of(card: str | None) -> dict[str, str]:
    """Return what a card says of the licence, nothing if it says nothing or cannot be read."""
    try:
        held, _ = split_card(card or "")
    except ValueError:
        return {}
    said = {name: held.get(name) for name in LICENSE_FIELDS}
    known = {name: value for name, value in said.items() if isinstance(value, str) and value}
    return known if "license" in known else {}


def renew(text: str, ours: str) -> str:
    """Put our sections in the place of those that a text has.

    A section that somebody took out stays out. A text without any gets them at its end.

    Raises:
        ValueError: if a mark is missing or stands twice.
    """
    new = _sections(ours)
    old = _sections(text)
    if not old:
        added = "\n\n".join(ours[start:end] for start, end in new.values())
        return f"{text.rstrip()}\n\n{added}\n"
    parts, at = [], 0
    for name, (start, end) in old.items():
        fresh = new.get(name)
        parts += [text[at:start], text[start:end] if fresh is None else ours[slice(*fresh)]]
        at = end
    return "".join([*parts, text[at:]])


def _sections(text: str) -> dict[str, tuple[int, int]]:
    """Return where each of our sections stands, its marks included, in order."""
    found: dict[str, tuple[int, int]] = {}
    open_name, start = "", 0
    for mark in _MARK.finditer(text):
        kind, name = mark[1], mark[2]
        if (kind == "begin") == bool(open_name) or (kind == "end" and name != open_name):
            break
        if kind == "begin":
            open_name, start = name, mark.start()
            if name in found:
                break
            continue
        found[name], open_name = (start, mark.end()), ""
    else:
        if not open_name:
            return found
    raise ValueError(
        f"the marks of the card (README.md) do not pair up at {mark[0]!r}: put the missing one "
        "back, or delete the section with both of its marks"
    )


def _front_matter(
    held: Mapping[str, Any],
    facts: Mapping[str, Any],
    license: str | Mapping[str, str],
    language: str | Iterable[str] | None,
    tags: Iterable[str],
) -> dict[str, Any]:
    said = {"license": license} if isinstance(license, str) else dict(license)
    if not said.get("license"):
        raise ValueError(
            "a card needs the licence of the weights, which is not guessed: pass license=, an "
            "identifier of the Hub such as 'apache-2.0'"
        )
    front = {name: value for name, value in held.items() if value is not None}
    front["library_name"] = "transformers"
    front["pipeline_tag"] = "text-generation"
    # A licence of one's own has a name and a link, which another one must not inherit.
    if said["license"] != held.get("license"):
        for name in LICENSE_FIELDS:
            front.pop(name, None)
    front |= said
    # An EAGLE-3 draft is made from its target's head and states.
    own = "target" if facts["draft"].get("body") == "eagle3" else "draft"
    source = facts[own].get("id")
    if source:
        front["base_model"] = source
    earlier = held.get("tags")
    earlier = [earlier] if isinstance(earlier, str) else earlier or []
    domains = facts.get("coverage", {}).get("domains", {})
    named = [slug for name in domains if (slug := _slug(name)) != "default"]
    front["tags"] = list(dict.fromkeys([*map(str, earlier), *TAGS, *named, *tags]))
    if facts.get("datasets"):
        before = held.get("datasets")
        before = [before] if isinstance(before, str) else before or []
        front["datasets"] = list(dict.fromkeys([*map(str, before), *facts["datasets"]]))
    if language is not None:
        front["language"] = [language] if isinstance(language, str) else list(language)
    return front


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-") or "default"


def _to_yaml(front: Mapping[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True, width=1000)
    return text


def _render(
    repo_id: str, facts: Mapping[str, Any], chat: bool, tokenizer: bool, endpoint: str
) -> str:
    import jinja2

    # Not escaped as HTML: `cell` and `token` make any text harmless in a table.
    environment = jinja2.Environment(
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.ChainableUndefined,
    )
    environment.filters |= _FILTERS
    template = environment.from_string(card_file(TEMPLATE).read_text(encoding="utf-8"))
    domains: Mapping[str, Any] = facts.get("coverage", {}).get("domains", {})
    return template.render(
        repo_id=repo_id,
        name=repo_id.rpartition("/")[2],
        endpoint=endpoint.rstrip("/"),
        chat=chat,
        tokenizer=tokenizer,
        target=facts["target"],
        draft=facts["draft"],
        search=facts.get("search"),
        required=facts.get("required_tokens"),
        decoding=facts.get("decoding"),
        missed=facts.get("most_missed_tokens"),
        missed_of=_MISSED_OF,
        datasets=facts.get("datasets"),
        domains=[_cell(name) for name in domains if name != "default"],
        weak=[name for name, known in domains.items() if known.get("weak")],
        coverage_rows=_coverage_rows(facts.get("coverage", {})),
        machine=_machine(facts.get("decoding", {}).get("machine", {})),
        versions=", ".join(f"{n} {v}" for n, v in sorted(facts.get("versions", {}).items())),
    )


def _coverage_rows(coverage: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = [{"name": name, **known} for name, known in coverage.get("domains", {}).items()]
    whole = {name: coverage[name] for name in ("search", "heldout") if name in coverage}
    return [*rows, {"name": "all", **whole}] if whole and len(rows) != 1 else rows


def _machine(facts: Mapping[str, Any]) -> str:
    said = [str(facts[name]) for name in ("gpu", "cpu") if name in facts]
    for name in ("device", "threads", "system"):
        if name in facts:
            said.append(f"{name} {facts[name]}")
    said += [f"{name} {version}" for name, version in sorted(facts.get("versions", {}).items())]
    return ", ".join(said) or "an unknown machine"


def _percent(value: Any, places: int = 1) -> str:
    return f"{100 * value:.{places}f} %"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _short(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else ""


def _covered(part: Any) -> str:
    if not isinstance(part, Mapping):
        return ""
    text = _percent(part["share"], 2)
    if "interval" in part:
        low, high = part["interval"]
        text += f" ({100 * low:.2f} to {100 * high:.2f})"
    return text


def _counted(part: Any) -> str:
    if not isinstance(part, Mapping) or "tokens" not in part:
        return ""
    text = _number(part["tokens"])
    if "conversations" in part:
        text += f" in {_number(part['conversations'])} conversations"
    return text


def _speedup(spread: Mapping[str, float]) -> str:
    text = f"{spread['median']:.2f}"
    return f"{text} ({spread['low']:.2f} to {spread['high']:.2f})" if "low" in spread else text


def _cell(value: Any) -> str:
    """Text that is neither Markdown nor HTML, wherever it stands in a line."""
    text = " ".join(str(value).split())
    return re.sub(r"([\\`*_{}\[\]<>#|~$!&])", r"\\\1", text)


def _token(text: str) -> str:
    """A token's text as code, its blanks and control characters visible."""
    shown = json.dumps(text, ensure_ascii=False)[1:-1].replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    pad = " " if shown.startswith(("`", " ")) or shown.endswith(("`", " ")) else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


_FILTERS = {
    "percent": _percent,
    "number": _number,
    "short": _short,
    "covered": _covered,
    "counted": _counted,
    "speedup": _speedup,
    "cell": _cell,
    "token": _token,
}
