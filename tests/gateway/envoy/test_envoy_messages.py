"""The declared messages against those of the published package, in a process of its own: the package replaces files of
others where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from slipstream_gateway.extproc.messages import FIELDS, PACKAGE

PUBLISHED = "xds-protos==1.85.0"
_MODULES = {
    "HeaderValue": "envoy.config.core.v3.base_pb2",
    "HeaderMap": "envoy.config.core.v3.base_pb2",
    "HeaderValueOption": "envoy.config.core.v3.base_pb2",
    "HttpStatus": "envoy.type.v3.http_status_pb2",
    "ProcessingMode": "envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2",
}
_PRINT = """
import importlib, json, sys
kinds = {8: "bool", 9: "string", 12: "bytes", 14: "int32"}  # an enumeration is an int32 on the wire
found = {}
for name, module in json.loads(sys.argv[1]).items():
    message = importlib.import_module(module).DESCRIPTOR.message_types_by_name[name]
    found[name] = {
        field.name: [field.number, kinds.get(field.type) or field.message_type.name, field.is_repeated]
        for field in message.fields
        if field.type in kinds or field.message_type is not None
    }
print(json.dumps(found))
"""


@pytest.mark.integration
def test_fields_have_the_published_numbers_and_types(tmp_path: Path) -> None:
    download = ["download", "--quiet", "--no-deps", "--dest", str(tmp_path), PUBLISHED]
    subprocess.run([sys.executable, "-m", "pip", *download], check=True)
    [wheel] = tmp_path.glob("*.whl")
    folder = tmp_path / "package"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    modules = {name: _MODULES.get(name, f"{PACKAGE}.external_processor_pb2") for name in FIELDS}
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    found = subprocess.run(
        [sys.executable, "-c", _PRINT, json.dumps(modules)],
        env=environment,
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    published = json.loads(found.stdout)
    for name, fields in FIELDS.items():
        for text in fields:
            field, number, kind, *_ = text.split()
            expected = [int(number), kind.removeprefix("*").rpartition(".")[2], kind.startswith("*")]
            if (name, field) == ("HeaderValue", "value"):  # bytes here: other data planes may write what is not UTF-8
                assert expected == [2, "bytes", False]
                expected[1] = "string"
            assert published[name][field] == expected, (name, field)
