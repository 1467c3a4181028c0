"""The InferencePool of a pair's servers, for a Gateway whose endpoint picker chooses the server of each request.

Names are those of the Gateway API and of its Inference Extension:
https://gateway-api-inference-extension.sigs.k8s.io/reference/spec/
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from slipstream_core.manifest.base import Label, Spec

_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_HOSTNAME = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

MODEL_HEADER = "x-gateway-model-name"
"""The request header with the model's name, as body-based routers set it, for routes."""


class EndpointPicker(Spec, frozen=True, kw_only=True):
    """The endpoint picker of the pool, which you run."""

    name: Annotated[Label, Meta(description="Its Service, in the pair's namespace.")]
    port: Annotated[int, Meta(ge=1, le=65_535, description="Port of the Service.")] = 9002
    failure_mode: Annotated[
        Literal["FailOpen", "FailClose"],
        Meta(description="FailOpen: without the picker any server gets the request. FailClose: the request fails."),
    ] = "FailClose"


class ParentGateway(Spec, frozen=True, kw_only=True):
    """The Gateway that the route belongs to."""

    name: Annotated[str, Meta(pattern=_SUBDOMAIN, max_length=253, description="Name of the Gateway.")]
    namespace: Annotated[Label | None, Meta(description="Namespace of the Gateway. Default: the pair's.")] = None


class InferencePool(Spec, frozen=True, kw_only=True):
    """The pool, and the HTTPRoute that leads to it."""

    endpoint_picker: Annotated[EndpointPicker, Meta(description="What chooses the server of a request.")]
    gateway: Annotated[
        ParentGateway | None,
        Meta(
            description="Gateway for which an HTTPRoute leads requests with the header x-gateway-model-name to the "
            "pool. Default: there is no HTTPRoute."
        ),
    ] = None
    hostnames: Annotated[
        tuple[Annotated[str, Meta(pattern=_HOSTNAME, max_length=253)], ...],
        Meta(max_length=16, description="Hostnames of the HTTPRoute. Default: those of the Gateway."),
    ] = ()
