"""Endpoints for large files: LFS in one piece or in parts, and the tokens of the Xet store."""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from typing import Any

from .calls import Answer, Call, Route
from .refusals import RefusedError
from .service import Service

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LFS_JSON = {"Content-Type": "application/vnd.git-lfs+json"}
_TOKEN_LIFETIME = 3600


def batch(service: Service, call: Call) -> Answer:
    """Say where each object goes; one that is there already goes nowhere."""
    asked = call.json()
    if asked.get("operation") != "upload":
        raise RefusedError(
            400, "files are downloaded from their resolve address, LFS is for uploads"
        )
    service.readable(call)
    service.check_may_propose(call.account)
    parted = service.multipart and "multipart" in asked.get("transfers", ())
    rows = []
    for item in asked.get("objects", []):
        oid, size = str(item.get("oid")), int(item.get("size") or 0)
        if not _SHA256.fullmatch(oid):
            raise RefusedError(400, f"an object is named by its SHA-256, got {oid!r}")
        row: dict[str, Any] = {"oid": oid, "size": size}
        if not service.objects.has(oid):
            row |= {
                "authenticated": True,
                "actions": _actions(service, call.base, oid, size, parted),
            }
        rows.append(row)
    return Answer(
        {"transfer": "multipart" if parted else "basic", "objects": rows}, headers=_LFS_JSON
    )


def put_object(service: Service, call: Call) -> Answer:
    oid, size, _ = _signed(service, call)
    try:
        service.objects.put(_exactly(call.body.pieces(), size), sha256=oid)
    except ValueError as error:
        raise RefusedError(400, str(error)) from error
    return Answer(headers={"ETag": f'"{oid}"'})


def put_part(service: Service, call: Call) -> Answer:
    _, size, upload = _signed(service, call)
    number = int(call.arguments["number"])
    expected = min(service.part_size, size - (number - 1) * service.part_size)
    etag = service.objects.put_part(upload, number, _exactly(call.body.pieces(), expected))
    return Answer(headers={"ETag": f'"{etag}"'})


def complete(service: Service, call: Call) -> Answer:
    oid, _, upload = _signed(service, call)
    numbers = [int(part["partNumber"]) for part in call.json().get("parts", [])]
    try:
        service.objects.join_parts(upload, numbers, sha256=oid)
    except ValueError as error:
        raise RefusedError(400, str(error)) from error
    return Answer()


def verify(service: Service, call: Call) -> Answer:
    oid, size, _ = _signed(service, call)
    entry = service.large_entry(oid)
    if entry is None or entry.size != size:
        raise RefusedError(404, f"{oid} was not uploaded, or has another size than {size}")
    return Answer()


def xet_token(service: Service, call: Call) -> Answer:
    """Answer with the address of the Xet store."""
    if call.arguments["access"] == "read":
        service.downloadable(call)
    else:
        service.readable(call)
        service.check_may_propose(call.account)
    if service.xet is None:
        raise RefusedError(404, "Xet is not enabled on this hub")
    ends = int(time.time()) + _TOKEN_LIFETIME
    return Answer(
        {"accessToken": "local", "exp": ends, "casUrl": service.xet.url},
        headers={
            "X-Xet-Cas-Url": service.xet.url,
            "X-Xet-Access-Token": "local",
            "X-Xet-Token-Expiration": str(ends),
        },
    )


def _actions(service: Service, base: str, oid: str, size: int, parted: bool) -> dict[str, Any]:
    upload = secrets.token_hex(8)
    place = f"{base}/lfs-uploads/{oid}/{size}/{upload}/{_signature(service, oid, size, upload)}"
    actions: dict[str, Any] = {"upload": {"href": place}, "verify": {"href": f"{place}/verify"}}
    if parted:
        count = max(1, -(-size // service.part_size))
        header = {f"{n:05d}": f"{place}/parts/{n}" for n in range(1, count + 1)}
        header["chunk_size"] = str(service.part_size)
        actions["upload"] = {"href": f"{place}/complete", "header": header}
    return actions


def _signature(service: Service, oid: str, size: int, upload: str) -> str:
    return hmac.new(service.secret, f"{oid} {size} {upload}".encode(), "sha256").hexdigest()


def _signed(service: Service, call: Call) -> tuple[str, int, str]:
    """Return object, size and upload that an address is for; only `batch` can make such one."""
    given = call.arguments
    oid, size, upload = given["oid"], given["size"], given["upload"]
    good = size.isdecimal() and hmac.compare_digest(
        given["signature"].encode(), _signature(service, oid, int(size), upload).encode()
    )
    if not good:
        raise RefusedError(
            403, "this upload address is not valid, or the hub was started anew since"
        )
    return oid, int(size), upload


def _exactly(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Pass `pieces` on as long as they fit, so that no upload fills the disk beyond its word."""
    left = size
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise RefusedError(413, f"more than the announced {size} bytes came in")
        yield piece
    if left:
        raise RefusedError(400, f"{left} of the announced {size} bytes are missing")


_UPLOAD = "/lfs-uploads/{oid}/{size}/{upload}/{signature}"

ROUTES = (
    Route("POST", r"/{plural}?{repo}\.git/info/lfs/objects/batch", batch),
    Route("PUT", _UPLOAD, put_object),
    Route("PUT", _UPLOAD + "/parts/{number}", put_part),
    Route("POST", _UPLOAD + "/complete", complete),
    Route("POST", _UPLOAD + "/verify", verify),
    Route("GET", "/api/{kind}/{repo}/xet-{access}-token/{rev}", xet_token),
)
