"""How long the redaction of 1 MB takes: of code, and of texts that repeat the beginning of something to look for.

Each time is that of the processor, for all views of a text. Goal: at most 1 s for each.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import slipstream_core.manifest.model_pair
from slipstream_core.manifest.capture import Capture
from slipstream_gateway.capture.redaction.redactor import Redactor

from tests.benchmarks.harness import Option, Report, benchmark

HOSTILE = {
    "IBANs": "DE12 ",
    "card numbers": "4111 ",
    "digits": "4",
    "phone numbers": "+49 ",
    "IP addresses": "1.",
    "e-mail addresses": "a@",
    "key blocks": "-----BEGIN PRIVATE KEY-----\n",
    "JSON Web Tokens": "eyJhbGciOi.",
    "URLs": "postgres://a:",
    "commands": "curl -u ",
    "headers": "curl -H 'Authorization: ",
    "Base64": "QUtJQVlMUE1ONUhISEZQWkFNMg ",
    "names": "password ",
    "weak names": "key ",
    "assignments": "token=",
    "open quotes": 'password="',
    "escaped quotes": 'password="\\"',
    "sentences": "password is ",
    "empty lines": "password\n",
    "Kubernetes Secrets": "kind: Secret\ndata:\n a: b\n",
    "percent-encoding": "%25",
    "escapes": "\\u0040",
    "entities": "&amp;",
    "tags": "<a ",
    "Chinese": "密码",
    "Russian": "пароль: ",
    "wide digits": "１",
    "combining marks": "e\u0301",
    "zero-width spaces": "4\u200b",
    "one letter": "a",
    "tables": "| password | a |\n",
    "titles": "password,user;token\t|  ",
    "cells": 'password,"a',
    "SQL": "(password) values (",
    "lists": "password:\n- a\n",
    "codes": "PIN ",
    "input of commands": "echo 'a' | ",
    ".pgpass": "a:5432:b:c:",
    "FTP": "USER a\n",
    "three quotes": "password='''\n",
}


def measure(args: argparse.Namespace, report: Report) -> None:
    redactor, size = Redactor(Capture()), args.bytes
    texts = {name: piece * (size // len(piece.encode())) for name, piece in HOSTILE.items()}
    code = Path(slipstream_core.manifest.model_pair.__file__).read_text(encoding="utf-8")
    for name, text in {"code": code * (size // len(code)), **texts}.items():
        began_s = time.process_time()
        redactor.text(text)
        report.row(name, bytes=len(text.encode()), cpu_s=time.process_time() - began_s)


if __name__ == "__main__":
    benchmark(__file__, __doc__, measure, bytes=Option(1_000_000, 10_000, "of each text"))
