"""A record of the servers and programs that tests start: one line for each start, with the program's name and the file
of the test."""

import os

VARIABLE = "SLIPSTREAM_TEST_STARTS"
# A part of the first words of a command line, and the name of its program.
_PROGRAMS = (
    ("/preloaded/parent.py", "vLLM"),
    ("/preloaded-vllm-", "fork-of-vLLM"),
    ("vllm", "vLLM"),
    ("/tritonserver", "Triton"),
    ("/kube-apiserver", "kube-apiserver"),
    ("redis-server", "Redis"),
    ("envoy", "Envoy"),
    ("prometheus", "Prometheus"),
    ("slipstream_operator", "operator"),
    ("/kopf", "operator"),
    ("/slipstream", "slipstream"),
    ("slipstream_tools", "slipstream"),
    ("kubectl", "kubectl"),
)
_WORDS = 4


def record(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook."""
    if event == "subprocess.Popen" and (file := os.environ.get(VARIABLE)):
        command = arguments[1]
        words = command.split() if isinstance(command, str) else list(map(str, command))  # type: ignore[call-overload]
        start = " ".join(words[:_WORDS])
        name = next((name for part, name in _PROGRAMS if part in start), "other")
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
        with open(file, "a", encoding="utf-8") as log:
            log.write(f"{name}\t{test}\n")
