"""Runs the V2 model runner's draft model over tokens that it has not processed. Nothing is sampled, nothing waits for
the device.

The host knows upper bounds of the positions only. So a hole may end beyond the tokens that exist: those positions have
no slot, and what is computed there is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor

from slipstream_vllm.catch_up import Hole, parts


def catch_up(speculator: Any, all_token_ids: torch.Tensor, input_batch: Any, holes: Sequence[Hole]) -> None:
    """Compute the draft model's KV cache for `holes`, at the cost of a prefill over as many tokens.

    Args:
        speculator: the V2 runner's speculator for `draft_model`.
        all_token_ids: (requests of the runner, maximum length).
        input_batch: the batch of this step, whose rows `holes` name.
    """
    for part in parts(holes, speculator.max_num_tokens):
        _forward(speculator, all_token_ids, input_batch, part)
    # The step's own passes read the tables of its rows.
    speculator.block_tables.gather_block_tables(input_batch.idx_mapping, input_batch.num_reqs_after_padding)


def _forward(speculator: Any, all_token_ids: torch.Tensor, input_batch: Any, part: Sequence[Hole]) -> None:
    device, buffers, tables = speculator.device, speculator.input_buffers, speculator.block_tables
    lengths = np.array([stop - start for _, start, stop in part])
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    count, requests = int(ends[-1]), len(part)
    rows = torch.tensor([row for row, _, _ in part], device=device)
    stops = torch.tensor([stop for _, _, stop in part], dtype=torch.int32)
    indices = input_batch.idx_mapping[rows]
    of_token = torch.repeat_interleave(torch.arange(requests), torch.from_numpy(lengths)).to(device)
    positions = torch.from_numpy(np.concatenate([np.arange(start, stop) for _, start, stop in part])).to(device)
    token_ids = all_token_ids[indices[of_token], positions]

    buffers.positions[:count] = positions
    buffers.query_start_loc[: requests + 1] = torch.from_numpy(ends).to(device)
    buffers.query_start_loc[requests + 1 :] = count
    buffers.seq_lens[:requests] = stops.to(device)
    buffers.seq_lens[requests:] = 0
    tables.gather_block_tables(indices, requests)
    slots = tables.compute_slot_mappings(
        indices, buffers.query_start_loc[: requests + 1], positions, count, out=speculator.expanded_slot_mappings
    )
    first = input_batch.positions[input_batch.query_start_loc[rows]]  # of this step, whose tokens the step computes
    slots.masked_fill_(positions >= first[of_token], PAD_SLOT_ID)
    metadata = speculator._build_attn_metadata(
        num_reqs=requests,
        batch_desc=BatchExecutionDescriptor(cg_mode=CUDAGraphMode.NONE, num_tokens=count, num_reqs=requests),
        query_start_loc_np=ends,
        seq_lens_cpu_upper_bound=stops,
        step=0,
        slot_mappings=slots,
    )
    by_layer = build_slot_mappings_by_layer(slots, speculator.kv_cache_config)
    speculator._run_model(token_ids, positions, metadata, by_layer, None)
