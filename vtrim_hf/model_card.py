"""The card of a published draft: text from recorded facts, and nothing that is not recorded.

Our sections stand between marks. Renewing a card writes them anew and leaves all other text, and
every field of the front matter that is not ours, as the user wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .card_words import (
    FILTERS,
    MISSED_OF,
    cell,
    coverage_rows,
    curve_words,
    machine_words,
    measure_command,
    setting_rows,
)
from .coverage_schema import card_file
from .plain_facts import DEFAULT_DOMAIN, domain_tag, is_local_path

TEMPLATE = "model_card.md.jinja"
TAGS = ("vtrim", "speculative-decoding", "draft-model", "trimmed-vocabulary")
MOST_NODES = 100_000
"""Values of a card's front matter that are read."""
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
    revision: str | None = None,
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
        revision: the branch that it is published on, if that is not main.

    Returns:
        Markdown with front matter.

    Raises:
        ValueError: if there is no licence, or the existing card cannot be renewed: its front
            matter is no YAML, or one of our marks is missing.
    """
    held, text = split_card(existing or "")
    front = _front_matter(held, facts, license, language, tags)
    ours = _render(repo_id, facts, chat, tokenizer, endpoint, revision)
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
    # The constructor raises of its own accord, or whatever it meets: KeyError, IndexError, ...
    wrong = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, RecursionError)
    try:
        held = _read_yaml(found[1]) or {}
    except (*wrong, TypeError, ValueError) as error:
        raise ValueError(
            f"the front matter of the card (README.md) is no YAML: {_told(error)}; mend it by "
            "hand first"
        ) from error
    if not isinstance(held, dict):
        raise ValueError(
            "the front matter of the card (README.md) must be a YAML mapping, got a "
            f"{type(held).__name__}: mend it by hand first"
        )
    return held, text[found.end() :]


def _told(error: BaseException) -> str:
    return f"{error!s:.500}" or type(error).__name__


def _read_yaml(text: str) -> Any:
    """Return what a YAML text holds, one whose references would grow beyond measure refused."""
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is not None and _size(node, {}) > MOST_NODES:
            raise ValueError(f"its references stand for more than {MOST_NODES:,} values")
        return None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _size(node: Any, known: dict[int, int]) -> int:
    """Return how many values a node stands for, each reference counted as what it refers to."""
    if id(node) not in known:
        known[id(node)] = MOST_NODES + 1  # for one that refers to itself, which has no end
        inner = node.value if isinstance(node.value, list) else []
        parts = [part for one in inner for part in (one if isinstance(one, tuple) else (one,))]
        known[id(node)] = min(1 + sum(_size(part, known) for part in parts), MOST_NODES + 1)
    return known[id(node)]


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
    for name in ("base_model", "datasets"):
        # Other tools write the folder there that a model was loaded from.
        given = words(held.get(name))
        named = [one for one in given if not is_local_path(one)]
        if len(named) < len(given):
            front.pop(name)
            front |= {name: named} if named else {}
    front["library_name"] = "transformers"
    front["pipeline_tag"] = "text-generation"
    # A licence of one's own has a name and a link, which another one must not inherit.
    if said["license"] != held.get("license"):
        for name in LICENSE_FIELDS:
            front.pop(name, None)
    front |= {name: str(text) for name, text in said.items()}
    source = source_of(facts)
    if source:
        front["base_model"] = source
    domains = facts.get("coverage", {}).get("domains", {})
    named = [slug for name in domains if (slug := domain_tag(name)) != DEFAULT_DOMAIN]
    if facts["draft"].get("body") == "eagle3":
        named.insert(0, "eagle3")
    front["tags"] = _merged(held.get("tags"), [*TAGS, *named, *tags])
    if facts.get("datasets"):
        front["datasets"] = _merged(front.get("datasets"), facts["datasets"])
    if language is not None:
        front["language"] = [str(code) for code in _several(language)]
    return front


def source_of(facts: Mapping[str, Any]) -> str | None:
    """Return the Hub id of the model whose head a draft has, None if it is not known.

    An EAGLE-3 draft is made from its target's head and states.
    """
    own = "target" if facts["draft"].get("body") == "eagle3" else "draft"
    found: str | None = facts[own].get("id")
    return found


def _several(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) else list(value or ())


def words(value: Any) -> list[str]:
    """Return what a field of a card names: a text or several, anything else left out."""
    named = value if isinstance(value, list | tuple) else [value]
    return [str(one) for one in named if isinstance(one, str | int | float)]


def _merged(earlier: Any, ours: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys([*words(earlier), *map(str, ours)]))


def _to_yaml(front: Mapping[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True, width=1000)
    return text


def _render(
    repo_id: str,
    facts: Mapping[str, Any],
    chat: bool,
    tokenizer: bool,
    endpoint: str,
    revision: str | None,
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
    environment.filters |= FILTERS
    template = environment.from_string(card_file(TEMPLATE).read_text(encoding="utf-8"))
    domains: Mapping[str, Any] = facts.get("coverage", {}).get("domains", {})
    return template.render(
        repo_id=repo_id,
        revision=revision,
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
        missed_of=MISSED_OF,
        datasets=facts.get("datasets"),
        domains=[cell(name) for name in domains if name != "default"],
        weak=[name for name, known in domains.items() if known.get("weak")],
        coverage_rows=coverage_rows(facts.get("coverage", {})),
        machine=machine_words(facts.get("decoding", {}).get("machine", {})),
        command=measure_command(repo_id, facts, revision),
        training=facts.get("training"),
        settings=setting_rows(facts.get("training", {})),
        curve=curve_words(facts.get("training", {})),
        versions=", ".join(f"{n} {v}" for n, v in sorted(facts.get("versions", {}).items())),
    )
