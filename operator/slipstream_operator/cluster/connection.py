"""How the operator reaches the API server: a kubeconfig file, or the service account of its pod."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException
from slipstream_core.errors import CommandError

_LOADERS: Any = config  # its functions have no types
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_CONNECTIONS = 32
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_NAMESPACE = "default"


async def connect(kubeconfig: Path | None, *, context: str | None = None) -> Configuration:
    """Where the API server is and how to log in: `kubeconfig`, else the pod's own account, else the usual file.

    Raises:
        CommandError: no cluster is configured, or the file cannot be used.
    """
    configuration = Configuration()
    try:
        if kubeconfig is None and os.environ.get(_IN_CLUSTER):
            _LOADERS.load_incluster_config(client_configuration=configuration)
        else:
            file = None if kubeconfig is None else str(kubeconfig)
            await _LOADERS.load_kube_config(
                config_file=file, context=context, client_configuration=configuration, persist_config=False
            )
    except (ConfigException, OSError, ValueError, TypeError) as exc:
        raise CommandError(f"no cluster: {exc}", exit_code=2) from exc
    configuration.connection_pool_maxsize = _CONNECTIONS
    # Else each request reads ~/.netrc, in a thread. A kubeconfig's proxy-url is obeyed all the same.
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


def own_namespace() -> str:
    """The namespace of the pod that this runs in; `default` outside a cluster."""
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or _DEFAULT_NAMESPACE
    except OSError:
        return _DEFAULT_NAMESPACE
