"""Where other kernels go wrong, beside what `test_verification` asks of both backends: numbers at the ends of the
interval, memory full of garbage, workspaces that were used for something else."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from slipstream_kernels import verify
from slipstream_kernels.spec_verify import kernel
from slipstream_kernels.spec_verify.kernel import LaunchConfig, verify_kernel
from slipstream_kernels.spec_verify.workspace import Workspace

from tests.kernels.batches import make_request, verify_batch
from tests.kernels.checker import check, decide, scores_of
from tests.kernels.mutants import Fault, package_with
from tests.kernels.oracle import Rules, distribution

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY = 150
SMALL = LaunchConfig(block=32, splits=3, warps=1)
FILTERS = Rules(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01)
KINDS = (Rules(), Rules(temperature=0.0), FILTERS)


def mixed_batch(*, drafts=2):
    """Sampled and one-hot drafts for each kind of rules, of unlike lengths."""
    batch = []
    for number in range(2 * len(KINDS)):
        length = (number + drafts) % (drafts + 1)
        request = make_request(number + 40, vocabulary=VOCABULARY, drafts=length, rules=KINDS[number // 2])
        batch.append(request.one_hot() if number % 2 else request)
    return batch


def checked(batch, answers, *, block):
    """All answers are right, to the token."""
    assert not any(check(request, answer, block=block) for request, answer in zip(batch, answers, strict=True))


def number_fixed(number, tmp_path):
    """`verify` whose random numbers are all `number`, in the kernel and in the reference."""
    fault = Fault(
        name=f"every number is {number}",
        file="spec_verify/kernel_primitives.py",
        right="return bits.to(tl.float64) * _TWO_TO_MINUS_52",
        wrong=f"return bits.to(tl.float64) * 0.0 + {number!r}",
    )
    package = package_with(fault, tmp_path)
    reference = importlib.import_module(f"{package.__name__}.spec_verify.pytorch")
    reference.uniform = lambda *arguments: 0.0 * package.uniform(*arguments) + number
    return package.verify


def edges(seed, rules, drafts=2):
    """A request whose first and last tokens have no probability, and whose drafts the target never chooses."""
    request = make_request(seed, vocabulary=VOCABULARY, drafts=drafts, rules=rules)
    logits, draft_logits = request.logits.clone(), request.draft_logits.clone()
    logits[:, :3] = logits[:, -5:] = -math.inf
    draft_logits[:, 1] = 3.0
    return replace(request, logits=logits, draft_logits=draft_logits, drafts=[1] * drafts)


@pytest.mark.parametrize("backend", ["reference", "kernel"])
@pytest.mark.parametrize("number", [0.0, 1 - 2**-52], ids=["zero", "almost one"])
def test_numbers_at_the_ends_of_the_interval_give_no_token_without_probability(tmp_path, backend, number):
    verify_at_end = partial(number_fixed(number, tmp_path), backend=backend)
    requests = [edges(seed, rules) for seed, rules in enumerate((Rules(), FILTERS, Rules(temperature=0.0)))]
    requests += [request.one_hot() for request in requests]
    requests += [replace(request, drafts=[], draft_logits=None, logits=request.logits[:1]) for request in requests[:2]]
    for block in (False, True):
        for request, answer in zip(
            requests, verify_batch(verify_at_end, requests, device=DEVICE, block_verification=block), strict=True
        ):
            assert len(answer.tokens) == 1
            p = distribution(scores_of(request, 0), request.rules)
            assert p[answer.tokens[0]] > 0
            if request.rules == Rules() and not (block or number):
                assert answer.tokens == [3]  # the first that has any


def test_a_drafted_token_without_probability_is_never_accepted_over_many_seeds():
    requests = [replace(edges(seed, Rules(), drafts=1), seed=seed) for seed in range(60)]
    answers = verify_batch(partial(verify, backend="kernel"), requests, device=DEVICE)
    assert all(answer.tokens != [1] and len(answer.tokens) == 1 for answer in answers)
    checked(requests, answers, block=False)


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("config", [SMALL, replace(SMALL, splits=1, lazy=False), replace(SMALL, block=64, splits=2)])
def test_all_kinds_agree_however_rows_are_cut_up(config, block):
    batch = mixed_batch()
    run = partial(verify_batch, requests=batch, device=DEVICE, block_verification=block)
    checked(batch, run(partial(verify_kernel, config=config)), block=block)


@pytest.mark.parametrize("block", [False, True])
def test_garbage_in_fresh_memory_does_not_matter(block):
    """Outputs and the workspace's numbers come from `torch.empty`; here that is NaN and the largest integer."""
    batch = mixed_batch()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(1).isnan()
        answers = verify_batch(partial(verify_kernel, config=SMALL), batch, device=DEVICE, block_verification=block)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled
    checked(batch, answers, block=block)


