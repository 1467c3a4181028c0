"""A hub of models on the loopback, as far as `hf download` asks it: metadata of a revision, and its files in ranges."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class ModelHub:
    """Serves `files` as the repository `repo`, with `revisions` and `COMMIT`.

    `token`: requests need it. `is_gated`: the account of the token has no access. `cut_after`: the first answers with
    a file's content, `cuts` of them, break off after so many bytes. `listed` are the files of the checksums, which
    a test may change. `requested` has the path of each request.
    """

    def __init__(
        self,
        repo: str,
        files: Mapping[str, bytes],
        *,
        token: str | None = None,
        is_gated: bool = False,
        revisions: Sequence[str] = ("main", "v1"),
        cut_after: int | None = None,
        cuts: int = 1,
    ) -> None:
        self.repo, self.files, self.listed = repo, dict(files), dict(files)
        self.token, self.is_gated, self.revisions = token, is_gated, revisions
        self.cut_after, self.cuts = cut_after, cuts
        self.requested: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self, has_body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, has_body=False)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, *, has_body: bool) -> None:
        path = request.path.partition("?")[0]
        self.requested.append(path)
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            _refuse(request, 401, "RepoNotFound", "Invalid username or password.")
        elif self.is_gated:
            _refuse(request, 403, "GatedRepo", f"Access to model {self.repo} is restricted.")
        elif found := re.fullmatch(rf"/api/models/{self.repo}/revision/([^/]+)", path):
            self._describe(request, found[1])
        elif re.fullmatch(rf"/api/models/{self.repo}/tree/[^/]+", path):
            self._list(request)
        elif found := re.fullmatch(rf"/{self.repo}/resolve/([^/]+)/(.+)", path):
            self._send_file(request, found[2], has_body=has_body)
        else:
            _refuse(request, 404, "RepoNotFound", "Repository not found")

    def _describe(self, request: BaseHTTPRequestHandler, revision: str) -> None:
        if revision not in (*self.revisions, COMMIT):
            _refuse(request, 404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        siblings = [{"rfilename": name, "size": len(content)} for name, content in self.files.items()]
        body = json.dumps({"id": self.repo, "modelId": self.repo, "sha": COMMIT, "siblings": siblings}).encode()
        _send(request, 200, {"content-type": "application/json"}, body)

    def _list(self, request: BaseHTTPRequestHandler) -> None:
        entries = [
            {
                "type": "file",
                "path": name,
                "size": len(content),
                "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),  # Git's of a small file
                **({"lfs": _lfs(content)} if name.endswith(".safetensors") else {}),
            }
            for name, content in self.listed.items()
        ]
        _send(request, 200, {"content-type": "application/json"}, json.dumps(entries).encode())

    def _send_file(self, request: BaseHTTPRequestHandler, name: str, *, has_body: bool) -> None:
        content = self.files.get(name)
        if content is None:
            _refuse(request, 404, "EntryNotFound", "Entry not found")
            return
        digest = hashlib.sha256(content).hexdigest()
        headers = {"etag": f'"{digest}"', "x-repo-commit": COMMIT, "accept-ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        start = int(asked[1]) if asked else 0
        if asked:
            headers["content-range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        part = content[start:]
        if has_body and self.cut_after is not None and self.cuts > 0 and len(part) > self.cut_after:
            self.cuts -= 1
            _send(request, 206 if asked else 200, headers, part[: self.cut_after], size=len(part))
            request.close_connection = True
            return
        _send(request, 206 if asked else 200, headers, part if has_body else b"", size=len(part))


def _lfs(content: bytes) -> dict[str, Any]:
    return {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}


def _send(
    request: BaseHTTPRequestHandler, status: int, headers: Mapping[str, str], body: bytes, *, size: int | None = None
) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("content-length", str(len(body) if size is None else size))
    request.end_headers()
    request.wfile.write(body)


def _refuse(request: BaseHTTPRequestHandler, status: int, code: str, message: str) -> None:
    _send(request, status, {"x-error-code": code, "x-error-message": message}, json.dumps({"error": message}).encode())
