"""The container that serves a pair: Triton with Slipstream's engine, or stock vLLM with Slipstream's plugin."""

from __future__ import annotations

from slipstream_core.manifest.engines import VllmEngine
from slipstream_core.manifest.naming import GRPC_PORT_NAME, HTTP_PORT_NAME
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import Serving
from slipstream_core.manifest.sources import located
from slipstream_core.manifest.vllm_command import SCHEDULER, adapter_arguments, engine_arguments, speculation_of

from slipstream_operator.children.container import server_container, verbatim
from slipstream_operator.children.identity import TRITON, VLLM
from slipstream_operator.children.repository import REPOSITORY, sources_folder
from slipstream_operator.types import KubeObject

LEADER_RANK = "0"
_EVERY_ADDRESS = "0.0.0.0"  # nosec B104 # a pod's own network
_EVERY_IPV6_ADDRESS = "ipv6:::"
# The volume has the checkpoints: nothing is looked up elsewhere, and nothing is reported.
_SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
# The gateways, which alone reach the pod, send one key to vLLM and to the plugin's control routes.
_COPIES = {"SLIPSTREAM_VLLM_TOKEN": "VLLM_API_KEY"}


def triton_container(pair: ModelPair, *, image: str, mounts: list[KubeObject], is_ipv6: bool = False) -> KubeObject:
    """The image's own Triton program, with only this pair's model. `is_ipv6`: kubelet and Prometheus reach the pod at
    an IPv6 address.

    On SIGTERM Triton refuses new requests, and ends after its running answers or the exit time-out. Its gRPC port
    serves both address families on `0.0.0.0`. Its HTTP and metrics ports serve one family each: `ipv6:` before an
    address selects IPv6.
    """
    http_address = _EVERY_IPV6_ADDRESS if is_ipv6 else _EVERY_ADDRESS
    arguments = [
        f"--model-repository={REPOSITORY}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={(pair.spec.serving or Serving()).drain_seconds}",
        f"--grpc-address={_EVERY_ADDRESS}",
        f"--http-address={http_address}",
        f"--metrics-address={http_address}",
        f"--grpc-port={TRITON.ports[GRPC_PORT_NAME]}",
        f"--http-port={TRITON.ports[HTTP_PORT_NAME]}",
        f"--metrics-port={TRITON.ports['metrics']}",
        "--log-info=false",  # tables at this level follow the reason of a failure, and would push it out of the status
    ]
    return server_container(pair, TRITON, image=image, command=["tritonserver"], arguments=arguments, mounts=mounts)


def vllm_container(
    pair: ModelPair, *, image: str, mounts: list[KubeObject], rank: str | None = None, is_ipv6: bool = False
) -> KubeObject:
    """The image's `vllm serve`, with the pair's model and draft. `rank` is the node's in a server of several nodes.
    Only the leader among them listens for requests; it is ready once all nodes are. `is_ipv6`: it listens on IPv6 as
    well as IPv4, and not on IPv4 alone, since a node's kernel may lack IPv6."""
    serving = pair.spec.serving or Serving()
    own = [verbatim(argument) for argument in _arguments(pair, serving, is_ipv6=is_ipv6)]
    return server_container(
        pair,
        VLLM,
        image=image,
        command=["vllm", "serve"],
        arguments=[*own, *_group_arguments(serving, rank)],
        mounts=mounts,
        variables=_SETTINGS,
        copies=_COPIES,
        listens=rank in (None, LEADER_RANK),
    )


def _group_arguments(serving: Serving, rank: str | None) -> list[str]:
    """The arguments of a node among several. LeaderWorkerSet sets the variables, which Kubernetes expands."""
    if rank is None:
        return []
    headless = [] if rank == LEADER_RANK else ["--headless"]
    return [f"--nnodes={serving.nodes}", f"--node-rank={rank}", "--master-addr=$(LWS_LEADER_ADDRESS)", *headless]


def _arguments(pair: ModelPair, serving: Serving, *, is_ipv6: bool) -> list[str]:
    """The arguments of `vllm serve`. On SIGTERM vLLM refuses new requests, and ends after its running answers or the
    time-out. Nodes wait for each other as long as a server may start, not PyTorch's 10 minutes. The pair's own
    arguments come last, and may change that."""
    engine, target, folder = pair.spec.engine, pair.spec.target, sources_folder(pair)
    if not isinstance(engine, VllmEngine) or target is None:
        raise TypeError(f"ModelPair/{pair.metadata.name} is not served by vLLM")
    speculation = speculation_of(pair, folder)
    return [
        located(target.source, folder),
        f"--served-model-name={engine.model or pair.spec.model}",
        *(("--host=::",) if is_ipv6 else ()),
        f"--port={VLLM.ports[HTTP_PORT_NAME]}",
        f"--shutdown-timeout={serving.drain_seconds}",
        *((f"--distributed-timeout-seconds={serving.startup_seconds}",) if serving.nodes > 1 else ()),
        *(() if target.tokenizer is None else (f"--tokenizer={located(target.tokenizer, folder)}",)),
        *(() if speculation is None else (*speculation.arguments(), f"--scheduler-cls={SCHEDULER}")),
        *adapter_arguments(pair, folder),
        *engine_arguments(engine),
    ]
