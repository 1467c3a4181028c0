"""`python -m deploy.generate` writes the dashboards, and the chart's copies of `deploy`'s monitoring files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from deploy.generate.dashboards import overview, speculation
from deploy.generate.dashboards_platform import access, operator
from deploy.generate.dashboards_plugin import plugin
from deploy.generate.dashboards_vllm import vllm
from deploy.generate.grafana import Json
from deploy.generate.serving import serving

ROOT = Path(__file__).resolve().parents[2]
ALERTS = Path("deploy/alerts/slipstream.yaml")


def dashboards() -> dict[str, Json]:
    """By file name."""
    return {
        "slipstream.json": overview(),
        "slipstream-speculation.json": speculation(),
        "slipstream-serving.json": serving(),
        "slipstream-vllm.json": vllm(),
        "slipstream-plugin.json": plugin(),
        "slipstream-access.json": access(),
        "slipstream-operator.json": operator(),
    }


def files() -> dict[Path, str]:
    """All generated files, by path from the repository's root."""
    made: dict[Path, str] = {}
    for name, page in dashboards().items():
        text = json.dumps(page, indent=2, ensure_ascii=False) + "\n"
        made[Path("deploy/dashboards") / name] = made[Path("charts/slipstream/dashboards") / name] = text
    made[Path("charts/slipstream/alerts") / ALERTS.name] = (ROOT / ALERTS).read_text(encoding="utf-8")
    return made


def main() -> int:
    for path, text in files().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
