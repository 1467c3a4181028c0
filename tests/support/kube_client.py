"""The Kubernetes API for tests: plain dicts, one user's token, and no client library of the code under test."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.manifests import JSON

REQUEST_TIMEOUT_S = 10.0
FIELD_MANAGER = "tests"


class KubeError(RuntimeError):
    """The API server or kubectl said no: `status` is HTTP's, 0 where there was none."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class KubeClient:
    """JSON over HTTP with one user's token: paths as the API server names them, plain dicts in and out.

    Every method raises `KubeError` with the server's message and HTTP status, and `httpx.HTTPError` when the server
    cannot be reached or does not answer within 10 seconds.
    """

    def __init__(self, url: str, *, token: str, ca_file: Path) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=str(ca_file)),
            timeout=REQUEST_TIMEOUT_S,
            trust_env=False,
        )
        self._resources: dict[str, dict[str, JSON]] = {}

    def close(self) -> None:
        self._http.close()

    def text(self, path: str) -> str:
        """What a GET of `path` answers, as text: `/readyz`, `/metrics`."""
        return self._request("GET", path).text

    def get(self, path: str) -> JSON:
        """One object, or a list object."""
        return self._json("GET", path)

    def items(self, path: str, **query: str) -> list[JSON]:
        """The items of the collection at `path`; `query`: labelSelector, fieldSelector."""
        found: list[JSON] = self._json("GET", path, params=query)["items"]
        return found

    def exists(self, path: str) -> bool:
        try:
            self.get(path)
        except KubeError as exc:
            if exc.status == httpx.codes.NOT_FOUND:
                return False
            raise
        return True

    def create(self, path: str, body: JSON) -> JSON:
        """POST `body` to the collection at `path`."""
        return self._json("POST", path, body)

    def replace(self, path: str, body: JSON) -> JSON:
        """PUT."""
        return self._json("PUT", path, body)

    def patch(self, path: str, body: JSON) -> JSON:
        """JSON merge patch."""
        return self._json("PATCH", path, body, content_type="application/merge-patch+json")

    def patch_status(self, path: str, status: JSON) -> JSON:
        """JSON merge patch of the status of the object at `path`."""
        return self.patch(f"{path}/status", {"status": status})

    def apply(self, path: str, body: JSON, *, field_manager: str = FIELD_MANAGER, force: bool = True) -> JSON:
        """Server-side apply to the object at `path`, which is made if it is not there."""
        query = {"fieldManager": field_manager, "force": str(force).lower()}
        return self._json("PATCH", path, body, content_type="application/apply-patch+yaml", params=query)

    def delete(self, path: str) -> JSON:
        return self._json("DELETE", path)

    def apply_yaml(self, documents: str | Iterable[JSON], *, namespace: str = "default") -> list[JSON]:
        """Server-side apply of each document; `namespace` is for those that name none."""
        parsed = yaml.safe_load_all(documents) if isinstance(documents, str) else documents
        return [self.apply(self.path_of(document, namespace=namespace), document) for document in parsed if document]

    def path_of(self, document: JSON, *, namespace: str = "default") -> str:
        """Where an object lives, by the server's own discovery."""
        version, kind, metadata = document["apiVersion"], document["kind"], document["metadata"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        resource = self._resource(base, kind)
        scope = f"/namespaces/{metadata.get('namespace', namespace)}" if resource["namespaced"] else ""
        return f"{base}{scope}/{resource['name']}/{metadata['name']}"

    def _resource(self, base: str, kind: str) -> JSON:
        if kind not in self._resources.get(base, {}):
            listed = self.get(base)["resources"]
            self._resources[base] = {entry["kind"]: entry for entry in listed if "/" not in entry["name"]}
        try:
            return self._resources[base][kind]
        except KeyError:
            raise KubeError(f"the server has no kind {kind} in {base}") from None

    def _json(self, method: str, path: str, body: JSON | None = None, **options: Any) -> JSON:
        answer: JSON = self._request(method, path, body, **options).json()
        return answer

    def _request(
        self,
        method: str,
        path: str,
        body: JSON | None = None,
        *,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type} if content is not None else {}
        response = self._http.request(method, path, content=content, headers=headers, params=params)
        if response.is_error:
            raise KubeError(f"{method} {path}: {response.text}", status=response.status_code)
        return response
