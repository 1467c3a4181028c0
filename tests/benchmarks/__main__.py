"""Run every benchmark, one after the other, each in a process of its own: `make bench`.

    python -m tests.benchmarks [NAME ...]

Figures are ratios or differences inside one run; compare none of them across runs or machines.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

BENCHMARKS = {
    "quality": "held-out answers of the embedded pair, checked",
    "engine": "draft lengths per class and batch of eight, embedded pair in the engine",
    "draft_allocation": "draft tokens that the engine chooses in each step, beside every fixed draft length",
    "seed_equality": "sampled answers against plain decoding with the same seed, whatever happens to their requests",
    "verify": "the verification step against a plain softmax and draw",
    "kernels": "the verification kernel: predictions, and on a GPU the figures",
    "engine_verify": "the engine's step with the kernel and with the reference, on a GPU",
    "decide": "classify and decide",
    "gateway_openai": "what the gateway adds in front of an OpenAI-compatible server",
    "gateway_triton": "what the gateway adds in front of Triton",
    "gateway_arms": "both arms as a client of the running system sees them",
    "routing": "plain, speculative and routed on the mixed workload, alone and under load",
    "vllm_routing": "plain, every fixed draft length and routed on vLLM, at three loads",
    "vllm_engines": "tokens per second of the embedded engine and of vLLM on the same weights",
    "vllm_length_zero": "what draft length 0 costs on a vLLM server that speculates",
    "vllm_gateway": "what the gateway adds before vLLM, and a kill there",
    "prefix_affinity": "time to first token with requests of the same beginning on the same vLLM server",
    "vllm_kill": "how soon running streams stop drafting on vLLM",
    "vllm_distribution": "two-token distributions of vLLM at draft length 0 and 4",
    "vllm_fuzz": "random lengths, aborts, limits and changes on vLLM",
    "sampled_parity": "how soon faults in sampled answers are found, and false alarms",
    "capture": "what capture of every answer adds to a request",
    "access": "what keys, limits and admission add to a request",
    "console": "the console's weight and first paint, what it costs a request, and fifty viewers",
    "failover": "the gap in a stream whose server is lost half-way",
    "kill": "how soon a kill switch lands in every gateway of a cluster",
    "cluster_faults": "what requests notice when the API server, the operator or Redis is gone",
    "cluster_table": "what an event of the cluster costs a gateway that knows 1,000 pairs",
    "operator_scale": "1,000 pairs from a cold operator, and its writes after that",
    "rollback": "false alarms and detection of the guards, beside the rules they replace",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; default: all")
    names = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}")
    failed = []
    for name in names:
        print(f"\n== {name}: {BENCHMARKS[name]}", flush=True)
        if subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
