"""A hub of models on the loopback, as far as `hf download` asks it: metadata of a revision, and its files in ranges."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.http_server import Asked, Reply, answering

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
        self._stack = contextlib.ExitStack()
        self.url = self._stack.enter_context(answering(self._answer))

    def stop(self) -> None:
        self._stack.close()

    def _answer(self, asked: Asked) -> Reply:
        path = asked.path.partition("?")[0]
        self.requested.append(path)
        if self.token is not None and asked.headers.get("authorization") != f"Bearer {self.token}":
            return _refusal(401, "RepoNotFound", "Invalid username or password.")
        if self.is_gated:
            return _refusal(403, "GatedRepo", f"Access to model {self.repo} is restricted.")
        if found := re.fullmatch(rf"/api/models/{self.repo}/revision/([^/]+)", path):
            return self._description(found[1])
        if re.fullmatch(rf"/api/models/{self.repo}/tree/[^/]+", path):
            return _json([_entry(name, content) for name, content in self.listed.items()])
        if found := re.fullmatch(rf"/{self.repo}/resolve/([^/]+)/(.+)", path):
            return self._file(asked, found[2])
        return _refusal(404, "RepoNotFound", "Repository not found")

    def _description(self, revision: str) -> Reply:
        if revision not in (*self.revisions, COMMIT):
            return _refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        siblings = [{"rfilename": name, "size": len(content)} for name, content in self.files.items()]
        return _json({"id": self.repo, "modelId": self.repo, "sha": COMMIT, "siblings": siblings})

    def _file(self, asked: Asked, name: str) -> Reply:
        content = self.files.get(name)
        if content is None:
            return _refusal(404, "EntryNotFound", "Entry not found")
        digest = hashlib.sha256(content).hexdigest()
        headers = {"etag": f'"{digest}"', "x-repo-commit": COMMIT, "accept-ranges": "bytes"}
        ranged = re.fullmatch(r"bytes=(\d+)-", asked.headers.get("range", ""))
        start = int(ranged[1]) if ranged else 0
        if ranged:
            headers["content-range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        part = content[start:]
        headers["content-length"] = str(len(part))
        if asked.method == "GET" and self.cut_after is not None and self.cuts > 0 and len(part) > self.cut_after:
            self.cuts -= 1
            part = part[: self.cut_after]
        return Reply(206 if ranged else 200, part, headers)


def _entry(name: str, content: bytes) -> dict[str, Any]:
    return {
        "type": "file",
        "path": name,
        "size": len(content),
        "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),  # Git's of a small file
        **({"lfs": _lfs(content)} if name.endswith(".safetensors") else {}),
    }


def _json(value: object) -> Reply:
    return Reply(body=json.dumps(value).encode(), headers={"content-type": "application/json"})


def _refusal(status: int, code: str, message: str) -> Reply:
    body = json.dumps({"error": message}).encode()
    return Reply(status, body, {"x-error-code": code, "x-error-message": message})


def _lfs(content: bytes) -> dict[str, Any]:
    return {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
