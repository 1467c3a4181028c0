"""Keys as a table for people and as JSON for programs; never a hash."""

from __future__ import annotations

from datetime import datetime

import msgspec
from slipstream_gateway.access.records import AccessFile, KeyRecord, aware


def state(record: KeyRecord, now: datetime) -> str:
    if record.revoked is not None:
        return "revoked"
    return "expired" if record.expires is not None and aware(record.expires) <= now else "valid"


def as_json(record: KeyRecord, now: datetime) -> dict[str, object]:
    """All fields of a key except its hashes."""
    shown: dict[str, object] = msgspec.to_builtins(record)
    del shown["hash"]
    if record.former is not None:
        shown["former"] = {"until": msgspec.to_builtins(record.former.until)}
    return {**shown, "state": state(record, now)}


def table(file: AccessFile, now: datetime) -> str:
    """One line per key."""
    rows = [("ID", "NAME", "STATE", "MODELS", "PRIORITY", "LIMITS", "EXPIRES"), *(_row(r, now) for r in file.keys)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(record: KeyRecord, now: datetime) -> tuple[str, ...]:
    scopes = record.scopes
    models = ",".join(scopes.models) or "-"
    return (
        record.id,
        record.name or "-",
        state(record, now),
        f"{models} +admin" if scopes.admin else models,
        str(record.priority),
        _limits(record) or "-",
        f"{record.expires:%Y-%m-%d %H:%M}" if record.expires is not None else "-",
    )


def _limits(record: KeyRecord) -> str:
    limits = record.limits
    parts = (
        (limits.requests_per_minute, "rpm"),
        (limits.tokens_per_minute, "tpm"),
        (limits.concurrent, "at once"),
        (limits.usd_per_day, "USD/day"),
    )
    return ", ".join(f"{value:g} {unit}" if unit == "USD/day" else f"{value} {unit}" for value, unit in parts if value)
