"""Prompt look-up as one launch in the Triton language.

For each position in its tiles, a program counts how many tokens up to it equal the request's last ones. Most positions
fail at the first comparison, so the text is read once. Further tokens are loaded only where all previous ones matched,
and are in the L1 cache by then. The programs of a request take its tiles in turn, from the end. Once a program finds a
match of full length, which no earlier position can beat, the others stop. The last program to finish writes the drafts.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream_kernels.ngram_lookup.types import NgramDrafts, NgramWorkspace

WARPS = 8
_SMALLEST_TILE, _LARGEST_TILE = 256, 2048
_RESIDENT_PROGRAMS = 660  # five of 256 threads and up to 48 registers on each of an H200's 132 multiprocessors


def division(requests: int, columns: int) -> tuple[int, int]:
    """Tokens per tile (a power of two), and the number of programs that share the tiles of one request."""
    tile = _SMALLEST_TILE
    while tile < min(columns, _LARGEST_TILE):
        tile *= 2
    tiles = -(-columns // tile)
    # Sharing costs two atomic operations, about as much as a second tile.
    return tile, 1 if tiles <= 2 else max(1, min(tiles, _RESIDENT_PROGRAMS // max(requests, 1)))


def registers(max_ngram: int) -> int:
    """Register limit per thread: the number that `division` assumes, or more where that would spill.

    Without a limit the assembler's choice differs between releases: up to 125, or few with spills.
    """
    return 48 if max_ngram <= 8 else 64


def lookup(
    tokens: Tensor,
    lengths: Tensor,
    most: Tensor,
    *,
    min_ngram: int,
    max_ngram: int,
    drafts: int,
    workspace: NgramWorkspace | None = None,
    divided: tuple[int, int] | None = None,
) -> NgramDrafts:
    """As `ngram_lookup`, with checked arguments. `divided` replaces the result of `division`."""
    requests, columns = tokens.shape
    token_ids = torch.empty(requests, drafts, dtype=torch.int64, device=tokens.device)
    drafted = torch.empty_like(lengths)
    if requests == 0:
        return NgramDrafts(token_ids, drafted)
    tile, splits = divided or division(requests, columns)
    if splits > 1 and workspace is None:
        workspace = NgramWorkspace.of(requests, tokens.device)
    # A launch goes to the current device.
    with torch.cuda.device(tokens.device) if tokens.is_cuda else nullcontext():
        _lookup[(requests * splits,)](
            tokens,
            tokens.stride(0),
            lengths,
            most,
            token_ids,
            drafted,
            workspace.best if workspace else None,
            workspace.finished if workspace else None,
            requests,
            drafts,
            splits,
            MIN_NGRAM=min_ngram,
            MAX_NGRAM=max_ngram,
            TILE=tile,
            DRAFTS=max(1, triton.next_power_of_2(drafts)),
            SHARED=splits > 1,
            num_warps=WARPS,
            maxnreg=registers(max_ngram),
        )
    return NgramDrafts(token_ids, drafted)


@triton.jit(do_not_specialize=["requests", "drafts", "splits"])
def _lookup(
    tokens,  # [requests, L] int32 or int64, rows `row_stride` apart
    row_stride,
    lengths,  # [requests] i64
    most,  # [requests] i64
    token_ids,  # [requests, drafts] i64, written
    drafted,  # [requests] i64, written
    best,  # [requests] i64, see NgramWorkspace; unused unless SHARED
    finished,  # [requests] i64, likewise
    requests,
    drafts,
    splits,  # programs per request
    MIN_NGRAM: tl.constexpr,
    MAX_NGRAM: tl.constexpr,
    TILE: tl.constexpr,  # a power of two
    DRAFTS: tl.constexpr,  # drafts, up to a power of two
    SHARED: tl.constexpr,  # splits > 1
):
    request = (tl.program_id(0) % requests).to(tl.int64)
    split = tl.program_id(0) // requests
    length = tl.load(lengths + request)
    count = tl.load(most + request)
    row = tokens + request * row_stride
    tiles = tl.maximum((length - 1 + TILE - 1) // TILE, 1)  # those that hold a token with one after it
    if (count > 0) & (split < tiles):
        key = _scan(row, length, tiles - 1 - split, splits, best, request, MIN_NGRAM, MAX_NGRAM, TILE, SHARED)
        last = True
        if SHARED:
            # One thread performs the atomics of a program and broadcasts the results, so all threads branch alike.
            # This atomic's release covers the ones before it, and the last program to count has acquired all of them.
            # From then on no other program uses either word, so both are reset for the next launch.
            before = tl.atomic_add(finished + request, 1, sem="acq_rel")
            last = before == tl.minimum(tiles, splits) - 1
            if last:
                key = tl.atomic_xchg(best + request, 0, sem="relaxed")
                tl.store(finished + request, 0)
        if last:
            _write(row, length, key, count, token_ids + request * drafts, drafted + request, drafts, DRAFTS)
    elif split == 0:
        _write(row, length, length * 0, count, token_ids + request * drafts, drafted + request, drafts, DRAFTS)


@triton.jit
def _scan(
    row,
    length,
    tile,
    splits,
    best,
    request,
    MIN_NGRAM: tl.constexpr,
    MAX_NGRAM: tl.constexpr,
    TILE: tl.constexpr,
    SHARED: tl.constexpr,
):
    """The best match in every `splits`-th tile from `tile` down, until no lower tile can beat a known match.

    A match is an int64, 0 for none: upper half its size, lower half the start of its drafts, so a greater number is a
    better match. The request's programs share their matches through `best`.
    """
    suffix = ()
    for back in tl.static_range(MAX_NGRAM):
        token = tl.load(row + length - 1 - back, mask=length > back, other=0)
        # The language has no starred item, and here a variable may change its type.
        suffix = suffix + (token,)  # type: ignore[assignment]  # noqa: RUF005
    key = length * 0
    known = length * 0
    while (tile >= 0) & (known < (MAX_NGRAM << 32) + tile * TILE + TILE):
        start = tile * TILE
        read = _tokens_of_tile(row, start, length, TILE)
        if SHARED:
            # A read that changes nothing. With a load, each warp might see another value, and warps that stop here
            # would leave the others waiting in the reduction. An atomic is performed once for all threads. The tile's
            # loads are in flight meanwhile.
            known = tl.atomic_max(best + request, 0, sem="relaxed")
        found = _best_of_tile(row, start, length, read, suffix, MIN_NGRAM, MAX_NGRAM, TILE)
        if SHARED:  # noqa: SIM102 - a compile-time constant
            if found > known:
                tl.atomic_max(best + request, found, sem="relaxed")
        key = tl.maximum(key, found)
        known = tl.maximum(known, key)
        tile -= splits
    return key


@triton.jit
def _places_with_a_token_after(start, length, TILE: tl.constexpr):
    """Number of positions in [start, start + TILE) that a token follows. These are the first ones."""
    return tl.minimum(length - 1 - start, TILE).to(tl.int32)


@triton.jit
def _tokens_of_tile(row, start, length, TILE: tl.constexpr):
    """The tokens in [start, start + TILE), 0 where no token follows."""
    place = tl.arange(0, TILE)
    ends = _places_with_a_token_after(start, length, TILE)
    # Loads without a mask are as wide as the row's alignment allows.
    if ends == TILE:  # noqa: SIM108 - a branch, of which one side is loaded
        token = tl.load(row + start + place)
    else:
        token = tl.load(row + start + place, mask=place < ends, other=0)
    return token


@triton.jit
def _best_of_tile(
    row,
    start,
    length,
    token,  # _tokens_of_tile
    suffix,
    MIN_NGRAM: tl.constexpr,
    MAX_NGRAM: tl.constexpr,
    TILE: tl.constexpr,
):
    """The best match that ends in [start, start + TILE) and that a token follows."""
    place = tl.arange(0, TILE)
    ends = _places_with_a_token_after(start, length, TILE)
    before = tl.minimum(start, MAX_NGRAM).to(tl.int32)
    matches = (place < ends) & (token == suffix[0])
    size = matches.to(tl.int32)
    for back in tl.static_range(1, MAX_NGRAM):
        matches = matches & (place + before >= back)
        token = tl.load(row + start + place - back, mask=matches, other=0)
        matches = matches & (token == suffix[back])
        size += matches.to(tl.int32)
    best = tl.max(tl.where(size >= MIN_NGRAM, size * TILE + place, 0))
    after = start + best % TILE + 1
    return tl.where(best > 0, ((best // TILE).to(tl.int64) << 32) | after, 0)


@triton.jit
def _write(row, length, key, count, token_ids, drafted, drafts, DRAFTS: tl.constexpr):
    """Write the `count` tokens after the match, repeating them from the end of the text on; then -1."""
    steps = tl.arange(0, DRAFTS)
    after = key & 0xFFFFFFFF
    period = tl.minimum(length - after, DRAFTS).to(tl.int32)  # capped, as there are fewer steps
    found = tl.where(key > 0, count, 0)
    ids = tl.load(row + after + steps % tl.maximum(period, 1), mask=steps < found, other=-1)
    tl.store(token_ids + steps, ids.to(tl.int64), mask=steps < drafts)
    tl.store(drafted, found)
