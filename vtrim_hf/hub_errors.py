"""What went wrong while publishing: one error type that says what happened and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

NOTHING = "nothing was changed on the Hub"
_ONLY_A_NUMBER = re.compile(r"\(Request ID: [^)]*\)|Bad request(?: for .* endpoint)?:")
AGAIN = "run it again: only what is missing is uploaded"


class PublishError(OSError):
    """A draft could not be published.

    The text says what happened, what was already done, and the way out; the error that a library
    or the Hub raised first is its `__cause__`.

    Attributes:
        happened: what went wrong.
        done: what was already done on the Hub, in order; empty if nothing.
        remedy: what to do.
    """

    def __init__(self, happened: str, remedy: str, done: Sequence[str] = ()) -> None:
        self.happened = happened
        self.remedy = remedy
        self.done = tuple(done)
        said = "; ".join(self.done) or NOTHING
        super().__init__(f"{happened.rstrip('. ')} ({said}): {remedy}")


@contextmanager
def explained(
    doing: str, endpoint: str, done: Sequence[str] = (), *, remedy: str | None = None
) -> Iterator[None]:
    """Turn what the Hub's client raises into a `PublishError`.

    Args:
        doing: what is being done, for the text.
        endpoint: of the Hub.
        done: what was done before; read when something goes wrong.
        remedy: what to do, where the usual way out is none.
    """
    try:
        yield
    except PublishError:
        raise
    except Exception as error:
        told = _explain(error, endpoint)
        if told is None:
            raise
        raise PublishError(f"{doing} failed: {told[0]}", remedy or told[1], done) from error


@contextmanager
def our_part(what: str) -> Iterator[None]:
    """Say of a mistake on this side of the network that nothing was changed."""
    try:
        yield
    except ValueError as error:
        raise PublishError(f"{what}: {error}", f"then {AGAIN}") from error


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error is about, None if it is about none."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def is_passing(error: BaseException) -> bool:
    """Whether trying again may help: the server failed, or the connection did."""
    status = status_of(error)
    return status >= 500 if status is not None else _is_of_transport(error)


def _is_of_transport(error: BaseException) -> bool:
    # httpx in huggingface_hub 1, httpx2 in 2: neither is imported for its names alone.
    return any(
        kind.__module__.partition(".")[0] in ("httpx", "httpx2") for kind in type(error).__mro__
    )


_BY_STATUS = {
    401: ("the token is not valid there", "log in with `hf auth login`, or set HF_TOKEN"),
    403: (
        "the token may not do that",
        "use a token with write access to this namespace and repository",
    ),
    404: ("there is no such repository for this token", "check the name, and who may see it"),
    409: ("it exists already", "pass exist_ok=True to add a commit to it, or take another name"),
    412: (
        "somebody else published meanwhile",
        "look at what they did, then run it again with exist_ok=True to put yours on top",
    ),
    413: ("a file is too large for the Hub", "publish with a smaller max_shard_size="),
    429: ("too many requests", "wait a while, then " + AGAIN),
}


# What huggingface_hub raises around an error of the network: it says only that a file failed.
_ONLY_THAT = ("LocalEntryNotFoundError", "RuntimeError")
_RESET = re.compile(r";\s*t=([0-9]{1,9})|^\s*([0-9]{1,9})\s*$")


def _explain(error: Exception, endpoint: str) -> tuple[str, str] | None:
    """Return what happened and what to do, None for an error that is not the Hub's."""
    below = error.__cause__
    if isinstance(below, Exception) and type(error).__name__ in _ONLY_THAT:
        deeper = _explain(below, endpoint)
        if deeper is not None:
            return f"{_first_line(error).rstrip('.')}: {deeper[0]}", deeper[1]
    status, said = status_of(error), _first_line(error)
    if status in _BY_STATUS:
        happened, remedy = _BY_STATUS[status]
        wait = _seconds_to_wait(error) if status == 429 else None
        if wait:
            remedy = remedy.replace("a while", f"{wait} seconds")
        return f"{happened} ({status}, {said})", remedy
    if status is not None and status >= 500:
        return f"{endpoint} answers {status}", AGAIN
    if status is not None:
        return f"{endpoint} answers {status}: {said}", "see what it says, then run it again"
    if type(error).__name__ == "OfflineModeIsEnabled":
        return "HF_HUB_OFFLINE is set", "unset it to publish"
    if _is_of_transport(error):
        return (
            f"{endpoint} cannot be reached ({said})",
            "check the network and HF_ENDPOINT, then run it again",
        )
    if isinstance(error, ValueError) and "README.md" in str(error):
        told = " ".join(str(error).split())
        return (
            f"the Hub refuses the card: {told}",
            "mend what it names: the licence, the tags or the languages",
        )
    if "xet-write-token" in str(error):
        return (
            f"{endpoint} has no Xet storage, or does not answer for it ({said})",
            "run it again; if it stays, set HF_HUB_DISABLE_XET=1 before Python starts",
        )
    if isinstance(error, OSError | RuntimeError):  # hf_xet raises the latter
        return said, AGAIN
    return None


def _seconds_to_wait(error: Exception) -> str | None:
    """Return how long a Hub that was asked too often wants to be left alone."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    for name in ("RateLimit", "Retry-After"):
        if found := _RESET.search(str(headers.get(name) or "")):
            return found[1] or found[2]
    return None


def _first_line(error: Exception) -> str:
    """Return what the server said, or else the first line that tells more than a number."""
    said = getattr(error, "server_message", None) or ""
    lines = [line.strip() for line in [*said.splitlines(), *str(error).splitlines()]]
    telling = [line for line in lines if line and not _ONLY_A_NUMBER.fullmatch(line)]
    return telling[0][:300] if telling else type(error).__name__
