"""All pages of the reference, by file name."""

from __future__ import annotations

import json

from docs.generate.http import http
from docs.generate.metrics import metrics
from docs.generate.openapi import document
from docs.generate.options import options
from docs.generate.reasons import reasons
from docs.generate.resources import resources


def pages() -> dict[str, str]:
    """What `docs/reference` holds. A test says so when a page there is not what the code makes."""
    return {
        "openapi.json": json.dumps(document(), indent=2, ensure_ascii=False) + "\n",
        "http.md": http(),
        "metrics.md": metrics(),
        "options.md": options(),
        "reasons.md": reasons(),
        "resources.md": resources(),
    }
