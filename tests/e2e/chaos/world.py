"""What one run of the harness stands on: two Triton replicas, a paced upstream, Redis, a gateway, and what is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from slipstream_core.manifest import EMBEDDED_MANIFEST, load_file
from slipstream_tools.up.model_repository import write_repository
from slipstream_tools.up.servers import local_pairs
from slipstream_tools.up.triton_server import TritonPorts

from tests.e2e.chaos.asks import PROMPTS, mixed
from tests.e2e.chaos.expected import Recorded, record
from tests.e2e.chaos.load import Load
from tests.e2e.chaos.paced_server import PacedServer
from tests.e2e.chaos.processes import Gateway, Replica, from_file
from tests.e2e.chaos.table import Reading
from tests.e2e.chaos.verdicts import Tally
from tests.support.manifests import arm, external, pair_yaml
from tests.support.network import Network
from tests.support.ports import lasting_ports
from tests.support.redis_server import RedisServer

CLIENTS = 8
REPLICAS = 2


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """How much of each fault is played."""

    calm_answers: int = 40
    kills: int = 6
    stalls: int = 3
    redis_fault_s: float = 6.0
    api_server_gone_s: float = 60.0
    streams: int = 200
    stream_words: int = 80
    slow_readers: int = 100
    slow_read_s: float = 15.0
    vanishing: int = 1_000
    vanishing_engine: int = 20
    network_s: float = 12.0
    soak_minutes: float = 60.0


FULL = Scale(
    kills=50,
    stalls=20,
    redis_fault_s=30.0,
    api_server_gone_s=600.0,
    slow_readers=500,
    slow_read_s=60.0,
    vanishing=10_000,
    vanishing_engine=100,
    network_s=60.0,
)


class World:
    """The running parts. A fault leaves them as it found them; `heal` sees to it."""

    def __init__(
        self,
        *,
        folder: Path,
        replicas: Sequence[Replica],
        standing: Sequence[str],
        gateway: Gateway,
        redis: RedisServer,
        redis_relay: Network,
        paced: PacedServer,
    ) -> None:
        """`standing` are the addresses of further replicas, to which nothing is done; `redis_relay` is where gateways
        find Redis."""
        self.folder, self.gateway, self.paced = folder, gateway, paced
        self.redis, self.redis_relay = redis, redis_relay
        self.replicas = tuple(replicas)
        self.endpoints = (*standing, *(replica.endpoint for replica in replicas))
        self.manifest = folder / "pairs.yaml"
        self.recorded = Recorded(asks=(), expected={})

    def learn(self, prompts: int = PROMPTS) -> None:
        """Record what is right."""
        self.recorded = record(self.gateway.url, mixed(prompts))

    def load(self, *urls: str, clients: int = CLIENTS) -> Load:
        """The mixed load before `urls`, or before the one gateway."""
        return Load(urls or (self.gateway.url,), self.recorded.asks, clients=clients)

    def tally(self, load: Load) -> Tally:
        return Tally.of(load.answers, self.recorded.expected)

    def heal(self) -> None:
        """Every part serves again."""
        for replica in self.replicas:
            replica.heal()
        self.redis.heal()

    def new_gateway(self, name: str) -> Gateway:
        """A further gateway of the same kind. The caller starts and stops it."""
        return Gateway(
            name=name,
            folder=self.folder,
            source=from_file(self.manifest, self.endpoints),
            port=lasting_ports(1)[0],
            redis_url=_redis_url(self.redis_relay),
        )


Fault = Callable[[World, Scale], Iterator[Reading]]


@contextmanager
def running_world(folder: Path, *, replicas: int = REPLICAS, standing: Sequence[str] = ()) -> Iterator[World]:
    """Start everything, and end it by its id, whatever happens."""
    with ExitStack() as stack:
        servers = _replicas(folder, replicas, stack)
        paced = stack.enter_context(PacedServer())
        paced_pair = pair_yaml(external(arm(paced.url, model="paced")), name="paced", model="paced")
        (folder / "pairs.yaml").write_text(f"{EMBEDDED_MANIFEST.read_text()}---\n{paced_pair}")
        redis = RedisServer(folder, lasting_ports(1)[0])
        stack.callback(redis.stop)
        redis_relay = stack.enter_context(Network(redis.port))
        gateway = Gateway(
            name="gateway",
            folder=folder,
            source=from_file(folder / "pairs.yaml", (*standing, *(server.endpoint for server in servers))),
            port=lasting_ports(1)[0],
            redis_url=_redis_url(redis_relay),
        )
        stack.callback(gateway.stop)
        for server in servers:
            server.wait_ready()
        gateway.start()
        yield World(
            folder=folder,
            replicas=servers,
            standing=standing,
            gateway=gateway,
            redis=redis,
            redis_relay=redis_relay,
            paced=paced,
        )


def _redis_url(relay: Network) -> str:
    return f"redis://127.0.0.1:{relay.port}/0"


def _replicas(folder: Path, count: int, stack: ExitStack) -> list[Replica]:
    table = load_file(EMBEDDED_MANIFEST)
    repository = write_repository(local_pairs(table), manifest_folder=table.folder, folder=folder / "model_repository")
    replicas = []
    for number in range(count):
        grpc, http, metrics = lasting_ports(3)
        ports = TritonPorts(grpc=grpc, http=http, metrics=metrics)
        replica = Replica(repository=repository, folder=folder / f"triton-{number}", ports=ports)
        stack.callback(replica.stop)
        replica.start()
        replicas.append(replica)
    return replicas
