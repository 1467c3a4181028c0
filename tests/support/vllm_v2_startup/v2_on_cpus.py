"""A plugin of vLLM for the V2 model runner on CPUs, with the choices that vLLM makes on GPUs."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """vLLM calls this in every process."""
    _keep_asynchronous_scheduling()
    _filter_with_pytorch()
    _patch_once()


def _keep_asynchronous_scheduling() -> None:
    """vLLM turns `--async-scheduling` off on CPUs as useless. Its scheduler, engine and workers are those of GPUs."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def check_and_keep(vllm_config: Any) -> None:
        asynchronous = vllm_config.scheduler_config.async_scheduling
        check(vllm_config)
        vllm_config.scheduler_config.async_scheduling = bool(asynchronous)

    CpuPlatform.check_and_update_config = staticmethod(check_and_keep)  # type: ignore[assignment]


def _filter_with_pytorch() -> None:
    """Triton's interpreter cannot run vLLM's kernel for top-k and top-p, whose loop variable is a tensor on GPUs only.
    vLLM has the same filter in PyTorch."""
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False


def _patch_once() -> None:
    """Triton's interpreter replaces the kernel language at each call of a device function, within kernels that have
    replaced it already. That takes most of the time of a small kernel."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    patched: set[str] = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (module := self.fn.__module__) not in patched:
            patched.add(module)
            patch(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
