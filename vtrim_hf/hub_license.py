"""The licence that somebody names for a draft: one that the Hub knows, or one with its own name.

The Hub refuses an identifier that it does not know, but only when a card is committed; so the list
that it documents lies in `hub_cards/licenses.txt` and is asked before anything else is done.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from .coverage_schema import card_file
from .model_card import LICENSE_FIELDS

LICENSES = "licenses.txt"

_NAME = re.compile(r"[a-z0-9.-]{1,100}")
_OWN = (
    "license='other' with license_name= and license_link= is for all that the Hub has no name of"
)


@lru_cache(maxsize=1)
def known_licenses() -> frozenset[str]:
    """Return the identifiers that the Hub takes in a card."""
    lines = card_file(LICENSES).read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def check_license(said: Any) -> None:
    """Raise unless a licence can stand in a card.

    Args:
        said: an identifier; or a mapping with `license`, and `license_name` and `license_link` for
            a licence of one's own; None or an empty text passes,
            for then a card is asked.

    Raises:
        TypeError: if it is neither.
        ValueError: naming the rule, the value, and the identifiers that look like it.

    Example:
        >>> check_license({"license": "other", "license_name": "my-licence"})
        >>> check_license("apache2")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: the Hub knows no licence 'apache2': did you mean 'apache-2.0'? ...
    """
    if said is None or said == "":
        return
    if not isinstance(said, str | Mapping):
        raise TypeError(
            f"license must be an identifier of the Hub, or a mapping with license, license_name "
            f"and license_link, got {said!r:.80}"
        )
    fields = {"license": said} if isinstance(said, str) else dict(said)
    unknown = sorted(str(name) for name in fields if name not in LICENSE_FIELDS)
    if unknown or not all(isinstance(text, str) and text for text in fields.values()):
        raise ValueError(
            f"a licence has the fields {', '.join(LICENSE_FIELDS)}, all of them texts, got "
            f"{fields!r:.200}"
        )
    name, own = fields.get("license", ""), fields.get("license_name")
    if name not in known_licenses():
        near = get_close_matches(name.lower().replace(" ", "-"), sorted(known_licenses()), 3, 0.5)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ValueError(f"the Hub knows no licence {name!r:.80}: {hint}{_OWN}")
    if name == "other" and own is None:
        raise ValueError("license='other' needs license_name=, the licence's own name")
    if name != "other" and own is not None:
        raise ValueError(
            f"license_name={own!r:.80} goes with license='other' only, got {name!r}: leave it out"
        )
    if own is not None and not _NAME.fullmatch(own):
        raise ValueError(
            f"license_name= takes small letters, digits, '.' and '-', got {own!r:.80}: write e.g. "
            "'my-licence-1.0'"
        )
