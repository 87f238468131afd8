"""Ordered faults and the request log of a local hub, without a server."""

from __future__ import annotations

import pytest

from vtrim_hf.local_hub import FaultTable, LoggedRequest, RequestLog


def test_a_fault_is_met_as_often_as_ordered() -> None:
    faults = FaultTable()
    fault = faults.add("POST", r"/commit/", status=503, times=2, skip=1)
    taken = [faults.take("POST", "/api/models/a/b/commit/main") for _ in range(5)]
    assert taken == [None, fault, fault, None, None]
    assert fault.met == 2
    assert faults.take("GET", "/api/models/a/b/commit/main") is None


def test_any_method_and_without_end() -> None:
    faults = FaultTable()
    fault = faults.add("*", "config", delay=0.0, times=None)
    assert all(faults.take(method, "/config.json") is fault for method in ("GET", "HEAD", "PUT"))
    assert fault.met == 3
    faults.clear()
    assert faults.take("GET", "/config.json") is None


def test_earlier_faults_are_met_first() -> None:
    faults = FaultTable()
    first = faults.add("GET", "x", status=500)
    second = faults.add("GET", "x", status=429)
    assert [faults.take("GET", "x") for _ in range(3)] == [first, second, None]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ({}, "needs a status, a drop, a delay"),
        ({"times": 2}, "needs a status"),
        ({"after_work": True, "delay": 1.0}, "after_work needs the status"),
    ],
)
def test_a_fault_without_trouble_is_refused(what: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FaultTable().add("GET", "x", **what)


def test_a_path_that_is_no_expression_is_refused() -> None:
    with pytest.raises(ValueError, match="regular expression"):
        FaultTable().add("GET", "(", status=500)


def test_the_log_finds_requests() -> None:
    log = RequestLog()
    log.enter(LoggedRequest("GET", "/a/b/resolve/main/x.json", "q=1", status=200))
    log.enter(LoggedRequest("PUT", "/lfs"))
    assert [str(row) for row in log] == ["GET /a/b/resolve/main/x.json?q=1 200", "PUT /lfs cut"]
    assert log.matching("GET", r"/resolve/.*json$") == [log[0]]
    assert len(log.matching()) == len(log) == 2
    log.clear()
    assert len(log) == 0
