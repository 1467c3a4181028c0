"""The share of clean texts that stay as they are: 20 lines each, of the code and documentation of installed packages.

They have no secrets, but real e-mail and IP addresses, which do not count.
"""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

from slipstream_core.manifest.capture import Capture
from slipstream_gateway.capture.redaction.redactor import Redactor

TEXTS, LINES = 1000, 20
GOAL = 0.98
# Their job is to name passwords, or to hold planted ones.
EXCLUDED = ("faker", "kingfisher_sdk", "detect_secrets", "trustme")


def _clean_texts() -> list[str]:
    packages = Path(sysconfig.get_path("purelib"))
    files = sorted(
        path
        for path in packages.rglob("*")
        if path.suffix in (".py", ".md", ".rst") and not path.relative_to(packages).as_posix().startswith(EXCLUDED)
    )
    rng, texts = random.Random(7), list[str]()
    while len(texts) < TEXTS:
        lines = rng.choice(files).read_text(encoding="utf-8", errors="replace").splitlines()
        if len(lines) >= LINES:
            begin = rng.randrange(len(lines) - LINES + 1)
            texts.append("\n".join(lines[begin : begin + LINES]))
    return texts


def test_clean_texts_stay() -> None:
    redactor = Redactor(Capture(redact=("secret", "card", "iban", "phone")))
    texts = _clean_texts()
    same = sum(redactor.text(text) == text for text in texts)
    print(f"{same} of {len(texts)} stay")
    assert same / len(texts) >= GOAL
