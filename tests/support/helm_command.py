"""`helm` for tests that execute documented commands: Helm's own library renders, `kubectl` applies.

    python -m tests.support.helm_command upgrade --install NAME CHART --namespace NS [--create-namespace] [--set K=V]

There is no release history and no hook; `--wait` waits for nothing, because there are no kubelets. Objects of APIs
that the test server is too old for are left out. An option that is not here is refused.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

import yaml
from helm_python import Chart, Config, parse_set_string

from tests.support.manifests import JSON


def main() -> None:
    parser = argparse.ArgumentParser(prog="helm", allow_abbrev=False)
    verbs = parser.add_subparsers(required=True)
    upgrade = verbs.add_parser("upgrade", allow_abbrev=False)
    upgrade.add_argument("name")
    upgrade.add_argument("chart", type=Path)
    upgrade.add_argument("--namespace", required=True)
    upgrade.add_argument("--set", action="append", default=[])
    for flag in ("--install", "--create-namespace", "--wait", "--reset-then-reuse-values"):
        upgrade.add_argument(flag, action="store_true")
    upgrade.set_defaults(run=_upgrade)
    uninstall = verbs.add_parser("uninstall", allow_abbrev=False)
    uninstall.add_argument("name")
    uninstall.add_argument("--namespace", required=True)
    uninstall.set_defaults(run=_uninstall)
    args = parser.parse_args()
    args.run(args)


def _upgrade(args: argparse.Namespace) -> None:
    release = _release(args)
    if not args.install and not release.exists():
        raise SystemExit(f"Error: UPGRADE FAILED: {args.name!r} has no deployed releases")
    if args.create_namespace:
        _kubectl("create", "namespace", args.namespace, may_fail=True)
    values = (
        json.loads(release.read_text())["values"]
        if args.reset_then_reuse_values
        else parse_set_string(",".join(args.set))
    )
    objects = _render(args, values)
    _kubectl("apply", "--validate=false", "--filename=-", objects=objects)
    release.write_text(json.dumps({"values": values, "objects": objects}))
    print(f'Release "{args.name}" has been upgraded.')


def _render(args: argparse.Namespace, values: JSON) -> list[JSON]:
    with Chart.load(args.chart) as chart, _config(args.namespace) as config:
        chart.validate_schema(values)
        files = config.render(chart, values, name=args.name, namespace=args.namespace, is_upgrade=True)
    objects = [item for path, text in files.items() if path.endswith(".yaml") for item in yaml.safe_load_all(text)]
    known = set(_kubectl("api-versions").split())
    return [item for item in objects if item and item["apiVersion"] in known and not _is_hook(item)]


def _config(namespace: str) -> Config:
    return Config(kubeconfig_path=os.environ["KUBECONFIG"], namespace=namespace)


def _is_hook(item: JSON) -> bool:
    return "helm.sh/hook" in item["metadata"].get("annotations", {})


def _uninstall(args: argparse.Namespace) -> None:
    """All objects but those that say `keep`."""
    release = _release(args)
    objects = json.loads(release.read_text())["objects"]
    gone = [
        item for item in objects if item["metadata"].get("annotations", {}).get("helm.sh/resource-policy") != "keep"
    ]
    if gone:
        _kubectl("delete", "--wait=false", "--filename=-", objects=gone)
    release.unlink()


def _release(args: argparse.Namespace) -> Path:
    """Where the values and objects of a release are kept."""
    return Path(os.environ["HOME"]) / f"release-{args.namespace}-{args.name}.json"


def _kubectl(*arguments: str, objects: list[JSON] | None = None, may_fail: bool = False) -> str:
    text = yaml.safe_dump_all(objects) if objects else None
    done = subprocess.run(["kubectl", *arguments], input=text, capture_output=True, text=True, check=False)
    if done.returncode and not may_fail:
        raise SystemExit(f"Error: kubectl {' '.join(arguments)}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
