"""The kernel of prompt look-up against the reference: tiles, programs that share a request, compiled code."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from slipstream_kernels.ngram_lookup import NgramWorkspace, ngram_lookup, pytorch
from slipstream_kernels.ngram_lookup.kernel import division

if sys.platform != "linux":
    pytest.skip("triton is for Linux", allow_module_level=True)

import triton
from slipstream_kernels.ngram_lookup import kernel

from tests.kernels.interpreter import programs_in_random_order, run_compiling

pytestmark = pytest.mark.timeout(600)  # the compiler's time, on a busy machine

NGRAMS = {"min_ngram": 2, "max_ngram": 3}
CUDA = torch.cuda.is_available()


def batch(requests: int, columns: int, symbols: int, device: str, seed: int = 0, drafts: int = 5):
    """Random texts of random lengths: few symbols match often, many seldom."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(symbols, (requests, columns), generator=generator)
    lengths = torch.randint(columns + 1, (requests,), generator=generator)
    most = torch.randint(drafts + 1, (requests,), generator=generator)
    return tokens.to(device), lengths.to(device), most.to(device)


def assert_same(found, expected) -> None:
    torch.testing.assert_close(found.token_ids, expected.token_ids, rtol=0, atol=0)
    torch.testing.assert_close(found.lengths, expected.lengths, rtol=0, atol=0)


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize("symbols", [2, 5, 40])
@pytest.mark.parametrize(
    ("columns", "divided"), [(97, (16, 1)), (97, (16, 3)), (97, (16, 7)), (96, (32, 9)), (33, (16, 2)), (31, None)]
)
def test_every_division_gives_what_the_reference_gives(device, symbols, columns, divided):
    given = batch(7, columns, symbols, device)
    found = kernel.lookup(*given, **NGRAMS, drafts=5, divided=divided)
    assert_same(found, pytorch.lookup(*given, **NGRAMS, drafts=5))


@pytest.mark.parametrize(("min_ngram", "max_ngram"), [(1, 1), (3, 3), (2, 8), (16, 16)])
def test_every_size_of_ngram(device, min_ngram, max_ngram):
    period = torch.arange(90, device=device) % 19
    tokens = torch.stack((period, period * 0, batch(1, 90, 2, device)[0][0]))
    lengths = torch.tensor([90, 88, 89], device=device)
    given = (tokens, lengths, torch.full_like(lengths, 3))
    found = kernel.lookup(*given, min_ngram=min_ngram, max_ngram=max_ngram, drafts=3, divided=(16, 2))
    assert_same(found, pytorch.lookup(*given, min_ngram=min_ngram, max_ngram=max_ngram, drafts=3))
    assert found.lengths[0] == 3


@pytest.mark.parametrize("splits", [1, 3])
def test_a_match_may_lie_across_the_edge_of_a_tile(device, splits):
    # Request i has its only match end at place 10 + i: before, at and after the edges at 16 and 32.
    requests, columns = 24, 53
    tokens = torch.arange(columns, device=device).repeat(requests, 1)
    for index in range(requests):
        tokens[index, 8 + index : 11 + index] = tokens[index, -3:]
    lengths = torch.full((requests,), columns, device=device)
    given = (tokens, lengths, torch.full_like(lengths, 2))
    found = kernel.lookup(*given, **NGRAMS, drafts=2, divided=(16, splits))
    assert found.token_ids.tolist() == [[11 + index, 12 + index] for index in range(requests)]


@pytest.mark.parametrize("edge", [32, 48, 64])
@pytest.mark.parametrize("splits", [1, 2, 3])
def test_a_match_up_to_the_edge_of_a_tile_does_not_hide_one_behind_it(device, splits, edge):
    # Request i has a match whose drafts start at the edge, and a later one in the tile that starts there.
    requests, columns = 13, 100
    tokens = torch.arange(columns, device=device).repeat(requests, 1)
    for index in range(requests):
        tokens[index, edge - 3 : edge] = tokens[index, edge + index : edge + index + 3] = tokens[index, -3:]
    lengths = torch.full((requests,), columns, device=device)
    given = (tokens, lengths, torch.full_like(lengths, 2))
    found = kernel.lookup(*given, **NGRAMS, drafts=2, divided=(16, splits))
    assert found.token_ids.tolist() == [[edge + 3 + index, edge + 4 + index] for index in range(requests)]


