"""Lines of the log in both forms."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
from slipstream_core import logs
logs.configure("warning", sys.argv[1])
log = logging.getLogger("one.part")
log.info("less severe")
log.warning("broken: %s", "a\\nb \\udc80 \u00e9")
try:
    raise ValueError("of three")
except ValueError:
    log.exception("it failed")
logs.tell("listening")
"""


def logged(form: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, form], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


def test_a_line_for_collectors_is_one_object() -> None:
    broken, failed, told = (json.loads(line) for line in logged("json"))
    assert broken.pop("time").endswith("Z")
    assert broken == {"level": "warning", "logger": "one.part", "message": "broken: a\nb \udc80 \u00e9"}
    assert (failed["level"], failed["message"]) == ("error", "it failed")
    assert failed["exception"].startswith("Traceback")
    assert failed["exception"].endswith("ValueError: of three")
    assert (told["level"], told["message"]) == ("info", "listening")


@pytest.mark.parametrize("part", ["WARNING one.part: broken: a", "ERROR one.part: it failed"])
def test_a_line_for_people_begins_with_its_time(part: str) -> None:
    [line] = [line for line in logged("text") if part in line]
    assert line[:4].isdigit()
