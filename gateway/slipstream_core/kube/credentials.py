"""The credentials of a kubeconfig, or of the service account of the pod that this process runs in."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from yaml import YAMLError

from slipstream_core.kube.environment import own_namespace
from slipstream_core.kube.errors import NoCredentials

DEFAULT_NAMESPACE = "default"

# The loader does not validate a kubeconfig: a list or a number in place of a mapping raises whatever Python does.
_UNUSABLE = (ConfigException, OSError, YAMLError, LookupError, ValueError, TypeError, AttributeError)


class Credentials(NamedTuple):
    """The API server's address with what it takes to log in, and the namespace of the kubeconfig or the pod."""

    configuration: Configuration
    namespace: str


async def load_credentials(kubeconfig: Path | None, *, context: str | None = None) -> Credentials:
    """The credentials of `kubeconfig`; None: of the pod's service account, whose token the client keeps fresh.

    Raises:
        NoCredentials: they cannot be used, whatever is wrong with them.
    """
    configuration = Configuration()
    try:
        if kubeconfig is None:
            load_incluster_config(configuration)
            namespace = own_namespace()
        else:
            # Never persisted: the file is the user's, and would lose its comments.
            loader = await load_kube_config(str(kubeconfig), context, configuration, persist_config=False)
            namespace = loader.current_context["context"].get("namespace")
        if not str(configuration.host).startswith(("http://", "https://")):
            raise ConfigException(f"its server is {configuration.host!r}, not an http(s) address")
        if not isinstance(configuration.proxy, str | None):
            raise ConfigException(f"its proxy-url is {configuration.proxy!r}, not text")
    except _UNUSABLE as exc:
        raise unusable(kubeconfig, exc) from exc
    return Credentials(configuration, str(namespace or DEFAULT_NAMESPACE))


def unusable(kubeconfig: Path | None, cause: Exception) -> NoCredentials:
    """The error for credentials that raised `cause`."""
    name = "the pod's service account" if kubeconfig is None else f"the kubeconfig {kubeconfig}"
    reason = " ".join(str(cause).split()) or type(cause).__name__  # PyYAML's messages have several lines
    return NoCredentials(f"{name} cannot be used: {reason}")
