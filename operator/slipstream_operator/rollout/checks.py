"""The checks of new revisions by webhooks and queries of Prometheus, polled while a revision is compared.

The manifest names the addresses, so the rules for such addresses apply (`endpoint_rules`), redirects are not followed,
and nothing of an answer is shown but its status and its values.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
from slipstream_core.checked_resolver import CheckedResolver
from slipstream_core.endpoint_rules import EndpointRules
from slipstream_core.manifest.canary_checks import CanaryCheck, PrometheusQuery, Webhook
from slipstream_core.manifest.status import CanaryStatus
from slipstream_core.network_errors import NETWORK_ERRORS, describe_network_error

from slipstream_operator.cluster.resources import ObjectKey
from slipstream_operator.rollout.canary import CheckResult

_log = logging.getLogger(__name__)
_TICK_S = 0.25
_MOST_BYTES = 256 * 1024
_NO_RESULT = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
_Found = tuple[bool | None, str]
"""Whether the check passed, None without a result, and the reason."""


class _Data(msgspec.Struct):
    resultType: str
    result: Any


class _Reply(msgspec.Struct):
    data: _Data


_decode = msgspec.json.Decoder(_Reply).decode


class _Polled:
    """One check: its latest result, and the time of the next look."""

    def __init__(self, check: CanaryCheck) -> None:
        self.check = check
        self.result = CheckResult(check.name)
        self.due_s = 0.0
        self.is_running = False


class _Revision:
    """The checks of one new revision. `facts` are what webhooks get."""

    def __init__(self, facts: Mapping[str, str], checks: Sequence[CanaryCheck]) -> None:
        self.facts, self.checks = facts, tuple(checks)
        self.polled = [_Polled(check) for check in checks]


class CanaryChecks:
    """Polls the checks of all new revisions that are compared.

    `changed` is called with the key of a pair, after each result of it. `clock_s` is monotonic. All methods must be
    called in the event loop of `run`.
    """

    def __init__(
        self,
        *,
        rules: EndpointRules,
        changed: Callable[[ObjectKey], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules, self._changed, self._clock_s = rules, changed, clock_s
        self._revisions: dict[ObjectKey, _Revision] = {}

    def follow(self, key: ObjectKey, status: CanaryStatus, checks: Sequence[CanaryCheck]) -> None:
        """Poll `checks` of the new revision in `status` of the pair `key` until `end`. A change of them begins anew."""
        facts = {"namespace": key.namespace, "pair": key.name, "revision": status.revision, "serving": status.serving}
        known = self._revisions.get(key)
        if known is None or (known.facts, known.checks) != (facts, tuple(checks)):
            self._revisions[key] = _Revision(facts, checks)

    def results(self, key: ObjectKey) -> tuple[CheckResult, ...]:
        """The latest result of each check of the pair `key`."""
        found = self._revisions.get(key)
        return () if found is None else tuple(polled.result for polled in found.polled)

    def end(self, key: ObjectKey) -> None:
        self._revisions.pop(key, None)

    async def run(self) -> None:
        """Polls until cancelled."""
        connector = aiohttp.TCPConnector(resolver=CheckedResolver(self._rules), force_close=True)
        jar = aiohttp.DummyCookieJar()
        async with (
            aiohttp.ClientSession(connector=connector, cookie_jar=jar, trust_env=False) as session,
            asyncio.TaskGroup() as tasks,
        ):
            while True:
                for key, revision in self._revisions.items():
                    for polled in revision.polled:
                        if not polled.is_running and self._clock_s() >= polled.due_s:
                            polled.is_running = True
                            tasks.create_task(self._look(session, key, revision, polled))
                await asyncio.sleep(_TICK_S)

    async def _look(self, session: aiohttp.ClientSession, key: ObjectKey, revision: _Revision, polled: _Polled) -> None:
        try:
            passed, detail = await self._ask(session, polled.check, revision.facts)
        except Exception:  # the top of the task: a bug with one check must not end the others
            _log.exception("the check %s of %s ended with an unforeseen error", polled.check.name, key)
            passed, detail = None, "an unforeseen error, see the operator's log"
        polled.result = polled.result.after(passed, detail)
        polled.due_s = self._clock_s() + polled.check.interval_seconds
        polled.is_running = False
        if self._revisions.get(key) is revision:
            self._changed(key)

    async def _ask(self, session: aiohttp.ClientSession, check: CanaryCheck, facts: Mapping[str, str]) -> _Found:
        webhook, query = check.webhook, check.prometheus
        address = webhook.url if webhook is not None else query.address if query is not None else ""
        if (refused := self._rules.refuse(address)) is not None:
            return None, refused
        try:
            async with asyncio.timeout(check.timeout_seconds):
                if webhook is not None:
                    return await _call(session, webhook, {"check": check.name, **facts})
                return (None, "") if query is None else await _query(session, query, facts)
        except TimeoutError:
            return None, "no answer in time"
        except NETWORK_ERRORS as exc:
            return None, describe_network_error(exc)


async def _call(session: aiohttp.ClientSession, webhook: Webhook, facts: Mapping[str, str]) -> _Found:
    async with session.post(webhook.url, json=facts, allow_redirects=False) as response:
        status, said = response.status, f"status {response.status}"
    if status in _NO_RESULT or HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return None, said
    return status < HTTPStatus.MULTIPLE_CHOICES, said


async def _query(session: aiohttp.ClientSession, query: PrometheusQuery, facts: Mapping[str, str]) -> _Found:
    text = query.query
    for name, value in facts.items():
        text = text.replace(f"$({name})", value)
    url = f"{query.address.rstrip('/')}/api/v1/query"
    async with session.post(url, data={"query": text}, allow_redirects=False) as response:
        if response.status != HTTPStatus.OK:
            return None, f"Prometheus responded with status {response.status}"
        body = await _body(response)
    try:
        values = _values(_decode(body).data)
    except (ValueError, TypeError, LookupError, RecursionError):
        return None, "the response is not that of a query"
    return _judged(values, query)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """The body as far as `_MOST_BYTES`."""
    body = b""
    async for chunk in response.content.iter_chunked(_MOST_BYTES):
        body += chunk
        if len(body) > _MOST_BYTES:
            break
    return body


def _values(data: _Data) -> list[float]:
    """The values of a scalar or vector. Raises `ValueError`, `TypeError` or `LookupError` for another result."""
    if data.resultType == "scalar":
        return [float(data.result[1])]
    if data.resultType != "vector":
        raise ValueError(data.resultType)
    return [float(element["value"][1]) for element in data.result]


def _judged(values: Sequence[float], query: PrometheusQuery) -> _Found:
    if not values or any(math.isnan(value) for value in values):
        return None, "the query has no data"
    for value in values:
        if query.min is not None and value < query.min:
            return False, f"{value:.4g} is below {query.min:.4g}"
        if query.max is not None and value > query.max:
            return False, f"{value:.4g} is above {query.max:.4g}"
    return True, f"{values[0]:.4g}"