def test_one_workspace_serves_all_kinds_of_calls_and_is_clean_after_each():
    workspace = Workspace(
        6,
        3,
        VOCABULARY,
        draft_vocabulary=VOCABULARY,
        margins=True,
        filters=True,
        block_verification=True,
        block=32,
        device=DEVICE,
    )
    run = partial(verify_kernel, config=SMALL, workspace=workspace)
    calls = [(mixed_batch(), False), (mixed_batch(drafts=3), True), (mixed_batch(drafts=1)[:3], False)]
    calls += [([request.one_hot() for request in mixed_batch()[3:]], False), (mixed_batch()[:1], True)]
    for batch, block in calls:
        workspace._numbers.fill_(math.nan)
        checked(batch, verify_batch(run, batch, device=DEVICE, block_verification=block), block=block)
        assert not workspace._counters.any()
        assert not workspace._state.any()


def test_a_call_that_breaks_off_between_launches_leaves_a_workspace_that_can_be_used(monkeypatch):
    """As compiling does that fails or is interrupted: nothing but a seam can bring that about."""
    batch = [make_request(seed, vocabulary=VOCABULARY, drafts=2, rules=FILTERS) for seed in range(4)]
    workspace = Workspace(4, 2, VOCABULARY, draft_vocabulary=VOCABULARY, filters=True, block=32, device=DEVICE)
    run = partial(verify_kernel, config=SMALL, workspace=workspace)

    def no_compiler(launch):
        assert workspace._state.any()
        raise RuntimeError("no C compiler")

    with monkeypatch.context() as patched:
        patched.setattr(kernel, "launch_after_scan", no_compiler)
        with pytest.raises(RuntimeError, match="no C compiler"):
            verify_batch(run, batch, device=DEVICE)
    assert not workspace._state.any()
    checked(batch, verify_batch(run, batch, device=DEVICE), block=False)


def test_a_workspace_on_another_device_is_refused():
    workspace = Workspace(1, 2, VOCABULARY, block=32, device="meta")
    with pytest.raises(ValueError, match=f"workspace is on meta, target_logits is on {DEVICE}"):
        verify_batch(partial(verify_kernel, config=SMALL, workspace=workspace), mixed_batch()[2:3], device=DEVICE)


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("rules", [Rules(), FILTERS], ids=["plain", "filters"])
def test_nan_behind_a_rejection_is_harmless_and_before_it_fatal(block, rules):
    """The request in the middle is broken; a block has to read all of its rows."""
    batch = [make_request(seed, vocabulary=VOCABULARY, drafts=2, rules=rules) for seed in range(12)]
    batch = batch[:6] + [request.one_hot() for request in batch[6:]]
    broken = list(batch)
    for at, request in enumerate(batch):
        if at % 2:
            logits = request.logits.clone()
            logits[at % 3, at] = (math.nan, math.inf)[at % 4 // 2]
            broken[at] = replace(request, logits=logits)
    run = partial(verify_batch, partial(verify, backend="kernel"), device=DEVICE, block_verification=block)
    whole, damaged = run(batch), run(broken)
    failed = 0
    for at, (request, answer) in enumerate(zip(broken, damaged, strict=True)):
        assert (answer is None) == (decide(request, block=block).accepted < 0)
        assert answer is None or answer.tokens == whole[at].tokens
        failed += answer is None
    assert failed == 6 if block else 0 < failed < 6
