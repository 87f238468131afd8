"""A local hub asked by plain HTTP: what clients seldom send, and what they must not get."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPMessage
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from vtrim_hf.local_hub import Account, LocalHub
from vtrim_hf.local_hub import calls as hub_calls

pytestmark = pytest.mark.newest  # a server of the standard library

TOKENS = {
    "hf_write": Account("user", "write", ("team",)),
    "hf_read": Account("user", "read", ("team",)),
    "hf_bob": Account("bob"),
}


@dataclass
class Reply:
    status: int
    headers: HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    hub: LocalHub,
    method: str,
    path: str,
    body: Any = None,
    token: str | None = "hf_write",
    **headers: str,
) -> Reply:
    connection = HTTPConnection(hub.host, hub.port, timeout=60)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        connection.request(method, path, data, sent)
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


def commit(
    hub: LocalHub,
    files: Mapping[str, bytes],
    *,
    repo: str = "user/x",
    rev: str = "main",
    token: str = "hf_write",
    **header: Any,
) -> Reply:
    lines: list[Any] = [{"key": "header", "value": {"summary": "s", **header}}]
    for path, data in files.items():
        content = base64.b64encode(data).decode()
        value = {"path": path, "content": content, "encoding": "base64"}
        lines.append({"key": "file", "value": value})
    body = "\n".join(map(json.dumps, lines)).encode()
    return ask(hub, "POST", f"/api/models/{repo}/commit/{rev}", body, token)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    with LocalHub(tmp_path / "hub", tokens=TOKENS) as hub:
        assert ask(hub, "POST", "/api/repos/create", {"name": "x"}).status == 200
        assert commit(hub, {"a.txt": b"0123456789", "b/c.txt": b"c"}).status == 200
        yield hub


FILE = "/user/x/resolve/main/a.txt"


class TestContent:
    def test_a_file_and_its_facts(self, hub: LocalHub) -> None:
        whole, facts = ask(hub, "GET", FILE), ask(hub, "HEAD", FILE)
        assert (whole.status, whole.body) == (200, b"0123456789")
        assert (facts.status, facts.body) == (200, b"")
        for name in ("ETag", "Content-Length", "X-Repo-Commit", "Accept-Ranges"):
            assert whole.headers[name] == facts.headers[name]
        assert whole.headers["Content-Length"] == "10"

    @pytest.mark.parametrize(
        ("asked", "body", "told"),
        [
            ("bytes=2-4", b"234", "bytes 2-4/10"),
            ("bytes=7-", b"789", "bytes 7-9/10"),
            ("bytes=-3", b"789", "bytes 7-9/10"),
            ("bytes=-30", b"0123456789", "bytes 0-9/10"),
            ("bytes=0-99", b"0123456789", "bytes 0-9/10"),
        ],
    )
    def test_ranges(self, hub: LocalHub, asked: str, body: bytes, told: str) -> None:
        reply = ask(hub, "GET", FILE, Range=asked)
        assert (reply.status, reply.body, reply.headers["Content-Range"]) == (206, body, told)
        facts = ask(hub, "HEAD", FILE, Range=asked)
        assert (facts.status, facts.headers["Content-Length"]) == (206, str(len(body)))

    @pytest.mark.parametrize("asked", ["bytes=10-", "bytes=5-2", "bytes=0-1,4-5", "bytes=-", "x"])
    def test_ranges_that_are_not_there(self, hub: LocalHub, asked: str) -> None:
        assert ask(hub, "GET", FILE, Range=asked).status == 416

    def test_an_unchanged_file_is_not_sent_again(self, hub: LocalHub) -> None:
        etag = ask(hub, "HEAD", FILE).headers["ETag"]
        for known in (etag, f'"x", W/{etag}', "*"):
            reply = ask(hub, "GET", FILE, If_None_Match=known)
            assert (reply.status, reply.body, reply.headers["ETag"]) == (304, b"", etag)
        assert ask(hub, "GET", FILE, If_None_Match='"x"').status == 200

    def test_a_missing_file_names_the_commit(self, hub: LocalHub) -> None:
        reply = ask(hub, "GET", "/user/x/resolve/main/nope.txt")
        assert (reply.status, reply.headers["X-Error-Code"]) == (404, "EntryNotFound")
        assert reply.headers["X-Repo-Commit"] == ask(hub, "HEAD", FILE).headers["X-Repo-Commit"]

    @pytest.mark.parametrize(
        "path",
        [
            "..%2f..%2ftokens.json", "../../tokens.json", "%2fetc%2fpasswd", "b", "b%5cc.txt",
            "a.txt%00", "a.txt/",
        ],
    )  # fmt: skip
    def test_only_files_of_the_commit_are_served(self, hub: LocalHub, path: str) -> None:
        assert ask(hub, "GET", f"/user/x/resolve/main/{path}").status == 404

    @pytest.mark.parametrize(
        "rev", ["..%2f..", "%2e%2e", "refs%2fheads%2f..", "v9", "*", "0" * 40]
    )
    def test_only_revisions_are_resolved(self, hub: LocalHub, rev: str) -> None:
        reply = ask(hub, "GET", f"/user/x/resolve/{rev}/a.txt")
        assert (reply.status, reply.headers["X-Error-Code"]) == (404, "RevisionNotFound")


class TestCommits:
    @pytest.mark.parametrize(
        "path", ["../x", "/etc/x", "a\\b", "a/../../x", ".git/config", "a\0", "", "C:/x"]
    )
    def test_tricky_paths_are_refused(self, hub: LocalHub, path: str) -> None:
        reply = commit(hub, {"good.txt": b"", path: b"x"})
        assert reply.status == 400
        assert "path is" in reply.json["error"]
        assert hub.files("user/x") == [".gitattributes", "a.txt", "b/c.txt"]

    @pytest.mark.parametrize(
        ("body", "trouble"),
        [
            (b"", "needs a summary"),
            (b"no json", "lines of JSON"),
            (b"[]", "lines of JSON"),
            (b"[" * 100_000, "lines of JSON"),
            (b'{"key": "header", "value": []}', "is an object"),
            (b'{"key": "copy", "value": {}}', "cannot hold 'copy'"),
            (b'{"key": "file", "value": {"path": "a", "content": 1}}', "has no content"),
            (
                b'{"key": "file", "value": {"path": "a", "content": "*", "encoding": "base64"}}',
                "not base64",
            ),
            (b'{"key": "lfsFile", "value": {"path": "a", "oid": "../x"}}', "object not found"),
            (b'{"key": "deletedFile", "value": {"path": "../x"}}', "path is"),
        ],
    )
    def test_broken_commits_are_refused(self, hub: LocalHub, body: bytes, trouble: str) -> None:
        reply = ask(hub, "POST", "/api/models/user/x/commit/main", body)
        assert reply.status == 400
        assert trouble in reply.json["error"]

    def test_a_file_cannot_become_a_folder(self, hub: LocalHub) -> None:
        assert commit(hub, {"a.txt/x": b""}).status == 400

    def test_a_stale_parent_is_refused(self, hub: LocalHub) -> None:
        first = ask(hub, "GET", "/api/models/user/x").json["sha"]
        assert commit(hub, {"n": b"1"}, parentCommit=first).status == 200
        assert commit(hub, {"n": b"2"}, parentCommit=first).status == 412
        assert hub.read("user/x", "n") == b"1"

    def test_a_tag_cannot_grow(self, hub: LocalHub) -> None:
        assert ask(hub, "POST", "/api/models/user/x/tag/main", {"tag": "v1"}).status == 200
        assert commit(hub, {"n": b""}, rev="v1").status == 404

    def test_a_body_in_chunks(self, hub: LocalHub) -> None:
        lines = [b'{"key": "header", "value": {"summary": "s"}}\n{"key": "file", ', b'"value": ']
        lines.append(b'{"path": "n", "content": "eA==", "encoding": "base64"}}')
        reply = ask(hub, "POST", "/api/models/user/x/commit/main", iter(lines))
        assert (reply.status, hub.read("user/x", "n")) == (200, b"x")


class TestPullRequests:
    PULLS = "/api/models/user/x/discussions"

    def propose(self, hub: LocalHub, files: Mapping[str, bytes]) -> int:
        reply = commit(hub, files, rev="main?create_pr=1", token="hf_bob")
        assert reply.status == 200
        return int(reply.json["pullRequestUrl"].rsplit("/", 1)[1])

    def test_what_both_sides_changed_is_a_conflict(self, hub: LocalHub) -> None:
        number = self.propose(hub, {"a.txt": b"bob's", "n": b"new"})
        assert ask(hub, "GET", f"{self.PULLS}/{number}").json["filesWithConflicts"] == []
        commit(hub, {"a.txt": b"user's", "m": b""})
        details = ask(hub, "GET", f"{self.PULLS}/{number}").json
        assert (details["filesWithConflicts"], details["status"]) == (["a.txt"], "open")
        reply = ask(hub, "POST", f"{self.PULLS}/{number}/merge")
        assert (reply.status, "a.txt" in reply.json["error"]) == (409, True)
        assert hub.read("user/x", "a.txt") == b"user's"
        again = commit(hub, {"a.txt": b"user's"}, rev=f"refs%2fpr%2f{number}", token="hf_bob")
        assert again.status == 200
        assert ask(hub, "POST", f"{self.PULLS}/{number}/merge").status == 200
        assert (hub.read("user/x", "n"), hub.read("user/x", "m")) == (b"new", b"")

    def test_who_may_do_what(self, hub: LocalHub) -> None:
        number = self.propose(hub, {"n": b"1"})
        pull, head = f"{self.PULLS}/{number}", f"refs%2fpr%2f{number}"
        assert ask(hub, "POST", f"{pull}/merge", token="hf_bob").status == 403
        assert ask(hub, "POST", f"{pull}/comment", {"comment": "x"}, token="hf_read").status == 403
        assert ask(hub, "POST", self.PULLS, {"title": "t"}, token=None).status == 401
        assert ask(hub, "POST", f"{pull}/status", {"status": "gone"}).status == 400
        assert (
            ask(hub, "POST", f"{pull}/status", {"status": "closed"}, token="hf_bob").status == 200
        )
        assert commit(hub, {"n": b"2"}, rev=head, token="hf_bob").status == 403
        assert ask(hub, "POST", f"{pull}/merge").status == 400
        assert ask(hub, "GET", f"{self.PULLS}/9").status == 404
        assert "n" not in hub.files("user/x")

    def test_one_may_start_at_an_older_commit(self, hub: LocalHub) -> None:
        first = ask(hub, "GET", "/api/models/user/x").json["sha"]
        commit(hub, {"later": b""})
        reply = commit(hub, {"n": b""}, rev="main?create_pr=1", parentCommit=first)
        assert reply.status == 200
        assert hub.files("user/x", "refs/pr/1") == [".gitattributes", "a.txt", "b/c.txt", "n"]
        assert ask(hub, "POST", f"{self.PULLS}/1/merge").status == 200
        assert {"n", "later"} <= set(hub.files("user/x"))


class TestLargeFiles:
    def actions(self, hub: LocalHub, data: bytes, *, oid: str = "") -> Any:
        item = {"oid": oid or hashlib.sha256(data).hexdigest(), "size": len(data)}
        asked = {"operation": "upload", "transfers": ["basic"], "objects": [item]}
        reply = ask(hub, "POST", "/user/x.git/info/lfs/objects/batch", asked)
        assert reply.status == 200
        return {
            name: urlsplit(action["href"]).path
            for name, action in reply.json["objects"][0].get("actions", {}).items()
        }

    def test_once_there_it_is_not_asked_for(self, hub: LocalHub) -> None:
        data = os.urandom(200_000)
        there = self.actions(hub, data)
        size = {"size": len(data)}
        assert ask(hub, "POST", there["verify"], size).status == 404
        assert ask(hub, "PUT", there["upload"], data, token=None).status == 200
        assert ask(hub, "POST", there["verify"], size).status == 200
        assert self.actions(hub, data) == {}

    def test_other_content_is_refused(self, hub: LocalHub) -> None:
        there = self.actions(hub, b"abc")
        for data, status in ((b"abd", 400), (b"ab", 400), (b"abcd", 413)):
            assert ask(hub, "PUT", there["upload"], data).status == status
        assert not hub.service.objects.has(hashlib.sha256(b"abc").hexdigest())

    def test_an_address_of_ones_own_making_is_refused(self, hub: LocalHub) -> None:
        path = self.actions(hub, b"abc")["upload"]
        oid = hashlib.sha256(b"abd").hexdigest()
        forged = path.replace(hashlib.sha256(b"abc").hexdigest(), oid)
        assert ask(hub, "PUT", forged, b"abd").status == 403
        assert ask(hub, "PUT", path.replace("/3/", "/9/"), b"abc").status == 403

    def test_an_address_is_only_given_to_those_who_may_write(self, hub: LocalHub) -> None:
        asked = {"operation": "upload", "objects": []}
        for token, status in ((None, 401), ("hf_read", 403), ("hf_none", 401)):
            reply = ask(hub, "POST", "/user/x.git/info/lfs/objects/batch", asked, token)
            assert reply.status == status

    @pytest.mark.parametrize("oid", ["../../x", "0" * 63, "Z" * 64])
    def test_objects_are_named_by_their_hash(self, hub: LocalHub, oid: str) -> None:
        asked = {"operation": "upload", "objects": [{"oid": oid, "size": 1}]}
        reply = ask(hub, "POST", "/user/x.git/info/lfs/objects/batch", asked)
        assert reply.status == 400


class TestAccess:
    def test_roles(self, hub: LocalHub) -> None:
        for token, status in (("hf_write", 200), ("hf_read", 403), ("hf_bob", 403), ("no", 401)):
            assert commit(hub, {"n": b""}, token=token).status == status
        assert ask(hub, "POST", "/api/repos/create", {"name": "y"}, token=None).status == 401
        bad = ask(hub, "GET", "/api/models/user/x", token="no")
        assert bad.headers["X-Error-Message"] == "Invalid credentials in Authorization header"

    def test_private_is_hidden(self, hub: LocalHub) -> None:
        settings = "/api/models/user/x/settings"
        assert ask(hub, "PUT", settings, {"visibility": "private"}).status == 200
        for token, status in (("hf_read", 200), ("hf_bob", 404), (None, 401)):
            for path in (FILE, "/api/models/user/x", "/api/models/user/x/refs"):
                reply = ask(hub, "GET", path, token=token)
                assert reply.status == status
                assert status == 200 or reply.headers["X-Error-Code"] == "RepoNotFound"
            listed = ask(hub, "GET", "/api/models", token=token).json
            assert len(listed) == (status == 200)

    def test_gated_shows_facts_but_no_files(self, hub: LocalHub) -> None:
        settings = "/api/models/user/x/settings"
        assert ask(hub, "PUT", settings, {"gated": "maybe"}).status == 400
        assert ask(hub, "PUT", settings, {"gated": "manual"}).status == 200
        for token, status in (("hf_read", 200), ("hf_bob", 403), (None, 401)):
            reply = ask(hub, "GET", FILE, token=token)
            assert reply.status == status
            assert status == 200 or reply.headers["X-Error-Code"] == "GatedRepo"
            assert ask(hub, "GET", "/api/models/user/x", token=token).json["gated"] == "manual"

    @pytest.mark.parametrize("path", ["/api/models/gpt2", "/gpt2/resolve/main/config.json"])
    def test_a_name_without_namespace_is_no_repository(self, hub: LocalHub, path: str) -> None:
        reply = ask(hub, "GET", path)
        assert (reply.status, reply.headers["X-Error-Code"]) == (404, "RepoNotFound")

    @pytest.mark.parametrize("name", ["..", "a/b", "a\\b", "", "x.git"])
    def test_repositories_stay_in_their_folder(self, hub: LocalHub, name: str) -> None:
        assert ask(hub, "POST", "/api/repos/create", {"name": name}).status == 400
        moved = {"fromRepo": "user/x", "toRepo": f"user/{name}", "type": "model"}
        assert ask(hub, "POST", "/api/repos/move", moved).status == 400
        assert hub.files("user/x")


class TestListings:
    def test_pages(self, tmp_path: Path) -> None:
        with LocalHub(tmp_path / "hub", tokens=TOKENS, page_size=3) as hub:
            ask(hub, "POST", "/api/repos/create", {"name": "x"})
            commit(hub, {f"d/{n}.txt": b"" for n in range(7)})
            path, names, pages = "/api/models/user/x/tree/main?recursive=True", [], 0
            while path:
                reply = ask(hub, "GET", path)
                names += [row["path"] for row in reply.json]
                link = reply.headers.get("Link", "")
                path = link.removeprefix("<").split(">")[0].removeprefix(hub.endpoint)
                pages += 1
            assert names == ["d", ".gitattributes", *(f"d/{n}.txt" for n in range(7))]
            assert pages == 3

    def test_the_last_commit_of_a_file(self, hub: LocalHub) -> None:
        first = ask(hub, "GET", "/api/models/user/x").json["sha"]
        second = commit(hub, {"n": b"", "b/c.txt": b"d"}).json["commitOid"]
        rows = ask(hub, "GET", "/api/models/user/x/tree/main?recursive=1&expand=1").json
        last = {row["path"]: row["lastCommit"]["id"] for row in rows if "lastCommit" in row}
        assert (last["a.txt"], last["n"], last["b/c.txt"]) == (first, second, second)

    def test_paths_are_described(self, hub: LocalHub) -> None:
        for body, kind in (
            (b"paths=a.txt&paths=b&paths=no", "application/x-www-form-urlencoded"),
            ({"paths": ["a.txt", "b", "no"]}, "application/json"),
        ):
            reply = ask(hub, "POST", "/api/models/user/x/paths-info/main", body, Content_Type=kind)
            assert [(row["path"], row["type"]) for row in reply.json] == [
                ("a.txt", "file"), ("b", "directory"),
            ]  # fmt: skip

    def test_searches(self, hub: LocalHub) -> None:
        ask(hub, "POST", "/api/repos/create", {"name": "Sql-Draft", "organization": "team"})
        card = b"---\ntags: [vtrim, sql]\nbase_model: a/b\npipeline_tag: text-generation\n---\n"
        commit(hub, {"README.md": card}, repo="team/Sql-Draft")

        def found(query: str) -> list[str]:
            return [row["id"] for row in ask(hub, "GET", f"/api/models?{query}").json]

        both = ["team/Sql-Draft", "user/x"]
        for query, ids in {
            "": both,
            "filter=vtrim&filter=sql": both[:1],
            "filter=base_model:a/b": both[:1],
            "filter=vtrim&filter=ner": [],
            "author=user": both[1:],
            "search=sql-dr": both[:1],
            "pipeline_tag=text-generation": both[:1],
            "gated=True": [],
            "sort=createdAt&direction=1": both[::-1],
            "sort=lastModified": both,
            "limit=1": both[:1],
        }.items():
            assert found(query) == ids, query
        assert "siblings" not in ask(hub, "GET", "/api/models").json[0]
        full = ask(hub, "GET", "/api/models?full=True").json[0]
        assert full["cardData"]["tags"] == ["vtrim", "sql"]
        assert {"rfilename": "README.md"} in full["siblings"]


class TestServer:
    def test_what_it_does_not_have(self, hub: LocalHub) -> None:
        for method, path in (
            ("GET", "/nope"),
            ("PUT", "/api/models/user/x"),
            ("GET", "/api/x/y/z"),
        ):
            assert ask(hub, method, path).status == 404
        for method in ("PATCH", "OPTIONS", "BREW"):
            assert ask(hub, method, "/api/models").status == 501

    @pytest.mark.parametrize("body", [b"{", b"[1]", b'"x"', b"[" * 100_000, b"\xff"])
    def test_a_body_must_be_an_object(self, hub: LocalHub, body: bytes) -> None:
        assert ask(hub, "POST", "/api/repos/create", body).status == 400

    def test_a_body_may_not_fill_the_memory(
        self, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hub_calls, "MOST_JSON", 1000)
        monkeypatch.setattr(hub_calls, "LONGEST_LINE", 1000)
        assert ask(hub, "POST", "/api/repos/create", b" " * 2000).status == 413
        assert commit(hub, {"n": b"x" * 200_000}).status == 413

    @pytest.mark.parametrize(
        "head",
        [
            b"POST /api/repos/create HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"POST /api/repos/create HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n",
            b"POST /api/repos/create HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            b"nonsense\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
        ],
    )
    def test_broken_requests_end_only_their_connection(self, hub: LocalHub, head: bytes) -> None:
        with socket.create_connection((hub.host, hub.port), timeout=60) as connection:
            connection.sendall(head)
            while connection.recv(1000):
                pass
        assert ask(hub, "GET", FILE).status == 200

    def test_links_use_the_name_that_the_client_knows(self, hub: LocalHub) -> None:
        body = {"name": "y"}
        reply = ask(hub, "POST", "/api/repos/create", body, Host=f"localhost:{hub.port}")
        assert reply.json["url"] == f"http://localhost:{hub.port}/user/y"
        body = {"name": "z"}
        reply = ask(hub, "POST", "/api/repos/create", body, Host="<script>")
        assert reply.json["url"] == f"{hub.endpoint}/user/z"

    def test_a_fault_of_its_own_is_told_and_logged(
        self, hub: LocalHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(hub.service.shelf, "find", lambda *_: 1 / 0)
        reply = ask(hub, "GET", "/api/models/user/x")
        assert reply.status == 500
        assert "ZeroDivisionError" in reply.json["error"]
        assert "ZeroDivisionError" in caplog.text

    def test_stop_waits_for_what_is_in_hand_and_closes_the_rest(self, hub: LocalHub) -> None:
        idle = HTTPConnection(hub.host, hub.port, timeout=60)
        idle.request("GET", FILE)
        idle.getresponse().read()
        started = threading.Event()
        hub.faults.add("GET", "a.txt", delay=0.5, before=started.set)
        hub.faults.add("GET", "a.txt", delay=0.5)
        replies: list[Reply] = []
        asking = threading.Thread(target=lambda: replies.append(ask(hub, "GET", FILE)))
        asking.start()
        started.wait(60)
        hub.stop()
        asking.join(60)
        assert [reply.body for reply in replies] == [b"0123456789"]
        assert idle.sock.recv(1) == b""
        idle.close()
        with pytest.raises(ConnectionRefusedError):
            ask(hub, "GET", FILE)
        assert not hub.running
        port = hub.port
        assert hub.start().port == port
        assert ask(hub, "GET", FILE).body == b"0123456789"

    def test_a_taken_port_is_named(self, hub: LocalHub, tmp_path: Path) -> None:
        other = LocalHub(tmp_path / "other", port=hub.port)
        with pytest.raises(OSError, match=f"cannot listen on port {hub.port}"):
            other.start()
        assert not other.running
        other.port = 0
        other.start().stop()  # the folder was let go of


class TestFaults:
    def test_a_status_with_headers_and_body(self, hub: LocalHub) -> None:
        hub.faults.add("GET", "a.txt", status=429, headers={"Retry-After": "1"}, body={"a": 1})
        reply = ask(hub, "GET", FILE)
        assert (reply.status, reply.headers["Retry-After"], reply.json) == (429, "1", {"a": 1})
        assert ask(hub, "GET", FILE).status == 200
        assert [row.fault for row in hub.log.matching("GET", "a.txt")] == [True, False]

    def test_the_work_may_be_done_before(self, hub: LocalHub) -> None:
        hub.faults.add("POST", "/commit/", status=504)
        assert commit(hub, {"n": b""}).status == 504
        assert "n" not in hub.files("user/x")
        hub.faults.add("POST", "/commit/", status=504, after_work=True)
        assert commit(hub, {"n": b""}).status == 504
        assert "n" in hub.files("user/x")

    def test_an_answer_is_cut(self, hub: LocalHub) -> None:
        hub.faults.add("GET", "a.txt", drop_after=4)
        with pytest.raises(HTTPException) as caught:
            ask(hub, "GET", FILE)
        assert getattr(caught.value, "partial", b"") == b"0123"
        assert hub.log.matching("GET", "a.txt")[-1].sent == 4

    def test_an_upload_is_cut(self, hub: LocalHub) -> None:
        hub.faults.add("POST", "/commit/", drop_upload_after=10)
        with pytest.raises((HTTPException, OSError)):
            commit(hub, {"n": os.urandom(1 << 20)})
        assert hub.log.matching("POST", "/commit/")[-1].status is None
        assert "n" not in hub.files("user/x")
        assert list(hub.service.objects.incoming.iterdir()) == []

    def test_a_body_is_corrupted_or_replaced(self, hub: LocalHub) -> None:
        hub.faults.add("GET", "a.txt", corrupt=True)
        hub.faults.add("GET", "a.txt", body="evil", headers={"X-New": "1"})
        first, second = ask(hub, "GET", FILE), ask(hub, "GET", FILE)
        assert first.body == bytes([ord("0") ^ 255]) + b"123456789"
        assert (second.body, second.headers["X-New"]) == (b"evil", "1")
        assert second.headers["Content-Length"] == "4"
        assert second.headers["ETag"] == first.headers["ETag"]

    def test_something_happens_in_between_and_time_passes(self, hub: LocalHub) -> None:
        first = ask(hub, "GET", "/api/models/user/x").json["sha"]
        hub.faults.add("POST", "/commit/", delay=0.2, before=lambda: commit(hub, {"n": b"theirs"}))
        begun = time.monotonic()
        assert commit(hub, {"n": b"mine"}, parentCommit=first).status == 412
        assert time.monotonic() - begun >= 0.2
        assert hub.read("user/x", "n") == b"theirs"

    def test_the_log_knows_who_asked(self, hub: LocalHub) -> None:
        hub.clear_log()
        ask(hub, "GET", FILE + "?download=true", User_Agent="me", token="hf_read")
        row = hub.log[-1]
        assert (row.method, row.path, row.query, row.user, row.user_agent, row.status) == (
            "GET", FILE, "download=true", "user", "me", 200,
        )  # fmt: skip
        assert len(hub.log) == 1


def raw(hub: LocalHub, request: bytes) -> bytes:
    with socket.create_connection((hub.host, hub.port), timeout=60) as connection:
        connection.sendall(request)
        return connection.recv(1 << 16)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD http://]/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST http://[::1 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /api/validate-yaml HTTP/1.1\r\nHost: x\r\nContent-Length: "
        + b"9" * 5000
        + b"\r\n\r\n",
    ],
)
def test_an_address_that_is_none_is_answered(
    hub: LocalHub, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert raw(hub, request_).startswith(b"HTTP/1.1 400 ")
    assert not caplog.records, "a mistake of a client is no accident of the hub"
    assert ask(hub, "GET", "/api/whoami-v2").status == 200


def test_numbers_without_end_are_none(hub: LocalHub) -> None:
    many = "9" * 5000
    assert ask(hub, "GET", f"/api/models?limit={many}").status == 200
    assert ask(hub, "GET", FILE, Range=f"bytes={many}-").status == 416


class TestPages:
    def test_a_page_shows_files_and_card(self, hub: LocalHub) -> None:
        card = b"---\nlicense: mit\n---\n# <script>alert(1)</script> & \xc3\xa9"
        assert (
            commit(hub, {"README.md": card, "a <b>'\"&.txt".replace('"', ""): b"x"}).status == 200
        )
        reply = ask(hub, "GET", "/user/x", token=None)
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
        text = reply.body.decode()
        assert "<script>" not in text
        assert "# &lt;script&gt;alert(1)&lt;/script&gt; &amp; \u00e9" in text
        assert "a &lt;b&gt;&#x27;&amp;.txt" in text
        (address,) = re.findall(r'href="([^"]*/a%20[^"]*)"', text)
        assert ask(hub, "GET", address, token=None).body == b"x"
        facts = ask(hub, "HEAD", "/user/x", token=None)
        assert (facts.status, facts.body) == (200, b"")
        assert facts.headers["Content-Length"] == str(len(reply.body))

    def test_the_addresses_that_clients_print(self, hub: LocalHub) -> None:
        assert ask(hub, "POST", "/api/models/user/x/branch/a%2Fb", {}).status == 200
        made = commit(hub, {"new.txt": b"x"}, rev="a%2Fb").json
        pull = commit(hub, {"pr.txt": b"x"}, rev="main?create_pr=1").json
        for address, file in [
            ("/user/x/tree/a/b", b"new.txt"),
            ("/user/x/tree/a%2Fb", b"new.txt"),
            (urlsplit(made["commitUrl"]).path, b"new.txt"),
            (urlsplit(pull["pullRequestUrl"]).path, b"pr.txt"),
        ]:
            reply = ask(hub, "GET", address)
            assert reply.status == 200, address
            assert file in reply.body
        assert b"new.txt" not in ask(hub, "GET", "/user/x").body
        for address in ("/user/x/tree/nope", "/user/x/discussions/9", "/user/nope", "/api/nope/x"):
            assert ask(hub, "GET", address).status == 404, address
        assert ask(hub, "POST", "/user/x").status == 404

    def test_only_those_who_may_see_a_repository_see_its_page(self, hub: LocalHub) -> None:
        made = {"name": "hidden", "private": True}
        assert ask(hub, "POST", "/api/repos/create", made).status == 200
        assert (
            ask(hub, "POST", "/api/repos/create", {"name": "d", "type": "dataset"}).status == 200
        )
        for token, status in (("hf_write", 200), ("hf_bob", 404), (None, 401)):
            assert ask(hub, "GET", "/user/hidden", token=token).status == status
            listed = ask(hub, "GET", "/", token=token).body
            assert (b"user/hidden" in listed) == (status == 200)
            assert b'href="/user/x"' in listed
            assert b'href="/datasets/user/d"' in listed
        assert ask(hub, "GET", "/datasets/user/d", token=None).status == 200

    def test_a_gated_card_is_not_shown(self, hub: LocalHub) -> None:
        assert commit(hub, {"README.md": b"secret words"}).status == 200
        assert ask(hub, "PUT", "/api/models/user/x/settings", {"gated": "auto"}).status == 200
        assert b"secret words" in ask(hub, "GET", "/user/x").body
        for token in ("hf_bob", None):
            reply = ask(hub, "GET", "/user/x", token=token)
            assert reply.status == 200
            assert b"secret words" not in reply.body
            assert b"restricted" in reply.body
