"""One error type of publishing: what happened, what was done, and what to do."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from vtrim_hf.hub_errors import PublishError, explained, is_passing, status_of

ENDPOINT = "http://hub.test"


def answered(status: int, text: str = "No.\n\nMore.") -> HfHubHTTPError:
    try:
        client: Any = importlib.import_module("httpx2")
    except ImportError:
        client = importlib.import_module("httpx")
    request = client.Request("GET", ENDPOINT)
    return HfHubHTTPError(text, response=client.Response(status, request=request))


def unreachable() -> Exception:
    try:
        client: Any = importlib.import_module("httpx2")
    except ImportError:
        client = importlib.import_module("httpx")
    error: Exception = client.ConnectError("nobody there")
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (answered(401), r"the token is not valid there \(401, No\.\)"),
        (answered(403), "write access"),
        (answered(404), "no such repository"),
        (answered(409), "exist_ok=True"),
        (answered(412), "somebody else published meanwhile"),
        (answered(413), "max_shard_size"),
        (answered(418), "answers 418: No"),
        (answered(429), "wait a while"),
        (answered(502), "http://hub.test answers 502"),
        (unreachable(), "cannot be reached .*check the network"),
        (OfflineModeIsEnabled("off"), "HF_HUB_OFFLINE is set"),
        (ValueError("Invalid metadata in README.md.\n- license"), "the Hub refuses the card"),
        (RuntimeError("the store is full"), "the store is full .*run it again"),
        (ConnectionError("404, http://x/xet-write-token/main"), "HF_HUB_DISABLE_XET=1"),
        (OSError("disk"), "disk"),
    ],
)
def test_every_failure_says_what_to_do(error: Exception, said: str) -> None:
    with pytest.raises(PublishError, match=said) as caught, explained("sending", ENDPOINT):
        raise error
    assert caught.value.__cause__ is error
    assert str(caught.value).startswith("sending failed: ")
    assert caught.value.remedy


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("an argument"), TypeError("x")])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, explained("sending", ENDPOINT):
        raise error
    assert caught.value is error


def test_the_number_of_a_request_is_no_reason() -> None:
    text = "(Request ID: local-18af)\n\nBad request for tag endpoint:\nthe name is taken"
    with pytest.raises(PublishError, match=r"answers 400: the name is taken \("):  # noqa: SIM117
        with explained("tagging", ENDPOINT):
            raise answered(400, text)
    error = answered(400, "(Request ID: local-18af)")
    error.server_message = "no such thing\nmore"
    with pytest.raises(PublishError, match=r"answers 400: no such thing \("):  # noqa: SIM117
        with explained("tagging", ENDPOINT):
            raise error


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"RateLimit": '"api";r=0;t=55', "Retry-After": "7"}, "wait 55 seconds, then run it"),
        ({"Retry-After": "7"}, "wait 7 seconds, then run it"),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, "wait a while, then run it"),
        ({}, "wait a while, then run it"),
    ],
)
def test_how_long_to_wait_is_told(headers: dict[str, str], said: str) -> None:
    error = answered(429)
    error.response.headers.update(headers)
    with pytest.raises(PublishError, match=said), explained("sending", ENDPOINT):
        raise error


@pytest.mark.parametrize(
    ("below", "said"),
    [
        (answered(400, "bad digest"), "sending failed: Error while uploading: .*bad digest"),
        (answered(429), "too many requests .*wait"),
        (unreachable(), "Error while uploading: http://hub.test cannot be reached"),
        (KeyError("x"), "sending failed: Error while uploading .*run it again"),
        (None, "sending failed: Error while uploading .*run it again"),
    ],
)
def test_what_lies_below_an_upload_is_told(below: Exception | None, said: str) -> None:
    """The client says of a file of LFS only that it failed."""
    with pytest.raises(PublishError, match=said), explained("sending", ENDPOINT):
        raise RuntimeError("Error while uploading.") from below


def test_a_way_out_of_its_own() -> None:
    with pytest.raises(PublishError, match=r"tagging failed: .* \(it was made\): only tag it"):  # noqa: SIM117
        with explained("tagging", ENDPOINT, ["it was made"], remedy="only tag it"):
            raise answered(502)


def test_the_first_explanation_stays() -> None:
    first = PublishError("a", "b")
    with pytest.raises(PublishError) as caught, explained("sending", ENDPOINT, ["x"]):
        raise first
    assert caught.value is first


def test_the_text_tells_what_was_done() -> None:
    assert str(PublishError("it broke.", "mend it")) == (
        "it broke (nothing was changed on the Hub): mend it"
    )
    error = PublishError("it broke", "mend it", ["a was made", "b was made"])
    assert str(error) == "it broke (a was made; b was made): mend it"
    assert isinstance(error, OSError)
    assert error.done == ("a was made", "b was made")


def test_which_failures_may_pass() -> None:
    assert is_passing(answered(503))
    assert is_passing(unreachable())
    assert not is_passing(answered(412))
    assert not is_passing(ValueError())
    assert status_of(ValueError()) is None
