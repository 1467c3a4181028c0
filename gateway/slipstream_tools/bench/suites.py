"""`--suite`: requests, model and plan of a published comparison, so that a figure can be measured again by one option.

`spec-bench`: the questions of Spec-Bench (Xia et al., ACL Findings 2024), whose file its repository offers, on
SmolLM2-135M-Instruct. Of each question the first turn is asked, greedily; its category is the class. `mixed`: the
shipped contact-centre workload on the embedded pair.
"""

from __future__ import annotations

from typing import Any

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.manifest import EMBEDDED_MANIFEST
from slipstream_core.manifest.engines import SlipstreamEngine

from slipstream_tools.bench.manifests import BenchManifest
from slipstream_tools.up.smollm2 import FOLDER, smollm2_folder

SPEC_BENCH, MIXED = "spec-bench", "mixed"
SUITES = (SPEC_BENCH, MIXED)
ENGINES = ("slipstream", "vllm")
DTYPES = ("float32", "bfloat16")
MODES = "plain,speculative,routed"
DRAFT_LENGTHS = (1, 3, 5)
CONCURRENCY = (1, 4, 8, 16)
OPEN_LOOP_PLACES = 16
MIXED_REQUESTS = "embedded:200"
_CONTEXT_TOKENS = 2048


def with_suite(values: dict[str, Any], suite: str, engine: str | None) -> dict[str, Any]:
    """Option values with the suite's in place of those that were not given. Raises `CommandError`."""
    if suite == SPEC_BENCH and "requests" not in values:
        raise CommandError(
            "--suite spec-bench needs --requests FILE: the question.jsonl of Spec-Bench's repository", exit_code=2
        )
    if engine == "vllm" and "url" in values:
        message = "--engine configures the servers that bench starts and cannot be combined with --url"
        raise CommandError(message, exit_code=2)
    if engine == "vllm" and "dtype" in values:
        raise CommandError("--dtype is for the embedded engine and cannot be combined with --engine vllm", exit_code=2)
    name = ("smollm2" if suite == SPEC_BENCH else "embedded") + ("-vllm" if engine == "vllm" else "")
    presets: dict[str, Any] = {"modes": MODES, "requests": MIXED_REQUESTS}
    if "arrivals" not in values:
        presets["concurrency"] = CONCURRENCY
    if "modes" not in values:
        presets["draft_lengths"] = DRAFT_LENGTHS
    if "url" not in values:
        presets["manifest"] = EMBEDDED_MANIFEST.parent / f"{name}.yaml"
    return presets | values


def fetched(manifest: BenchManifest, places: int, dtype: str | None = None) -> BenchManifest:
    """`manifest` with SmolLM2's folder, downloaded if its pair names it, and with `places` for requests in flight and
    weights of `dtype`; None keeps the manifest's."""
    spec = manifest.pair.spec
    if spec.target is not None and spec.target.source == FOLDER:
        source = str(smollm2_folder(lambda line: None))
        spec = msgspec.structs.replace(spec, target=msgspec.structs.replace(spec.target, source=source))
    if isinstance(spec.engine, SlipstreamEngine):
        engine = msgspec.structs.replace(spec.engine, max_concurrency=places, context_tokens=_CONTEXT_TOKENS)
        if dtype is not None:
            engine = msgspec.structs.replace(engine, dtype=dtype)
        spec = msgspec.structs.replace(spec, engine=engine)
    pair = msgspec.structs.replace(manifest.pair, spec=spec)
    objects = tuple(pair if item is manifest.pair else item for item in manifest.objects)
    return msgspec.structs.replace(manifest, pair=pair, objects=objects)
