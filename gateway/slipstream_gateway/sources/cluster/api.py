"""A cluster's API for what a person asks for, by a command or from the console: whom to ask by kubeconfig, JSON in and
out, clear errors."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
import msgspec
import yaml
from kubernetes.aio import client, config
from kubernetes.aio.config import ConfigException
from slipstream_core.errors import CommandError

MERGE_PATCH = "application/merge-patch+json"
_JSON = "application/json"
REQUEST_TIMEOUT_S = 10.0
WATCH_SILENCE_S = 60.0
_CONNECT_TIMEOUT_S = 5.0
_DEFAULT_KUBECONFIG = "~/.kube/config"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_HTTP_ERROR = 400
FORBIDDEN = 403


class ApiError(CommandError):
    """The API server said no, or nothing: `status` is HTTP's, 0 where it did not answer; `object_name` is the object
    that its answer is about, where it names one."""

    def __init__(self, message: str, *, status: int = 0, object_name: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.object_name = object_name


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer's JSON, and the time by the API server's clock (whole seconds)."""

    value: dict[str, Any]
    date: datetime


class KubernetesApi:
    """One cluster, as one user. `namespace` is the one that the kubeconfig, or the pod, stands in."""

    def __init__(self, configuration: client.Configuration, *, namespace: str) -> None:
        self.namespace = namespace
        self.url = str(configuration.host)
        self._client = client.ApiClient(configuration)

    @classmethod
    async def connect(cls, *, kubeconfig: Path | None = None, context: str | None = None, as_pod: bool = False) -> Self:
        """As kubectl chooses: the file that is given, else $KUBECONFIG, else ~/.kube/config, else the pod's own.
        `as_pod`: by the pod's own account, whatever else there is.

        Raises:
            CommandError: there is none of them, or it cannot be used, whatever is wrong with it.
        """
        paths = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG") or _DEFAULT_KUBECONFIG
        if as_pod:
            paths = ""
        configuration = client.Configuration()
        try:
            if _any_is_there(paths):
                # Never persisted: the file is the user's, and would come back without its comments.
                loader = await config.load_kube_config(paths, context, configuration, persist_config=False)
                namespace = loader.current_context["context"].get("namespace") or "default"
            elif kubeconfig is None and context is None and (own := _own_namespace()):
                paths, namespace = "of this pod", own
                config.load_incluster_config(configuration)
            else:
                missing = f"kubeconfig at {paths}" if paths else "account of a pod"
                raise CommandError(f"there is no cluster to talk to: no {missing}", exit_code=2)
            if not str(configuration.host).startswith(("http://", "https://")):
                raise ConfigException(f"its server is {configuration.host!r}, not an http(s) address")
            return cls(configuration, namespace=str(namespace))
        except (ConfigException, OSError, LookupError, TypeError, ValueError, AttributeError, yaml.YAMLError) as exc:
            why = " ".join(str(exc).split())  # PyYAML's words go over several lines
            raise CommandError(f"the kubeconfig {paths} cannot be used: {why}", exit_code=2) from exc

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.close()

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """Raises `ApiError`."""
        return await self._request("GET", path, query=query)

    async def patch(self, path: str, body: Mapping[str, Any]) -> Answer:
        """A JSON merge patch. Raises `ApiError`."""
        return await self._request("PATCH", path, body=body)

    async def create(self, path: str, body: Mapping[str, Any]) -> Answer:
        """A new object in the collection `path`. Raises `ApiError`."""
        return await self._request("POST", path, body=body)

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Events of a collection until the server ends it or falls silent.

        Raises:
            ApiError: also where the server ends it with an error event, such as 410.
        """
        deadlines = aiohttp.ClientTimeout(sock_connect=_CONNECT_TIMEOUT_S, sock_read=WATCH_SILENCE_S)
        with _failures(self.url):
            response = await self._send("GET", path, {**query, "watch": "true"}, None, deadlines)
            try:
                async for line in response.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _refusal(event["object"], int(event["object"].get("code", 0)))
                    yield event
            finally:
                response.close()

    async def _request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> Answer:
        deadlines = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=_CONNECT_TIMEOUT_S)
        with _failures(self.url):
            response = await self._send(method, path, query, body, deadlines)
            value = await response.json(content_type=None)
        date = response.headers.get("Date")
        return Answer(value=value, date=parsedate_to_datetime(date) if date else datetime.now(UTC))

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        deadlines: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The answer's head; raises `ApiError` where it is no success."""
        headers = {"Accept": _JSON, "Content-Type": MERGE_PATCH if method == "PATCH" else _JSON}
        await self._client.update_params_for_auth(headers, None, ["BearerToken"], path, method, body)
        url = f"{self.url}{path}?{urlencode(query)}" if query else f"{self.url}{path}"
        answer = await self._client.call_api(method, url, headers, body, _request_timeout=deadlines)
        response: aiohttp.ClientResponse = answer.response
        if response.status >= _HTTP_ERROR:
            raise _refusal(_json(await response.read()), response.status)
        return response


def _any_is_there(paths: str) -> bool:
    return any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep))


def _own_namespace() -> str | None:
    """The namespace of the pod that this runs in; None outside of a cluster."""
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _refusal(status: Mapping[str, Any], code: int) -> ApiError:
    """What the API server says of a request that it does not grant: a `metav1.Status`."""
    details = status.get("details")
    name = details.get("name", "") if isinstance(details, Mapping) else ""
    return ApiError(str(status.get("message") or f"the API server answered {code}"), status=code, object_name=name)


def _json(data: bytes) -> Mapping[str, Any]:
    """`data`, where it is a JSON object; a proxy on the way may answer with anything."""
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, Mapping) else {}


@contextmanager
def _failures(url: str) -> Iterator[None]:
    """Maps what may go wrong on the way to `ApiError`."""
    try:
        yield
    except TimeoutError as exc:
        raise ApiError(f"the API server {url} did not answer in time") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise ApiError(f"the API server {url} cannot be reached: {exc}") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise ApiError(f"{url} does not answer as an API server does: {exc}") from exc
