"""Finds the keys of services by the rules of Kingfisher's catalogue (MongoDB, Apache-2.0), which its releases maintain.

Its scanner, on Vectorscan, looks for all rules at once. It asks no network. The catalogue's filters are left out: they
spare a person the keys that may be examples or are of no use alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from kingfisher_sdk import Rules, Scanner

Span = tuple[int, int]
_WHOLE_URLS = "betterleaks.generic-credential-uri"  # `forms.urls` leaves their hosts
_TIMEOUT_S = 5.0
_WINDOW, _OVERLAP = 64 * 1024, 4 * 1024  # some rules take quadratic time, but not of more than a window


class ServiceKeys:
    """The compiled rules, for all pairs of a process: 60 MB. Seconds to make, and less with what an earlier process has
    left in the user's cache."""

    def __init__(self) -> None:
        catalogue = Rules(confidence="low")
        details = [catalogue.detail(rule["id"]) for rule in catalogue.metadata() if rule["id"] != _WHOLE_URLS]
        rules = [{**{name: each[name] for name in ("id", "name", "pattern")}, "confidence": "low"} for each in details]
        with TemporaryDirectory() as folder:
            file = Path(folder, "rules.yml")  # YAML has all of JSON
            file.write_text(json.dumps({"rules": rules}), encoding="utf-8")
            self._scanner = Scanner(Rules([file], builtins=False, confidence="low"), base64=False)

    def find(self, text: str) -> Iterator[Span]:
        """Where `text` has a key, of 4 KiB at most. Raises `TimeoutError`."""
        data = text.encode("ascii", "replace")  # one byte a character, as no key has others
        for start in range(0, max(1, len(data) - _OVERLAP), _WINDOW - _OVERLAP):
            for finding in self._scanner.scan(data[start : start + _WINDOW], timeout=_TIMEOUT_S):
                place = finding.location
                yield start + place["start_offset"], start + place["end_offset"]


@cache
def service_keys() -> ServiceKeys:
    """Those of this process."""
    return ServiceKeys()