def test_a_workspace_is_left_as_it_was_found(device):
    workspace = NgramWorkspace.of(6, device)
    for seed in range(3):
        given = batch(5 + seed % 2, 70, 3, device, seed)
        found = kernel.lookup(*given, **NGRAMS, drafts=5, divided=(16, 3), workspace=workspace)
        assert_same(found, pytorch.lookup(*given, **NGRAMS, drafts=5))
        assert not workspace.best.any()
        assert not workspace.finished.any()


@pytest.mark.skipif(CUDA, reason="a GPU has its own order")
@pytest.mark.parametrize("seed", range(4))
def test_programs_may_run_in_any_order(device, seed):
    given = batch(6, 90, 3, device, seed)
    workspace = NgramWorkspace.of(6, device)
    with programs_in_random_order(seed):
        found = kernel.lookup(*given, **NGRAMS, drafts=5, divided=(16, 4), workspace=workspace)
    assert_same(found, pytorch.lookup(*given, **NGRAMS, drafts=5))
    assert not workspace.best.any()
    assert not workspace.finished.any()


@pytest.fixture
def loaded(monkeypatch) -> list[list[int]]:
    """The addresses of each load of the kernel's programs, in the interpreter."""
    loads: list[list[int]] = []
    builder = triton.runtime.interpreter.interpreter_builder
    load = builder.create_masked_load

    def noted(pointers, mask, *rest):
        loads.append(pointers.data[mask.data.astype(bool)].tolist())
        return load(pointers, mask, *rest)

    monkeypatch.setattr(builder, "create_masked_load", noted)
    return loads


@pytest.mark.skipif(CUDA, reason="loads are noted in the interpreter")
def test_what_programs_tell_each_other_is_never_loaded(device, loaded):
    # Every warp does a load on its own. Of a word that others write meanwhile, they may see different values, and part.
    given = batch(5, 90, 3, device)
    workspace = NgramWorkspace.of(5, device)
    kernel.lookup(*given, **NGRAMS, drafts=5, divided=(16, 4), workspace=workspace)
    told = {part.data_ptr() + 8 * index for part in (workspace.best, workspace.finished) for index in range(5)}
    assert loaded
    assert not told & set(itertools.chain(*loaded))


@pytest.mark.skipif(CUDA, reason="loads are counted in the interpreter")
@pytest.mark.parametrize("splits", [1, 4])
def test_each_token_is_read_once(device, loaded, splits):
    tokens = torch.arange(1024, device=device)[None]
    lengths = torch.tensor([1000], device=device)
    kernel.lookup(tokens, lengths, lengths * 0 + 2, **NGRAMS, drafts=2, divided=(128, splits))
    # And by each program 3 of the suffix, the length and how many drafts are wanted.
    assert sum(map(len, loaded)) == 999 + 5 * splits


@pytest.mark.skipif(CUDA, reason="loads are counted in the interpreter")
@pytest.mark.parametrize("splits", [1, 2])
def test_behind_a_match_of_full_length_nothing_is_read(device, loaded, splits):
    tokens = torch.arange(1024, device=device)[None].clone()
    tokens[:, [400, 401, 402, 930, 931, 932]] = tokens[:, [997, 998, 999] * 2]
    lengths = torch.tensor([1000], device=device)
    found = kernel.lookup(tokens, lengths, lengths * 0 + 2, **NGRAMS, drafts=2, divided=(128, splits))
    assert found.token_ids.tolist() == [[933, 934]]
    # Each program takes a tile before it has heard of the match.
    assert sum(map(len, loaded)) <= (128 + 20) * splits


