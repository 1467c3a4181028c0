"""Runs the draft model over tokens that it has not processed, as a prefill without sampling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

_Integers = npt.NDArray[np.integer[Any]]
Hole = tuple[int, int, int]
"""Row of the batch, first missing position, and the position after the last missing one."""


def catch_up(runner: Any, table: Any, holes: Sequence[Hole]) -> None:
    """Compute the draft model's KV cache for `holes`, at the cost of a prefill over as many tokens."""
    for part in parts(holes, runner.drafter.max_num_tokens):
        _forward(runner, table, part)


def parts(holes: Sequence[Hole], most: int) -> Iterator[list[Hole]]:
    """Divide holes into batches of at most `most` tokens. The parts of one hole stay in order."""
    part: list[Hole] = []
    room = most
    for row, start, stop in holes:
        begin = start
        while begin < stop:
            end = min(stop, begin + room)
            part.append((row, begin, end))
            room -= end - begin
            begin = end
            if room == 0:
                yield part
                part, room = [], most
    if part:
        yield part


def _forward(runner: Any, table: Any, part: Sequence[Hole]) -> None:
    drafter = runner.drafter
    rows = np.array([row for row, _, _ in part])
    lengths = np.array([stop - start for _, start, stop in part])
    positions = np.concatenate([np.arange(start, stop) for _, start, stop in part])
    tokens = np.concatenate([runner.input_batch.token_ids_cpu[row, start:stop] for row, start, stop in part])
    blocks = table.block_table.np[np.repeat(rows, lengths), positions // table.block_size].astype(np.int64)
    slots = _on(runner.device, blocks * table.block_size + positions % table.block_size)
    count = len(positions)

    metadata = _attention_metadata(runner.device, part, lengths, table.block_table.np[rows], slots)
    _, by_layer = drafter.build_per_group_and_layer_attn_metadata(metadata)
    token_ids = _on(runner.device, tokens)
    if drafter.use_heterogeneous_vocab:
        token_ids = drafter.vocab_mapping.map_target_to_draft_ids(token_ids)
    drafter.input_ids[:count] = token_ids
    drafter._set_positions(count, _on(runner.device, positions))
    inputs, _ = drafter.build_model_inputs_first_pass(count, count, None)
    with set_forward_context(
        by_layer, drafter.vllm_config, num_tokens=count, slot_mapping=drafter._get_slot_mapping(count, slots)
    ):
        drafter.model(**inputs)


def _attention_metadata(
    device: torch.device, part: Sequence[Hole], lengths: _Integers, block_table: _Integers, slots: torch.Tensor
) -> CommonAttentionMetadata:
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    stops = np.array([stop for _, _, stop in part], dtype=np.int32)
    return CommonAttentionMetadata(
        query_start_loc=_on(device, ends),
        query_start_loc_cpu=torch.from_numpy(ends),
        seq_lens=_on(device, stops),
        num_reqs=len(part),
        num_actual_tokens=int(ends[-1]),
        max_query_len=int(lengths.max()),
        max_seq_len=int(stops.max()),
        block_table_tensor=_on(device, block_table),
        slot_mapping=slots,
        causal=True,
        seq_lens_cpu_upper_bound=torch.from_numpy(stops),
    )


def _on(device: torch.device, array: _Integers) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
