"""The LoRA adapters of a pair, and their names for clients and on servers."""

from __future__ import annotations

from slipstream_core.manifest.engines import Adapter, VllmEngine
from slipstream_core.manifest.model_pair import ModelPair

ADAPTER_SEPARATOR = ":"


def adapters_of(pair: ModelPair) -> tuple[Adapter, ...]:
    """The adapters of the pair; empty for engines without them."""
    engine = pair.spec.engine
    return engine.adapters if isinstance(engine, VllmEngine) else ()


def has_lora(pair: ModelPair) -> bool:
    """Whether the servers of the pair are known to run with LoRA."""
    engine = pair.spec.engine
    return isinstance(engine, VllmEngine) and (bool(engine.adapters) or "--enable-lora" in engine.arguments)


def adapter_name(model: str, adapter: Adapter) -> str:
    """The name by which clients request `adapter` of the pair with `model`."""
    return f"{model}{ADAPTER_SEPARATOR}{adapter.name}"


def base_and_adapter(model: str) -> tuple[str, str]:
    """The model and the name of the adapter in a client's name; the model is empty if it names no adapter."""
    base, _, name = model.rpartition(ADAPTER_SEPARATOR)
    return base, name


def name_on_servers(pair: ModelPair, adapter: Adapter) -> str:
    """The name of `adapter` on the pair's servers: its own on servers that have an address, else that of clients."""
    engine = pair.spec.engine
    if isinstance(engine, VllmEngine) and engine.endpoints:
        return adapter.model or adapter.name
    return adapter_name(pair.spec.model, adapter)
