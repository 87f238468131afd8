"""The README's tables of figures, written from the JSON of the measurements.

    python examples/readme_tables.py            # renew them
    python examples/readme_tables.py --check    # say which are not what was measured; exit code 1

Each stands in README.md right below a line `<!-- table: NAME -->`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

import readme_draft_tables as drafts
import readme_vocabulary_tables as vocabularies
from readme_parts import ROOT

_PLACE = r"(<!-- table: {name} -->\n)((?:\|.*\n)*)"


TABLES: dict[str, Callable[[], str]] = {
    "wikisql": lambda: drafts.one_draft("wikisql"),
    "sql": lambda: drafts.one_draft("sql"),
    "demo": drafts.demo,
    "trained_drafts": drafts.trained_drafts,
    "draft_length": drafts.draft_length,
    "none_class": drafts.none_class,
    "vocabulary": vocabularies.vocabulary,
    "vocabulary_rivals": vocabularies.vocabulary_rivals,
    "stability": vocabularies.stability,
    "decoding": drafts.decoding,
    "objective": drafts.objective,
    "vllm": drafts.vllm,
    "quality": drafts.quality,
}


def renewed(text: str) -> str:
    """Return a README with all its tables as they were measured.

    Raises:
        ValueError: if a table has no place in it, or several.
    """
    for name, make in TABLES.items():
        made = make()
        text, number = re.subn(
            _PLACE.format(name=name), lambda found, made=made: found[1] + made, text
        )
        if number != 1:
            raise ValueError(f"README.md must have one line <!-- table: {name} -->, has {number}")
    return text


def main() -> None:
    """Renew README.md, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether all is as measured")
    only_check = parser.parse_args().check
    place = ROOT / "README.md"
    text = place.read_text(encoding="utf-8")
    made = renewed(text)
    if made == text:
        print("README.md shows what was measured")
    elif only_check:
        raise SystemExit("README.md differs from examples/evidence: run this without --check")
    else:
        place.write_text(made, encoding="utf-8")
        print("README.md was renewed")


if __name__ == "__main__":
    main()
