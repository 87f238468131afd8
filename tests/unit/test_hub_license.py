"""The licence of a draft: one of the Hub's identifiers, or a named one of one's own."""

from __future__ import annotations

from typing import Any

import pytest

from vtrim_hf.hub_license import check_license, known_licenses
from vtrim_hf.local_hub import card_checks


@pytest.mark.parametrize(
    "said",
    [
        None,
        "",
        "mit",
        "openrail++",
        "llama3.3",
        {"license": "apache-2.0"},
        {"license": "other", "license_name": "my-licence"},
        {"license": "other", "license_name": "x-1.0", "license_link": "LICENSE"},
    ],
)
def test_licences_that_pass(said: Any) -> None:
    check_license(said)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("apache2", "did you mean 'apache-2.0'"),
        ("Apache 2.0", "did you mean 'apache-2.0'"),
        ("MIT", "did you mean 'mit'"),
        ("gpl3", "'gpl-3.0'"),
        ("zzzz", r"'zzzz': license='other' with license_name="),
        ({"license": ""}, "all of them texts"),
        ("other", "needs license_name="),
        ({"license_name": "mine"}, "no licence ''"),
        ({"license": "mit", "license_name": "mine"}, "goes with license='other' only"),
        ({"license": "other", "license_name": "My Licence"}, "small letters"),
        ({"license": "other", "license_name": None}, "all of them texts"),
        ({"license": "mit", "url": "x"}, "has the fields"),
    ],
)
def test_licences_that_do_not(said: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_license(said)


@pytest.mark.parametrize("said", [3, ["mit"], True])
def test_other_things_are_no_licence(said: Any) -> None:
    with pytest.raises(TypeError, match="license must be an identifier"):
        check_license(said)


def test_the_local_hub_knows_the_same_ones() -> None:
    assert set(card_checks.known_licenses()) == known_licenses()
    assert {"apache-2.0", "gemma", "other", "unknown"} <= known_licenses()
    assert len(known_licenses()) > 70
