"""Pod settings of a pair's servers in a cluster, used by the operator for their Deployment; unused on a laptop.

Names follow Kubernetes' core/v1 API, so that knowledge of pods applies.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from slipstream_core.manifest.autoscaling import Autoscaling
from slipstream_core.manifest.base import Spec
from slipstream_core.manifest.canary_checks import CanaryCheck
from slipstream_core.manifest.inference_pool import InferencePool
from slipstream_core.manifest.pods import VOLUMES_WITHOUT_PRIVILEGES, PodSecurityContext, VolumeMount

_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"

# Kubernetes' qualified names and label values, checked here because Kubernetes would refuse the Deployment only later.
_KEY_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_IMAGE_PATTERN = r"^[A-Za-z0-9][-A-Za-z0-9._/:@]*$"

LabelKey = Annotated[str, Meta(pattern=_KEY_PATTERN, max_length=317)]
LabelValue = Annotated[str, Meta(pattern=_VALUE_PATTERN, max_length=63)]
ResourceName = Annotated[str, Meta(pattern=_NAME_PATTERN, max_length=253)]
Quantity = Annotated[
    str, Meta(pattern=_QUANTITY_PATTERN, max_length=32, description="A Kubernetes quantity such as 500m or 16Gi.")
]


class Resources(Spec, frozen=True, kw_only=True):
    """Resource requests and limits of a server, in addition to its GPUs."""

    requests: Annotated[dict[LabelKey, Quantity], Meta(max_length=32, description="Requests: guaranteed amounts.")] = (
        field(default_factory=dict)
    )
    limits: Annotated[dict[LabelKey, Quantity], Meta(max_length=32, description="Limits: maximum amounts.")] = field(
        default_factory=dict
    )


class Toleration(Spec, frozen=True, kw_only=True):
    """A node taint that the servers tolerate, as in a pod's spec."""

    key: Annotated[LabelKey | None, Meta(description="Key of the taint. Default: every taint.")] = None
    operator: Annotated[Literal["Exists", "Equal"], Meta(description="Comparison operator for the value.")] = "Equal"
    value: Annotated[LabelValue | None, Meta(description="Value of the taint, for operator Equal.")] = None
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        Meta(description="Effect of the taint. Default: every effect."),
    ] = None
    toleration_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=2_147_483_647)] | None,
        Meta(description="Duration for which NoExecute is tolerated. Default: without limit."),
    ] = None


class SecretKey(Spec, frozen=True, kw_only=True):
    """An entry of a Secret in the pair's namespace."""

    name: Annotated[str, Meta(pattern=_NAME_PATTERN, max_length=253, description="Name of the Secret.")]
    key: Annotated[str, Meta(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253, description="Key within the Secret.")]


