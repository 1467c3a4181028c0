"""The messages of Envoy's external processing protocol, as far as they are used here.

https://www.envoyproxy.io/docs/envoy/latest/api-v3/service/ext_proc/v3/external_processor.proto

The published package with these types, `xds-protos`, replaces files of `opentelemetry-proto` and
`googleapis-common-protos`, which the exporter of traces needs. So the few types are declared here, in a pool of their
own; a test compares them with the published ones. Unknown fields are ignored. Enumerations are integers on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

PACKAGE = "envoy.service.ext_proc.v3"
METHOD = f"/{PACKAGE}.ExternalProcessor/Process"


class BodySendMode(IntEnum):
    """How Envoy sends a body; the values of `ProcessingMode.BodySendMode`."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


OVERWRITE = 2
"""`HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD`."""

# By message: its fields as "name number type"; "*" repeats the type, a name after it is that of its oneof.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "HeaderValue": ("key 1 string", "value 2 bytes", "raw_value 3 bytes"),  # a value need not be UTF-8
    "HeaderMap": ("headers 1 *HeaderValue",),
    "HeaderValueOption": ("header 1 HeaderValue", "append_action 3 int32"),
    "HeaderMutation": ("set_headers 1 *HeaderValueOption", "remove_headers 2 *string"),
    "HttpStatus": ("code 1 int32",),
    "ProtocolConfiguration": ("request_body_mode 1 int32", "response_body_mode 2 int32"),
    "ProcessingMode": ("request_body_mode 3 int32", "response_body_mode 4 int32"),
    "HttpHeaders": ("headers 1 HeaderMap", "end_of_stream 3 bool"),
    "HttpBody": ("body 1 bytes", "end_of_stream 2 bool"),
    "HttpTrailers": ("trailers 1 HeaderMap",),
    "ProcessingRequest": (
        "request_headers 2 HttpHeaders request",
        "response_headers 3 HttpHeaders request",
        "request_body 4 HttpBody request",
        "response_body 5 HttpBody request",
        "request_trailers 6 HttpTrailers request",
        "response_trailers 7 HttpTrailers request",
        "observability_mode 10 bool",
        "protocol_config 11 ProtocolConfiguration",
    ),
    "StreamedBodyResponse": ("body 1 bytes", "end_of_stream 2 bool"),
    "BodyMutation": (
        "body 1 bytes mutation",
        "clear_body 2 bool mutation",
        "streamed_response 3 StreamedBodyResponse mutation",
    ),
    "CommonResponse": (
        "header_mutation 2 HeaderMutation",
        "body_mutation 3 BodyMutation",
        "clear_route_cache 5 bool",
    ),
    "HeadersResponse": ("response 1 CommonResponse",),
    "BodyResponse": ("response 1 CommonResponse",),
    "TrailersResponse": ("header_mutation 1 HeaderMutation",),
    "ImmediateResponse": (
        "status 1 HttpStatus",
        "headers 2 HeaderMutation",
        "body 3 bytes",
        "details 5 string",
    ),
    "ProcessingResponse": (
        "request_headers 1 HeadersResponse response",
        "response_headers 2 HeadersResponse response",
        "request_body 3 BodyResponse response",
        "response_body 4 BodyResponse response",
        "request_trailers 5 TrailersResponse response",
        "response_trailers 6 TrailersResponse response",
        "immediate_response 7 ImmediateResponse response",
        "dynamic_metadata 8 .google.protobuf.Struct",
        "mode_override 9 ProcessingMode",
    ),
}  # fmt: skip
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
}


def _declare(message: descriptor_pb2.DescriptorProto, name: str, fields: tuple[str, ...]) -> None:
    message.name = name
    for text in fields:
        field_name, number, kind, *oneof = text.split()
        field = message.field.add(name=field_name, number=int(number))
        field.label = _Field.LABEL_REPEATED if kind.startswith("*") else _Field.LABEL_OPTIONAL
        kind = kind.removeprefix("*")
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type = _Field.TYPE_MESSAGE
            field.type_name = kind if kind.startswith(".") else f".{PACKAGE}.{kind}"
        if oneof:
            if not message.oneof_decl:
                message.oneof_decl.add(name=oneof[0])
            field.oneof_index = 0


def _classes() -> Mapping[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(
        name="slipstream/ext_proc.proto", package=PACKAGE, syntax="proto3", dependency=[struct_pb2.DESCRIPTOR.name]
    )
    for name, fields in FIELDS.items():
        _declare(file.message_type.add(), name, fields)
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in FIELDS}


_CLASSES = _classes()
ProcessingRequest = _CLASSES["ProcessingRequest"]
ProcessingResponse = _CLASSES["ProcessingResponse"]
CommonResponse = _CLASSES["CommonResponse"]
HeaderMutation = _CLASSES["HeaderMutation"]
HeaderValueOption = _CLASSES["HeaderValueOption"]
