"""What is made from code and measurements: `python -m docs.generate` writes `docs/reference`, the
rooms in `docs/architecture.md` and `docs/images/*.svg`."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.generate.features import features
from docs.generate.figures import figures
from docs.generate.pages import pages
from docs.generate.rooms import architecture

DOCS = Path(__file__).resolve().parent.parent


def files() -> dict[Path, str]:
    """Everything that is made, by path below `docs`."""
    made = {Path("reference") / name: text for name, text in pages().items()}
    made[Path("reference", "features.md")] = features()
    made[Path("architecture.md")] = architecture()
    return made | {Path("images") / name: text for name, text in figures().items()}


def main() -> int:
    for path, text in files().items():
        (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
