"""The container that serves a pair: stock vLLM with Slipstream's plugin, and vLLM's own HTTP server."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from slipstream_core.manifest.engines import VllmEngine
from slipstream_core.manifest.naming import HTTP_PORT_NAME
from slipstream_core.manifest.objects import ModelPair
from slipstream_core.manifest.serving import Serving
from slipstream_core.manifest.sources import located
from slipstream_core.manifest.vllm_command import SCHEDULER, adapter_arguments, engine_arguments, speculation_of

from slipstream_operator.children.identity import VLLM
from slipstream_operator.children.repository import sources_folder
from slipstream_operator.children.server import server_container

LEADER_RANK = "0"
# The volume has the checkpoints: nothing is looked up elsewhere, and nothing is reported.
_SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def vllm_container(
    pair: ModelPair, *, image: str, mounts: list[dict[str, Any]], rank: str | None = None, is_ipv6: bool = False
) -> dict[str, Any]:
    """The container: the image's `vllm serve`, with the pair's model and draft. `rank` is the node's in a server of
    several nodes. Only the leader among them listens for requests; it is ready once all nodes are. `is_ipv6`: it
    listens on IPv6 as well as IPv4, and not on IPv4 alone, since a node's kernel may lack IPv6."""
    serving = pair.spec.serving or Serving()
    own = [_verbatim(argument) for argument in _arguments(pair, serving, is_ipv6=is_ipv6)]
    return server_container(
        pair,
        VLLM,
        image=image,
        command=["vllm", "serve"],
        arguments=[*own, *_group_arguments(serving, rank)],
        mounts=mounts,
        variables=_SETTINGS,
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
        *_tokenizer(target.tokenizer, folder),
        *(speculation.arguments() if speculation is not None else ()),
        *((f"--scheduler-cls={SCHEDULER}",) if speculation is not None else ()),
        *adapter_arguments(pair, folder),
        *engine_arguments(engine),
    ]


def _tokenizer(source: str | None, folder: PurePath) -> list[str]:
    return [] if source is None else [f"--tokenizer={located(source, folder)}"]


def _verbatim(argument: str) -> str:
    """`argument`, escaped: Kubernetes expands $(NAME) in arguments."""
    return argument.replace("$", "$$")
