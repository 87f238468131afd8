"""The cards of all drafts that were trained here, as `vtrim publish` would write them.

    python examples/render_hub_cards.py            # renew the facts and all cards
    python examples/render_hub_cards.py --check    # say what is not as the evidence has it

hub_cards/drafts/NAME.yaml holds what a publisher has to say (`publisher`: yours to edit, it
stays), the facts of `vtrim/coverage.json`, and what the benchmark measured besides. NAME.md is
rendered from that file alone, with the package's own template; README.md lists all. One more:

    python examples/render_hub_cards.py --add ner --draft drafts/ner --bench bench/ner \\
        --search wide/search.json --counts wide.safetensors

first puts the evidence of a trained draft, and of what `bench_trained_draft.py` measured, into
examples/evidence/trained_drafts/NAME; no weights. What only publishing knows is the namespace, and
what somebody wrote into a card that is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hub_card_facts import EVIDENCE, Evidence, collect, measured_beside, names

from vtrim_hf.card_words import coverage_rows
from vtrim_hf.embedded_models import EMBEDDED
from vtrim_hf.model_card import render_card
from vtrim_hf.named_models import NamedModel
from vtrim_hf.vocabulary import write_atomically

ROOT = Path(__file__).resolve().parents[1]
CARDS = ROOT / "hub_cards" / "drafts"
INDEX = "README.md"
NAMESPACE = "NAMESPACE"
HEAD = (
    "# Written by examples/render_hub_cards.py. `publisher` is yours to edit; all else was\n"
    "# recorded or measured, see examples/evidence/trained_drafts.\n"
)


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as one."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text.strip() else None
    )


_Dumper.add_representer(str, _text)


def to_yaml(content: Mapping[str, Any]) -> str:
    """Return YAML that is read back as it was.

    Raises:
        ValueError: if it would not be.
    """
    text: str = HEAD + yaml.dump(
        dict(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=99
    )
    if yaml.safe_load(text) != content:
        raise ValueError("these facts do not come back from YAML as they are")
    return text


def publisher_of(facts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what a publisher would say of a draft, where nobody said anything else.

    Args:
        facts: of the draft.
        name: of its domain.
    """
    target = facts["target"].get("id", "")
    embedded = {one.hub_id: (short, one.license) for short, one in EMBEDDED.items()}
    short, licence = embedded.get(target, (target.rpartition("/")[2].lower(), None))
    return {
        "repo_id": f"{NAMESPACE}/{f'{short}-{name}'.strip('-')}-draft",
        # An EAGLE-3 draft's weights are under its target's licence.
        "license": licence,
        "language": ["en"],
        "tags": [],
        "chat": True,
        "tokenizer": True,
        "text": "",
    }


