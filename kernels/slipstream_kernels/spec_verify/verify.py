"""The public function `verify`: argument checks, then the PyTorch implementation or the kernel."""

from __future__ import annotations

from torch import Tensor

from slipstream_kernels.adjustments import LogitAdjustments
from slipstream_kernels.backend import Backend, use_kernel
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.spec_verify.checks import Arguments, check_form
from slipstream_kernels.spec_verify.pytorch import verify_pytorch
from slipstream_kernels.spec_verify.result import Verification


def verify(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_lengths: Tensor,
    sampling: SamplingBatch,
    positions: Tensor,
    *,
    row_start: Tensor | None = None,
    adjustments: LogitAdjustments | None = None,
    backend: Backend = "auto",
) -> Verification:
    """Compute the tokens of plain decoding and accept the drafted tokens that are equal to them. Writes no input.

    The token of a row is a function of the target's distribution there, after adjustments, temperature and filters, and
    of the noise of (seed, position). The step emits the accepted drafted tokens, then the token of the first row that
    differs or, if none differs, of the last row. Drafts may come from any source.

    Args:
        target_logits: [N, V] float32, float16 or bfloat16, each row contiguous. Request i owns
            `draft_lengths[i] + 1` rows from `row_start[i]` on; its row j holds the target's logits after j drafted
            tokens. Other rows are never read.
        draft_token_ids: int64 [B, K]. Entries beyond `draft_lengths[i]` are ignored. K = 0 means plain decoding.
        draft_lengths: int64 [B], each in 0..K.
        sampling: the parameters of the B requests.
        positions: int64 [B], absolute position of the first token that this step emits.
        row_start: int64 [B], ascending. None: the rows of all requests follow each other without gaps.
        adjustments: adjustments of the B requests' target logits.
        backend: "auto" selects the kernel for tensors on a GPU where `triton` is installed, else PyTorch. Kernels are
            compiled at their first use, for some seconds: call once with the same types and arguments before serving
            traffic.

    Values are not checked, because that would wait for the GPU. A drafted token outside the vocabulary is not accepted;
    the caller must ensure that all other values are valid.

    Raises:
        ValueError: an argument's shape, type, device or layout is wrong. Raised before anything runs.
        KernelUnavailable: `backend` is "kernel" and there is no GPU or no `triton`.
    """
    given = (target_logits, draft_token_ids, draft_lengths, sampling, positions)
    check_form(Arguments(*given, row_start, adjustments))
    if not use_kernel(backend, target_logits.device):
        return verify_pytorch(*given, row_start=row_start, adjustments=adjustments)
    from slipstream_kernels.spec_verify.kernel import verify_kernel  # needs `triton`

    return verify_kernel(*given, row_start=row_start, adjustments=adjustments)
