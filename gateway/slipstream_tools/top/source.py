"""The console's figures over HTTP: once, or as they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import msgspec
from slipstream_core.errors import CommandError

CONNECT_S = 5.0
SILENT_S = 25.0
_PATH = "/admin/events"


class Lost(Exception):
    """The stream broke off; the message says why. It may come back."""


class Source:
    """The gateway at `url`. `key` is sent where the gateway asks for one."""

    def __init__(self, url: str, key: str | None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(CONNECT_S, read=SILENT_S)
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False)
        self._url = url

    def close(self) -> None:
        self._http.close()

    def once(self) -> Mapping[str, Any]:
        """All sections. Raises `CommandError`."""
        try:
            answer = self._http.get(_PATH, headers={"accept": "application/json"})
        except httpx.HTTPError as exc:
            raise CommandError(f"{self._url} cannot be reached: {_why(exc)}") from exc
        self._check(answer)
        return _sections(answer.content, self._url)

    def follow(self) -> Iterator[Mapping[str, Any]]:
        """All sections, again after each change. Raises `Lost` where the stream ends, `CommandError` where it is
        refused."""
        sections: dict[str, Any] = {}
        try:
            with self._http.stream("GET", _PATH, headers={"accept": "text/event-stream"}) as answer:
                if answer.status_code != httpx.codes.OK:
                    answer.read()
                    self._check(answer)
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        sections |= _sections(line.removeprefix("data: ").encode(), self._url)
                        yield sections
        except httpx.HTTPError as exc:
            raise Lost(_why(exc)) from exc
        raise Lost("the gateway ended the stream")

    def _check(self, answer: httpx.Response) -> None:
        if answer.status_code == httpx.codes.OK:
            return
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise CommandError(f"{self._url}: {_message(answer)} Give an admin's key: --key-env NAME_OF_A_VARIABLE")
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise CommandError(f"{self._url} has no console: is it the gateway's admin port?")
        raise CommandError(f"{self._url}: {_message(answer)}")


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"it answered {answer.status_code}."


def _sections(data: bytes, url: str) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise CommandError(f"{url} does not answer as a gateway does: {exc}") from exc
    return found


def _why(exc: httpx.HTTPError) -> str:
    if isinstance(exc, httpx.TimeoutException):
        return "it does not answer in time"
    return str(exc) or type(exc).__name__