class EnvVar(Spec, frozen=True, kw_only=True):
    """An environment variable of the servers, with a value or with that of a Secret."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256, description="Name of the variable.")]
    value: Annotated[Annotated[str, Meta(max_length=32_768)] | None, Meta(description="Value of the variable.")] = None
    secret: Annotated[SecretKey | None, Meta(description="Entry of a Secret that has the value.")] = None


class Storage(Spec, frozen=True, kw_only=True):
    """The volume with the checkpoints, which every server mounts read-only."""

    claim: Annotated[str, Meta(pattern=_NAME_PATTERN, max_length=253, description="Name of a PersistentVolumeClaim.")]
    mount_path: Annotated[
        str, Meta(pattern=r"^/[^:]*$", max_length=1024, description="Mount path. Sources are relative to it.")
    ] = "/models"


class Canary(Spec, frozen=True, kw_only=True):
    """The comparison of a new revision with the serving one, before it replaces it."""

    share: Annotated[
        float,
        Meta(
            gt=0,
            le=0.5,
            description="Maximum share of the requests that the new revision gets; less while it has so few servers "
            "that each would get more requests than a server of the serving revision.",
        ),
    ] = 0.1
    replicas: Annotated[int, Meta(ge=1, le=1000, description="Number of servers of the new revision.")] = 1
    min_samples: Annotated[
        int, Meta(ge=20, le=1_000_000, description="Minimum number of answers of each revision before promotion.")
    ] = 200
    max_slowdown: Annotated[
        float,
        Meta(
            ge=0,
            le=10,
            description="Maximum increase of the mean time of an answer over the serving revision, as a share.",
        ),
    ] = 0.05
    error_rate: Annotated[
        float, Meta(ge=0, le=1, description="Maximum share of the new revision's requests that fail.")
    ] = 0.05
    parity_loss: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Maximum share of answers that differ from plain ones of the serving revision, if both have "
            "the same target. A tenth of the answers is decoded again and compared, as far as they are comparable.",
        ),
    ] = 0.5
    max_length_change: Annotated[
        float,
        Meta(
            ge=0,
            le=10,
            description="Maximum change of the mean number of output tokens, up or down, as a share of the serving "
            "revision's.",
        ),
    ] = 0.25
    max_content_change: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Maximum difference between the shares of both revisions' answers, by each measure of their "
            "content. 1: no limit.",
        ),
    ] = 0.15
    max_cost_increase: Annotated[
        float,
        Meta(
            ge=0,
            le=10,
            description="Maximum increase of the mean cost of an answer over the serving revision, as a share.",
        ),
    ] = 0.25
    approval: Annotated[
        Literal["Automatic", "Manual"],
        Meta(
            description="Manual: a revision that keeps all limits waits for the annotation "
            "slipstream.dev/approve-revision with its hash."
        ),
    ] = "Automatic"
    checks: Annotated[
        tuple[CanaryCheck, ...],
        Meta(
            max_length=16,
            description="Checks by other services, which must all pass before the promotion.",
        ),
    ] = ()
    timeout_seconds: Annotated[
        int,
        Meta(ge=60, le=2_592_000, description="Maximum duration of the comparison; then the revision is rolled back."),
    ] = 86_400
    retry_token: Annotated[
        Annotated[str, Meta(max_length=256)] | None,
        Meta(description="Any text; a change tries a revision again that was rolled back."),
    ] = None


class Update(Spec, frozen=True, kw_only=True):
    """How servers of a new revision replace the present ones. A revision is everything that servers are started
    with."""

    strategy: Annotated[
        Literal["RollingUpdate", "Recreate"],
        Meta(
            description="RollingUpdate: server by server. Recreate: the present servers end first, for clusters "
            "without spare GPUs; no server runs meanwhile."
        ),
    ] = "RollingUpdate"
    max_surge: Annotated[
        int, Meta(ge=0, le=1000, description="Maximum number of additional servers during a rolling update.")
    ] = 1
    max_unavailable: Annotated[
        int, Meta(ge=0, le=1000, description="Maximum number of missing servers during a rolling update.")
    ] = 0
    canary: Annotated[
        Canary | None,
        Meta(
            description="Comparison of a new revision with the serving one first. Default: none, a new revision "
            "replaces the servers at once."
        ),
    ] = None


class Serving(Spec, frozen=True, kw_only=True):
    """The servers of a pair in a cluster."""

    image: Annotated[
        Annotated[str, Meta(pattern=_IMAGE_PATTERN, max_length=512)] | None,
        Meta(
            description="Container image of the servers: Triton with Slipstream's engine, or vLLM with Slipstream's "
            "plugin. Default: the operator's setting."
        ),
    ] = None
    replicas: Annotated[
        Annotated[int, Meta(ge=0, le=1000)] | None,
        Meta(
            description="Number of servers. Default: by autoscaling; without it one at first, then left to an "
            "autoscaler of your own."
        ),
    ] = None
    autoscaling: Annotated[
        Autoscaling | None, Meta(description="Number of servers by the load, in place of replicas.")
    ] = None
    gpus: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Number of GPUs of each pod; 0: the servers run on CPUs. Slipstream's engine uses one GPU, "
            "vLLM tensorParallelSize times pipelineParallelSize on all nodes of a server.",
        ),
    ] = 1
    nodes: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Number of pods of each server, for models that do not fit one node; more than 1 for engine "
            "kind vllm only, and with the kind LeaderWorkerSet in the cluster.",
        ),
    ] = 1
    resources: Annotated[Resources, Meta(description="CPU, memory and other resources of each server.")] = Resources()
    node_selector: Annotated[
        dict[LabelKey, LabelValue], Meta(max_length=32, description="Labels that a node must have.")
    ] = field(default_factory=dict)
    tolerations: Annotated[
        tuple[Toleration, ...], Meta(max_length=32, description="Taints that the servers tolerate.")
    ] = ()
    affinity: Annotated[dict[str, Any] | None, Meta(description="Scheduling constraints, as in a pod's spec.")] = None
    env: Annotated[
        tuple[EnvVar, ...], Meta(max_length=128, description="Environment variables of the servers' container.")
    ] = ()
    labels: Annotated[
        dict[LabelKey, LabelValue],
        Meta(max_length=32, description="Labels of the pods, such as kueue.x-k8s.io/queue-name."),
    ] = field(default_factory=dict)
    annotations: Annotated[
        dict[LabelKey, Annotated[str, Meta(max_length=4096)]],
        Meta(max_length=32, description="Annotations of the pods."),
    ] = field(default_factory=dict)
    image_pull_secrets: Annotated[
        tuple[ResourceName, ...], Meta(max_length=16, description="Names of Secrets for pulling the image.")
    ] = ()
    priority_class_name: Annotated[ResourceName | None, Meta(description="PriorityClass of the pods.")] = None
    runtime_class_name: Annotated[ResourceName | None, Meta(description="RuntimeClass of the pods.")] = None
    scheduler_name: Annotated[ResourceName | None, Meta(description="Scheduler of the pods.")] = None
    service_account_name: Annotated[
        ResourceName | None, Meta(description="ServiceAccount of the pods. Default: one of the pair, without rights.")
    ] = None
    service_account_annotations: Annotated[
        dict[LabelKey, Annotated[str, Meta(max_length=4096)]],
        Meta(
            max_length=32,
            description="Annotations of the pair's ServiceAccount, such as eks.amazonaws.com/role-arn, by which "
            "downloads need no keys.",
        ),
    ] = field(default_factory=dict)
    pod_security_context: Annotated[
        PodSecurityContext | None, Meta(description="User and groups of the processes. Default: 1000 for each.")
    ] = None
    capabilities: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[A-Z][A-Z_]*$", max_length=64)], ...],
        Meta(max_length=32, description="Linux capabilities of the servers, such as IPC_LOCK for RDMA. Default: none."),
    ] = ()
    volumes: Annotated[
        tuple[dict[str, Any], ...],
        Meta(max_length=32, description="Further volumes, as in a pod's spec, such as a claim for compile caches."),
    ] = ()
    volume_mounts: Annotated[
        tuple[VolumeMount, ...], Meta(max_length=32, description="Mounts of these volumes in the servers' container.")
    ] = ()
    shm_size: Annotated[
        Quantity | None,
        Meta(description="Size of /dev/shm, which counts as memory. Default: 256Mi for Triton, 8Gi for vLLM."),
    ] = None
    tmp_size: Annotated[Quantity, Meta(description="Maximum size of /tmp.")] = "4Gi"
    host_network: Annotated[
        bool,
        Meta(
            description="Whether the servers use the node's network, as some RDMA devices need. The namespace's Pod "
            "Security level must permit it, and NetworkPolicies do not apply."
        ),
    ] = False
    storage: Annotated[
        Storage | None, Meta(description="Volume with the checkpoints; not needed for the embedded pair.")
    ] = None
    inference_pool: Annotated[
        InferencePool | None,
        Meta(
            description="An InferencePool of the servers, for a Gateway with an endpoint picker; for engine kind vllm, "
            "and with that kind in the cluster."
        ),
    ] = None
    update: Annotated[Update, Meta(description="How servers of a new revision replace the present ones.")] = Update()
    startup_seconds: Annotated[
        int, Meta(ge=10, le=86_400, description="Time that a server may take to load before it is restarted.")
    ] = 1800
    drain_seconds: Annotated[
        int,
        Meta(ge=0, le=3600, description="Time that running answers may take to finish when a server is terminated."),
    ] = 120

    @property
    def privileges(self) -> tuple[str, ...]:
        """The fields that give the pods more than the operator's defaults do: another identity, rights beyond the
        `restricted` Pod Security Standard, or the node's network."""
        kinds = {kind for volume in self.volumes for kind in volume if kind != "name"}
        found = {
            "serviceAccountName": self.service_account_name,
            "serviceAccountAnnotations": self.service_account_annotations,
            "capabilities": self.capabilities,
            "hostNetwork": self.host_network,
            "volumes": kinds - VOLUMES_WITHOUT_PRIVILEGES,
        }
        return tuple(name for name, value in found.items() if value)

    @property
    def scales_to_zero(self) -> bool:
        """Whether no server runs while there are no requests, and gateways hold a request until one does."""
        return self.autoscaling is not None and self.autoscaling.min_replicas == 0
