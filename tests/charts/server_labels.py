"""The labels of the servers that an operator runs."""

from __future__ import annotations

from slipstream_operator.children.identity import Owner, Software, labels


def server_labels(software: Software) -> tuple[dict[str, str], dict[str, str]]:
    """Those of the serving revision of a pair, and those of a new one beside it."""
    made = [
        labels(Owner(name="acme", namespace="prod", uid="u", software=software, revision=revision))
        for revision in ("", "0123456789abcdef")
    ]
    assert made[0] != made[1]
    return made[0], made[1]
