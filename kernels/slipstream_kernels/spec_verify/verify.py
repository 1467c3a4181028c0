"""The public function: checks what it is given and hands it to the reference or to the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from slipstream_kernels.adjustments import LogitAdjustments
from slipstream_kernels.backend import Backend, use_kernel
from slipstream_kernels.batch import SamplingBatch
from slipstream_kernels.spec_verify.checks import Arguments, check_form
from slipstream_kernels.spec_verify.pytorch import verify_pytorch
from slipstream_kernels.spec_verify.result import MOST_DRAFTS, Verification
from slipstream_kernels.spec_verify.value_checks import check_values_of

if TYPE_CHECKING:
    from slipstream_kernels.spec_verify.workspace import Workspace


def verify(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_lengths: Tensor,
    draft_logits: Tensor | None,
    sampling: SamplingBatch,
    positions: Tensor,
    *,
    row_start: Tensor | None = None,
    draft_onehot: Tensor | None = None,
    adjustments: LogitAdjustments | None = None,
    block_verification: bool = False,
    margins: bool = False,
    logprobs: bool = True,
    check_values: bool = True,
    backend: Backend = "auto",
    workspace: Workspace | None = None,
) -> Verification:
    """Accept or reject drafted tokens and choose the one that follows. No input is written.

    Args:
        target_logits: [N, V] float32, float16 or bfloat16, each row contiguous. Request i owns
            `draft_lengths[i] + 1` rows from `row_start[i]` on; row j of them is the target's opinion after j drafted
            tokens. Other rows are never looked at.
        draft_token_ids: int64 [B, K]. What stands beyond `draft_lengths[i]` is ignored. K may be 0: plain decoding.
            The kernel takes up to 31; beyond, "auto" is the reference.
        draft_lengths: int64 [B], each in 0..K.
        draft_logits: [B, K, W], float types and layout as `target_logits`: drafted tokens were drawn from their
            softmax, as `sample` returned it, so the draft's temperature and filters are in them. W may differ from V:
            what is missing has probability 0. None when no draft was sampled (greedy draft, n-gram look-up).
        sampling: the parameters of the B requests.
        positions: int64 [B], absolute position of the first token that this step emits.
        row_start: int64 [B], ascending. None: the rows of request 0, then those of request 1, and so on.
        draft_onehot: bool [B], requests whose drafts were not sampled although `draft_logits` is given.
        adjustments: of the B requests' target logits.
        block_verification: accept drafted tokens together, which accepts more of them, see `block.py`. Who samples
            drafts for it draws the one of step j with `step_purpose(Purpose.DRAFT, j)`.
        margins: whether to tell how clearly the target preferred each token.
        logprobs: whether to tell each token's log-probability. The kernel has it at no cost.
        check_values: whether to read values back from the device and check them: waits for a GPU. Without, a drafted
            token that the target does not have is rejected, and other values must be right.
        backend: "auto" is the kernel for tensors on a GPU where `triton` is installed, else the reference. Kernels are
            compiled when they are first needed, for some seconds: call once with the same types and arguments given
            before traffic comes, or a CUDA graph is captured.
        workspace: the kernel's memory, for calls without allocation; None allocates.

    Raises:
        ValueError: an argument's shape, type, device, layout or value is wrong. Raised before anything runs.
        KernelUnavailable: `backend` is "kernel" and there is no GPU or no `triton`.
    """
    arguments = Arguments(
        target_logits,
        draft_token_ids,
        draft_lengths,
        draft_logits,
        sampling,
        positions,
        row_start,
        draft_onehot,
        adjustments,
        workspace,
    )
    check_form(arguments)
    on_kernel = use_kernel(backend, target_logits.device)
    on_kernel = on_kernel and (backend == "kernel" or draft_token_ids.size(1) <= MOST_DRAFTS)
    if check_values:
        check_values_of(arguments)
    if not on_kernel:
        return verify_pytorch(
            *arguments[:6],
            row_start=row_start,
            draft_onehot=draft_onehot,
            adjustments=adjustments,
            block_verification=block_verification,
            margins=margins,
            logprobs=logprobs,
        )
    from slipstream_kernels.spec_verify.kernel import verify_kernel  # needs `triton`

    result = verify_kernel(
        *arguments[:6],
        row_start=row_start,
        draft_onehot=draft_onehot,
        adjustments=adjustments,
        block_verification=block_verification,
        margins=margins,
        workspace=workspace,
    )
    return result if logprobs else result._replace(logprobs=None)
