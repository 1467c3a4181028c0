"""Prints the results of the gateway's engine checks to the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from slipstream_tools.up.cache import Report

_POLL_S = 0.05
_REPORT_S = 30.0
_BOTH = "greedy and sampled requests may speculate"


class Finding(msgspec.Struct, frozen=True):
    """One finding in the response of `GET /v1/evidence`."""

    subject: str
    result: str
    detail: str


class ServerCheck(msgspec.Struct, frozen=True):
    """One server in the response of `GET /v1/evidence`: see `conformance.ReplicaConformance`."""

    pair: str
    server: str
    withheld: dict[str, str] = {}
    findings: tuple[Finding, ...] = ()
    checked_s: float | None = None
    waits_for: str | None = None

    @property
    def is_settled(self) -> bool:
        """Whether there is a result, or none will come without a change."""
        return self.checked_s is not None or self.waits_for is not None

    def __str__(self) -> str:
        name = f"{self.pair} at {self.server}"
        if self.waits_for is not None:
            return f"{name}: not checked, decodes plainly: {self.waits_for}"
        if self.checked_s is None:
            return f"{name}: not checked yet, decodes plainly until then"
        if not self.withheld:
            return f"{name}: checked, {_BOTH}"
        why = {finding.subject: finding.detail for finding in self.findings}
        missing = [f"no {name} ({reason}: {why.get(name, reason)})" for name, reason in self.withheld.items()]
        return f"{name}: checked, {', '.join(missing)}"


class _Pair(msgspec.Struct):
    conformance: tuple[ServerCheck, ...] = ()


class _Evidence(msgspec.Struct):
    """The checks in the response of `GET /v1/evidence`."""

    data: tuple[_Pair, ...] = ()


class Gateway(Protocol):
    """A running gateway: see `GatewayProcess.checks`."""

    def checks(self) -> list[ServerCheck] | None: ...


def read_checks(body: bytes) -> list[ServerCheck]:
    """The checks in a response of `GET /v1/evidence`."""
    return [check for pair in msgspec.json.decode(body, type=_Evidence).data for check in pair.conformance]


def wait_checked(
    gateway: Gateway, *, workers: int, timeout_s: float, report: Report, stopping: Callable[[], bool]
) -> bool:
    """Waits until the gateway has checked each engine once, because no request speculates there before, and prints the
    results. False when `stopping()` became true first."""
    deadline_s, report_s = time.monotonic() + timeout_s, time.monotonic() + _REPORT_S
    checks: list[ServerCheck] | None = []
    while True:
        try:
            checks = gateway.checks()
        except OSError:
            pass  # retried in the next round
        else:
            if checks is None or all(check.is_settled for check in checks):
                break
        now_s = time.monotonic()
        if now_s > deadline_s:
            break
        if now_s > report_s:
            report("checking …")
            report_s = now_s + _REPORT_S
        if stopping():
            return False
        time.sleep(_POLL_S)
    _report(checks, workers, report)
    return True


def _report(checks: list[ServerCheck] | None, workers: int, report: Report) -> None:
    if checks is None:
        report("the results of engine checks require a key: GET /v1/evidence")
        return
    for check in checks:
        report(str(check))
    if workers > 1:
        report(f"each of the {workers} gateways checks by itself; these are the results of the first")