@pytest.mark.skipif(CUDA, reason="loads are counted in the interpreter")
def test_a_request_that_wants_nothing_is_not_read(device, loaded):
    tokens = torch.zeros(1, 1024, dtype=torch.int64, device=device)
    lengths = torch.tensor([1000], device=device)
    found = kernel.lookup(tokens, lengths, lengths * 0, **NGRAMS, drafts=2, divided=(128, 4))
    assert (found.token_ids.tolist(), found.lengths.tolist()) == ([[-1, -1]], [0])
    assert sum(map(len, loaded)) == 2 * 4


def test_512_requests(device):
    given = batch(512, 24, 3, device)
    found = ngram_lookup(*given, drafts=5, backend="kernel")
    assert_same(found, pytorch.lookup(*given, **NGRAMS, drafts=5))


@pytest.mark.parametrize(("requests", "columns"), [(1, 1), (1, 2048), (1, 131_072), (64, 40_000), (512, 131_072)])
def test_every_tile_has_a_program(requests, columns):
    tile, splits = division(requests, columns)
    assert tile & (tile - 1) == 0
    assert 1 <= splits <= max(1, triton.cdiv(columns, tile))


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize(("requests", "columns"), [(1, 131_072), (7, 33_333), (128, 16_384), (512, 4_099)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_long_texts_compiled(device, requests, columns, dtype):
    for symbols in (30, 1000, 2**31 - 1):
        tokens, lengths, most = batch(requests, columns, symbols, device)
        given = (tokens.to(dtype), lengths, most)
        assert_same(ngram_lookup(*given, drafts=5), pytorch.lookup(*given, **NGRAMS, drafts=5))


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_a_graph_can_be_replayed_with_other_texts(device):
    workspace = NgramWorkspace.of(9, device)
    tokens, lengths, most = batch(9, 20_000, 40, device)
    look_up = {"drafts": 5, "check_values": False, "workspace": workspace}
    ngram_lookup(tokens, lengths, most, **look_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = ngram_lookup(tokens, lengths, most, **look_up)
    for seed in range(1, 4):
        for into, new in zip((tokens, lengths, most), batch(9, 20_000, 40, device, seed), strict=True):
            into.copy_(new)
        graph.replay()
        assert_same(found, pytorch.lookup(tokens, lengths, most, **NGRAMS, drafts=5))


AHEAD = """
import sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from slipstream_kernels.ngram_lookup.kernel import WARPS, _lookup, registers
for tokens, longest in (("*i32", 3), ("*i32", 8), ("*i64", 16)):
    fixed = dict(MIN_NGRAM=2, MAX_NGRAM=longest, TILE=2048, DRAFTS=8, SHARED=True)
    pointers = dict(lengths="*i64", most="*i64", token_ids="*i64", drafted="*i64", best="*i64", finished="*i64")
    numbers = dict(requests="i32", drafts="i32", splits="i32")
    types = dict(tokens=tokens, row_stride="i32", **pointers, **numbers, **dict.fromkeys(fixed, "constexpr"))
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(8)}
    source = ASTSource(_lookup, signature=types, constexprs=fixed, attrs=aligned)
    options = {"num_warps": WARPS, "maxnreg": registers(longest)}
    built = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with open(f"{sys.argv[1]}/{tokens[1:]}-{longest}.cubin", "wb") as file:
        file.write(built.asm["cubin"])
"""


def test_compiled_for_hopper_nothing_is_spilled(tmp_path):
    run_compiling("-c", AHEAD, str(tmp_path), TRITON_CACHE_DIR=str(tmp_path / "cache"))
    cuobjdump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    cubins = sorted(tmp_path.glob("*.cubin"))
    assert len(cubins) == 3
    for cubin in cubins:
        command = [cuobjdump, "--dump-resource-usage", cubin]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert re.search(r"STACK:0 .*LOCAL:0", usage), usage
