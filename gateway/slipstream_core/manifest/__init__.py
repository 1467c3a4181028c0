"""The two manifest kinds, `ModelPair` (what is served) and `SpeculationPolicy` (when it speculates): types, validation,
compilation.

They are the only configuration of behaviour, and the same YAML works as a file and as custom resources. `load_file`
loads a file once; `ManifestFile` follows it. `parse` and `compile_table` are the single steps. `parse_resource`,
`resolve` and `compile_route` are the steps for the objects of a cluster.
"""

from slipstream_core.manifest.addresses import check_address
from slipstream_core.manifest.capabilities import Capabilities
from slipstream_core.manifest.check import Problem
from slipstream_core.manifest.engines import (
    ExternalArm,
    ExternalEngine,
    PlainServers,
    SlipstreamEngine,
    VllmEngine,
    WireProtocol,
)
from slipstream_core.manifest.files import EMBEDDED_MANIFEST, ManifestFile, compile_file, load_file, read_file
from slipstream_core.manifest.fingerprint import SpecHashes
from slipstream_core.manifest.model_pair import API_VERSION, Draft, ModelPair, Target
from slipstream_core.manifest.parse import parse, parse_documents
from slipstream_core.manifest.resolve import Resolution, kills_of, resolve
from slipstream_core.manifest.resources import ParsedResource, parse_resource, raw_kill_switch
from slipstream_core.manifest.speculation_policy import ClassRule, ManifestObject, SpeculationPolicy
from slipstream_core.manifest.standing import ClassStanding, PairStatus, Standing, pair_status_of, standing_of
from slipstream_core.manifest.status import Phase
from slipstream_core.manifest.table import (
    LOCAL,
    LOCAL_TRITON,
    LOCAL_VLLM,
    Backend,
    Route,
    RoutingTable,
    compile_route,
    compile_table,
    resolve_source,
    table_of,
    triton_model_name,
    with_endpoints,
)

__all__ = [
    "API_VERSION",
    "EMBEDDED_MANIFEST",
    "LOCAL",
    "LOCAL_TRITON",
    "LOCAL_VLLM",
    "Backend",
    "Capabilities",
    "ClassRule",
    "ClassStanding",
    "Draft",
    "ExternalArm",
    "ExternalEngine",
    "ManifestFile",
    "ManifestObject",
    "ModelPair",
    "PairStatus",
    "ParsedResource",
    "Phase",
    "PlainServers",
    "Problem",
    "Resolution",
    "Route",
    "RoutingTable",
    "SlipstreamEngine",
    "SpecHashes",
    "SpeculationPolicy",
    "Standing",
    "Target",
    "VllmEngine",
    "WireProtocol",
    "check_address",
    "compile_file",
    "compile_route",
    "compile_table",
    "kills_of",
    "load_file",
    "pair_status_of",
    "parse",
    "parse_documents",
    "parse_resource",
    "raw_kill_switch",
    "read_file",
    "resolve",
    "resolve_source",
    "standing_of",
    "table_of",
    "triton_model_name",
    "with_endpoints",
]