def content_of(evidence: Evidence, publisher: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the YAML of a draft holds."""
    return {
        "publisher": dict(publisher),
        "facts": evidence.facts,
        "measured": measured_beside(evidence.figures),
    }


def card_of(content: Mapping[str, Any]) -> str:
    """Return the card of a draft.

    Raises:
        ValueError: if the publisher names no licence.
    """
    said = content["publisher"]
    card = render_card(
        said["repo_id"],
        content["facts"],
        said["license"] or "",
        language=said["language"] or None,
        tags=said["tags"],
        chat=said["chat"],
        tokenizer=said["tokenizer"],
    )
    return f"{card.rstrip()}\n\n{said['text'].strip()}\n" if said["text"].strip() else card


def spread(found: Mapping[str, Any]) -> str:
    """Return a median with its 95 % interval."""
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def index_of(contents: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of all drafts."""
    rows = []
    for name, content in contents.items():
        facts, measured = content["facts"], content["measured"]
        training, decoding = facts["training"], facts["decoding"]
        held = [
            f"{row['heldout']['share']:.2%} of {row['name']}"
            for row in coverage_rows(facts.get("coverage", {}))
            if "heldout" in row
        ]
        same, number = measured["identical_in_float32"]
        target = facts["target"].get("id", "")
        rows.append(
            [
                f"[{name}]({name}.md) ([facts]({name}.yaml))",
                target.rpartition("/")[2],
                f"{facts['draft']['k']:,} ({facts['draft']['share_of_vocabulary']:.1%})",
                ", ".join(held),
                f"{training['data']['train']['conversations']:,}, {training['minutes']:.0f} min",
                str(decoding["num_assistant_tokens"]),
                f"{decoding['acceptance_length']:.2f}",
                spread(decoding["speedup"]),
                spread(measured["trimmed_over"]["full"]),
                f"{same} of {number}",
                f"[measurement](../../examples/evidence/trained_drafts/{name}/report.md)",
            ]
        )
    heads = [
        "domain",
        "target",
        "kept ids",
        "held-out coverage",
        "trained on",
        "drafted a round",
        "acceptance length",
    ]
    heads += ["over the target alone", "over `extend`", "the target's own texts (float32)", ""]
    table = [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(
        [
            "# Cards of the drafts that were trained here",
            "",
            "What `vtrim publish` would write for each, with a place for the namespace. "
            "`python examples/render_hub_cards.py` writes the cards and this table from the "
            "evidence of the drafts; *How it was made* is a publisher's own text. `own` is what "
            "the target itself answered to the prompts of the domain.",
            "",
            *table,
            "",
        ]
    )


def contents_in(cards: Path = CARDS) -> dict[str, Any]:
    """Return what the YAML files hold, by domain."""
    return {
        place.stem: yaml.safe_load(place.read_text(encoding="utf-8"))
        for place in sorted(cards.glob("*.yaml"))
    }


def rendered(contents: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the cards and the table of what YAML files hold, by the names of their files."""
    cards = {f"{name}.md": card_of(content) for name, content in contents.items()}
    return {**cards, INDEX: index_of(contents)}


def written(cards: Path = CARDS, evidence: Path = EVIDENCE) -> dict[str, str]:
    """Return the text of every file of the cards' folder, as the evidence has it.

    Raises:
        FileNotFoundError: if a draft's facts are missing.
        ValueError: if its evidence does not fit together, or nobody named its licence.
    """
    held, contents = contents_in(cards), {}
    known = names(evidence)
    if not known:
        raise FileNotFoundError(
            f"{evidence} must hold a folder with figures.json for each draft, and holds none: "
            "name the folder of the evidence with --evidence, or add a draft with --add"
        )
    for name in known:
        found = Evidence.of(name, evidence=evidence)
        publisher = publisher_of(found.facts, name)
        contents[name] = content_of(
            found, {**publisher, **held.get(name, {}).get("publisher", {})}
        )
    files = {f"{name}.yaml": to_yaml(content) for name, content in contents.items()}
    return {**files, **rendered(contents)}


def differing(files: Mapping[str, str], cards: Path = CARDS) -> list[str]:
    """Return the names of files that are not as they should be, or should not be there.

    Files of others are left alone: ours are the table, and the two of a draft whose YAML begins as
    all of them do.
    """
    ours = {
        place.stem
        for place in cards.glob("*.yaml")
        if place.read_text(encoding="utf-8", errors="replace").startswith(HEAD)
    }
    drafts = {f"{name}{end}" for name in ours for end in (".md", ".yaml")}
    there = {place.name for place in cards.glob("*") if place.name in drafts | files.keys()}
    return sorted(
        name
        for name in there | files.keys()
        if name not in there
        or files.get(name) != (cards / name).read_text(encoding="utf-8", errors="replace")
    )


def add(args: argparse.Namespace) -> None:
    """Put together a draft's evidence, and what its publisher says."""
    target = NamedModel(args.target)
    found = collect(
        args.add,
        args.draft,
        args.bench,
        search=args.search,
        counts=args.counts,
        target_id=args.target_id or target.hub_id,
        datasets=args.dataset,
        tokenizer=target.tokenizer,
        evidence=args.evidence,
    )
    held = contents_in(args.cards).get(args.add, {}).get("publisher", {})
    one = Evidence.of(args.add, evidence=args.evidence)
    given = {"repo_id": args.repo_id, "license": args.license, "language": args.language}
    publisher = {
        **publisher_of(one.facts, args.add),
        **{name: value for name, value in found.items() if name != "text" or value},
        **held,
        **{name: value for name, value in given.items() if value},
    }
    args.cards.mkdir(parents=True, exist_ok=True)
    text = to_yaml(content_of(one, publisher))
    write_atomically(args.cards / f"{args.add}.yaml", text.encode())


def main(argv: Sequence[str] | None = None) -> None:
    """Renew the cards, check them, or add a draft's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say what is not as measured")
    parser.add_argument("--add", metavar="NAME", help="domain of a draft that was trained")
    parser.add_argument("--draft", type=Path, help="its folder")
    parser.add_argument("--bench", type=Path, help="what bench_trained_draft.py wrote of it")
    parser.add_argument("--search", type=Path, help="search.json of its vocabulary")
    parser.add_argument("--counts", type=Path, help="the counts that were searched")
    parser.add_argument("--target", default="smollm2", help="Hub id, folder or smollm2")
    parser.add_argument("--target-id", help="Hub id of a target that lies in a folder")
    parser.add_argument("--dataset", action="append", help="Hub id of data that was counted")
    parser.add_argument("--repo-id", help="where it would be published")
    parser.add_argument("--license", help="of the weights, as the Hub names it")
    parser.add_argument("--language", action="append", help="code of a language")
    parser.add_argument("--cards", type=Path, default=CARDS, help="folder of the cards")
    parser.add_argument("--evidence", type=Path, default=EVIDENCE, help="folder of the evidence")
    args = parser.parse_args(argv)
    if (args.add is None) != (args.draft is None) or (args.add is None) != (args.bench is None):
        parser.error("--add, --draft and --bench go together")
    try:
        if args.add is not None:
            add(args)
        files = written(args.cards, args.evidence)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from error
    wrong = differing(files, args.cards)
    if not wrong:
        print(f"{args.cards} is as the evidence has it")
    elif args.check:
        raise SystemExit(f"not as the evidence has it: {', '.join(wrong)}; run without --check")
    else:
        args.cards.mkdir(parents=True, exist_ok=True)
        for name in wrong:
            if name in files:
                write_atomically(args.cards / name, files[name].encode())
            else:
                (args.cards / name).unlink()
        print(f"renewed: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
