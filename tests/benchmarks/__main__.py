"""Runs the benchmarks that need no file, one after the other, each in a process of its own: `make bench`.

    python -m tests.benchmarks [NAME ...] [--smoke] [--json FILE]

Compare figures inside one run, never across runs or machines.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import NamedTuple


class Benchmark(NamedTuple):
    """`needs_file`: it is not part of `make bench`, because a file must be named."""

    about: str
    needs_file: bool = False


BENCHMARKS = {
    "quality": Benchmark("held-out answers of the embedded pair, checked"),
    "engine": Benchmark("draft lengths per class and a batch of eight, embedded pair in the engine"),
    "when_it_pays": Benchmark("the data of docs/when-it-pays.md"),
    "seed_equality": Benchmark("sampled answers against plain decoding with the same seed"),
    "constrained": Benchmark("answers with a JSON schema: invalid, different with drafts, tokens per step"),
    "up_restarts": Benchmark("time until `slipstream up` serves again after Triton ended"),
    "engine_verify": Benchmark("the engine's step with the kernel and with the reference, on a GPU", needs_file=True),
    "decide": Benchmark("classify, forecast, decide and learn"),
    "gateway_cost": Benchmark("what the gateway, keys and limits add in front of an OpenAI-compatible server"),
    "gateway_arms": Benchmark("both arms as a client of the running system sees them"),
    "routing": Benchmark("plain, speculative and routed on the mixed workload, alone and under load"),
    "never_slower": Benchmark("classes beside a server that never speculates, by load and by `protect`"),
    "predicted_saving": Benchmark("predicted against measured savings, from runs of slipstream bench", needs_file=True),
    "ext_proc_floods": Benchmark("a worker's health while clients of the filter's gRPC server flood it"),
    "vllm_crossing": Benchmark("streams of one vLLM that cross the load at which draft lengths change"),
    "litellm": Benchmark("what the callback adds to a request through LiteLLM"),
    "redaction": Benchmark("the time that redacting 1 MB of hostile text takes"),
    "console": Benchmark("the console's weight and first paint"),
    "kill": Benchmark("how soon a kill switch lands in every gateway of a cluster"),
    "operator_scale": Benchmark("1,000 pairs from a cold operator, and its writes after that"),
    "record_answers": Benchmark("answers with the draft tokens accepted at each position, for regret", needs_file=True),
    "regret": Benchmark("routing against the per-request oracle, simulated", needs_file=True),
    "simulated_engine": Benchmark("the simulation of regret beside the embedded engine"),
    "rollback": Benchmark("false alarms and detection of the guards, beside the rules that they replaced"),
    "rollback_paired": Benchmark("speculation against its control under load, simulated"),
    "rollback_paired_share": Benchmark("a share of the control that follows the evidence, simulated"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("--smoke", action="store_true", help="the smallest sizes: a quick look")
    parser.add_argument("--json", metavar="FILE", help="append a row of JSON for each benchmark")
    args = parser.parse_args()
    everything = [name for name, one in BENCHMARKS.items() if args.smoke or not one.needs_file]
    options = [*(["--smoke"] if args.smoke else []), *(["--json", args.json] if args.json else [])]
    failed = []
    for name in args.names or everything:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}")
        print(f"\n== {name}: {BENCHMARKS[name].about}", flush=True)
        if subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}", *options], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
