"""What is served and when it speculates: `ModelPair` and `SpeculationPolicy`, parsed, checked and compiled.

The only configuration of behaviour, the same as a file and as custom resources. `load_file` for one look,
`ManifestFile` to follow a file, `parse` and `compile_table` for the parts.
"""

from slipstream_gateway.manifest.addresses import check_address
from slipstream_gateway.manifest.capabilities import Capabilities
from slipstream_gateway.manifest.files import EMBEDDED_MANIFEST, ManifestFile, compile_file, load_file, read_file
from slipstream_gateway.manifest.objects import (
    API_VERSION,
    ClassRule,
    Draft,
    ExternalArm,
    ExternalEngine,
    ManifestObject,
    ModelPair,
    Protocol,
    SlipstreamEngine,
    SpeculationPolicy,
    Target,
)
from slipstream_gateway.manifest.parse import parse, parse_documents
from slipstream_gateway.manifest.schema import schema
from slipstream_gateway.manifest.table import (
    LOCAL_TRITON,
    Backend,
    PairStatus,
    Route,
    RoutingTable,
    compile_table,
    resolve_source,
    triton_model_name,
    with_endpoints,
)

__all__ = [
    "API_VERSION",
    "EMBEDDED_MANIFEST",
    "LOCAL_TRITON",
    "Backend",
    "Capabilities",
    "ClassRule",
    "Draft",
    "ExternalArm",
    "ExternalEngine",
    "ManifestFile",
    "ManifestObject",
    "ModelPair",
    "PairStatus",
    "Protocol",
    "Route",
    "RoutingTable",
    "SlipstreamEngine",
    "SpeculationPolicy",
    "Target",
    "check_address",
    "compile_file",
    "compile_table",
    "load_file",
    "parse",
    "parse_documents",
    "read_file",
    "resolve_source",
    "schema",
    "triton_model_name",
    "with_endpoints",
]
