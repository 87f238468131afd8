"""What callers pass to the functions of the Hub, refused before any request is sent.

Each error says the rule, the value it got and the way out; of a token only the type, never itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .hub_account import MAIN, check_name, check_reference
from .hub_evaluation import check_eval_results
from .hub_license import check_license
from .plain_facts import hub_id


def check_access(token: Any, endpoint: Any) -> None:
    """Raise unless a token and an endpoint can be asked with.

    Raises:
        TypeError: if the token is neither text, nor True, False or None; or the endpoint no text.
        ValueError: if the token is empty or holds blanks, or the endpoint is no URL.
    """
    if token is not None and not isinstance(token, bool | str):
        raise TypeError(
            "token must be a text, True or None for the one that is logged in, or False for none, "
            f"got a {type(token).__name__}: pass one of your account's settings, 'hf_...'"
        )
    if isinstance(token, str) and not re.fullmatch(r"[!-~]+", token):
        raise ValueError(
            "token must be a text of letters, digits and signs, got one that is empty or holds "
            "blanks or line breaks: strip it, or leave token out for the one that is logged in"
        )
    if endpoint is None:
        return
    if not isinstance(endpoint, str):
        raise TypeError(
            f"endpoint must be the URL of a Hub, got {endpoint!r:.80}: leave it out for that of "
            "HF_ENDPOINT"
        )
    if not re.fullmatch(r"https?://\S+", endpoint):
        raise ValueError(
            f"endpoint must begin with http:// or https://, got {endpoint!r:.80}: leave it out "
            "for that of HF_ENDPOINT"
        )


def check_text(name: str, value: Any, way: str) -> None:
    """Raise unless a value is a text that is not blank; None passes.

    Args:
        name: of the argument.
        value: its value.
        way: what to do instead, for the error.

    Raises:
        ValueError: naming the rule.
    """
    if value is not None and not (isinstance(value, str) and value.strip()):
        raise ValueError(f"{name} must be a text, got {value!r:.80}: {way}")


def check_flag(name: str, value: Any, *, or_none: bool = False) -> None:
    """Raise unless a value is true or false.

    Raises:
        TypeError: naming the rule.
    """
    if not (isinstance(value, bool) or (or_none and value is None)):
        also = ", or None" if or_none else ""
        raise TypeError(
            f"{name} must be True or False{also}, got {value!r:.80}: leave it out for its default"
        )


def check_number(name: str, value: Any) -> None:
    """Raise unless a value is a whole number from 1; None passes.

    Raises:
        ValueError: naming the rule.
    """
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(
            f"{name} must be a whole number from 1, got {value!r:.80}, or None for all"
        )


def texts(name: str, value: Any) -> list[str]:
    """Return one text or several as a list; None is none.

    Raises:
        TypeError: if it is neither.
    """
    if value is None:
        return []
    given = [value] if isinstance(value, str) else value
    held = list(given) if isinstance(given, Iterable) and not isinstance(given, Mapping) else None
    if held is None or not all(isinstance(one, str) and one.strip() for one in held):
        raise TypeError(
            f"{name} must be a text or a list of texts, got {value!r:.80}: leave it out for none"
        )
    return held


def check_place(name: str, value: Any, way: str) -> None:
    """Raise unless a value is a path, or a text that is one.

    Raises:
        TypeError: naming the rule.
    """
    if not isinstance(value, str | Path) or not str(value):
        raise TypeError(f"{name} must be a path, got {value!r:.80}: {way}")


def check_kind(name: str, value: Any, has: tuple[str, ...], way: str) -> None:
    """Raise unless a value has what all of its kind have; None passes.

    Args:
        name: of the argument.
        value: its value.
        has: names of attributes.
        way: how to get one, for the error.

    Raises:
        TypeError: naming the rule.
    """
    if value is not None and not all(hasattr(value, one) for one in has):
        raise TypeError(f"{name} must be what {way} gives, got {value!r:.80}: make or load one so")


def check_hub_id(name: str, value: Any, whose: str) -> None:
    """Raise unless a value is the id of a repository on the Hub; None passes.

    Args:
        name: of the argument.
        value: its value.
        whose: what it is the id of, for the error.

    Raises:
        ValueError: naming the rule.
    """
    check_text(name, value, "leave it out if there is none")
    if value is not None and hub_id(value, whose) is None:
        raise ValueError(
            f"{name} must be the {whose}'s id on the Hub, NAMESPACE/NAME, got {value!r:.120}, "
            "which is a name or a place of this machine: write the id whole, or leave it out if "
            "there is none"
        )


def check_publish_arguments(**given: Any) -> None:
    """Raise for an argument of `publish` that means nothing.

    Raises:
        TypeError: or ValueError, naming the argument and the rule.
    """
    check_name(given["repo_id"])
    check_access(given["token"], given["endpoint"])
    for name in ("create_pr", "exist_ok", "dry_run", "progress"):
        check_flag(name, given[name])
    check_flag("private", given["private"], or_none=True)
    check_hub_id("target_id", given["target_id"], "target")
    check_hub_id("draft_id", given["draft_id"], "source")
    for name in ("commit_message", "commit_description"):
        check_text(name, given[name], "leave it out if there is none")
    for name, has, way in (
        ("search", ("vocabulary", "settings"), "search_vocabulary or SearchResult.load"),
        ("report", ("draft", "plain", "rows"), "measure_decoding or DecodeReport.load"),
        ("counts", ("fingerprint", "array"), "TokenCounts.from_dataset or TokenCounts.load"),
    ):
        check_kind(name, given[name], has, way)
    check_license(given["license"])
    check_eval_results(given["eval_results"])
    revision, tag = given["revision"], given["tag"]
    check_reference(revision, "revision")
    check_reference(tag, "tag")
    if given["create_pr"] and (revision not in (None, MAIN) or tag is not None):
        raise ValueError(
            "a pull request is opened against main and has no tag before it is merged: leave out "
            "revision= and tag=, or create_pr=True"
        )
    if tag is not None and tag == (revision or MAIN):
        raise ValueError(
            f"a tag called as the branch, {tag!r}, would be found by nobody: take another name"
        )
    check_shard_size(given["max_shard_size"])


def check_shard_size(size: Any) -> None:
    """Raise unless a value tells how large a file of weights may be; None passes.

    Raises:
        TypeError: or ValueError, naming the rule.
    """
    rule = (
        f"max_shard_size must be a number of bytes or a text such as '2GB', got {size!r:.80}: "
        "leave it out for one file"
    )
    if size is not None and type(size) not in (int, str):
        raise TypeError(rule)
    wrong = not re.fullmatch(r"[1-9][0-9]*\s*[KMGTP]B", size, re.I) if type(size) is str else False
    if wrong or (type(size) is int and size < 1):
        raise ValueError(rule)
