"""Time of one verification per step on the CPU, beside a plain softmax and draw: `python tests/benchmarks/verify.py`.

Goals, for one request at a vocabulary of 2,500: greedy at most 40 µs with 4 drafted tokens, sampled at most 250 µs.
Times are CPU time of one thread, the best of many runs: what else the machine does must not count. The ratio is to
`softmax` and `multinomial` over the same rows in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from slipstream_kernels import SamplingBatch, sample, verify

_VOCABULARY = 2500
_RUNS, _REPEATS = 60, 20
_MODES = {
    "greedy": (0.0, 1.0, 0),
    "sampled": (0.8, 1.0, 0),
    "top_p 0.95": (0.8, 0.95, 0),
    "top_p + top_k": (0.8, 0.95, 50),
}


def best_us(call: Callable[[], object]) -> float:
    """Microseconds of CPU time per call."""
    best = float("inf")
    for _ in range(_RUNS):
        start = time.thread_time()
        for _ in range(_REPEATS):
            call()
        best = min(best, (time.thread_time() - start) / _REPEATS)
    return best * 1e6


def cases(mode: str, requests: int, drafted: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """The verification and its baseline. Logits are as peaked as a language model's; the draft is close to them."""
    temperature, top_p, top_k = _MODES[mode]
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(requests, drafted + 1, _VOCABULARY, generator=generator)
    guess = logits[:, :-1] + 0.5 * torch.randn(requests, drafted, _VOCABULARY, generator=generator)
    sampling = SamplingBatch.of([temperature] * requests, [top_p] * requests, [top_k] * requests, range(requests))
    lengths, positions = torch.full((requests,), drafted), torch.arange(requests)
    rows = sampling.repeat(lengths, requests * drafted)
    at = positions.repeat_interleave(drafted) + torch.arange(drafted).repeat(requests)
    ids = sample(guess.flatten(0, 1), rows, at).view(requests, drafted)
    flat = logits.flatten(0, 1)
    return (
        # as the engine calls it
        lambda: verify(flat, ids, lengths, sampling, positions, check_values=False, logprobs=False),
        lambda: flat.softmax(-1).multinomial(1),
    )


def main() -> None:
    """Print one line per mode, number of requests and number of drafted tokens."""
    torch.set_num_threads(1)
    print(f"{'mode':<14} {'B':>2} {'K':>2} {'verify us':>10} {'softmax+draw us':>16} {'ratio':>6}")
    for mode in _MODES:
        for requests in (1, 8):
            for drafted in (0, 4):
                ours, plain = (best_us(call) for call in cases(mode, requests, drafted))
                line = f"{mode:<14} {requests:>2} {drafted:>2} {ours:>10.1f} {plain:>16.1f}"
                print(f"{line} {ours / plain:>6.2f}")


if __name__ == "__main__":
    main()
