"""The cluster that the environment points to. No package is needed: options are checked before `kubernetes` loads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from slipstream_core.errors import CommandError

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace(environ: Mapping[str, str] = os.environ) -> str | None:
    """The namespace of the pod that this process runs in, from `POD_NAMESPACE` or the service account; None outside a
    cluster."""
    if named := environ.get("POD_NAMESPACE"):
        return named
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def own_address(environ: Mapping[str, str] = os.environ) -> str | None:
    """The first address of the pod that this process runs in, from `POD_IP`; None if it is not set."""
    return environ.get("POD_IP") or None


def default_kubeconfig(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The kubeconfig of a service that was given none: None within a cluster, else `KUBECONFIG` or the user's own."""
    return None if environ.get("KUBERNETES_SERVICE_HOST") else _user_kubeconfig(environ)


def kubeconfig_like_kubectl(given: Path | None, *, context: str | None) -> Path | None:
    """The kubeconfig of a command: `given`, else `KUBECONFIG`, else the user's own, else None for the pod's account.

    Raises:
        CommandError: there is none of them.
    """
    path = given or _user_kubeconfig(os.environ)
    if any(Path(part).expanduser().is_file() for part in str(path).split(os.pathsep)):
        return path
    if given is None and context is None and own_namespace() is not None:
        return None
    raise CommandError(f"no cluster is configured: there is no kubeconfig at {path}", exit_code=2)


def _user_kubeconfig(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
