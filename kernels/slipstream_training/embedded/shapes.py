"""The dimensions of the embedded pair, and how its target grows."""

from __future__ import annotations

import msgspec
from slipstream_engine.model.config import ModelConfig
from torch import nn

from slipstream_training.models.llama import Llama, llama_config

TARGET = llama_config(layers=16, hidden=128, heads=4, kv_heads=2, intermediate=384, vocab=2048)
STEM = msgspec.structs.replace(TARGET, layers=4)
DRAFT = llama_config(layers=1, hidden=192, heads=6, kv_heads=6, intermediate=576, vocab=2048)


def grown(model: Llama, layers: int) -> Llama:
    """The same function as `model` with more layers, spread evenly.

    A new layer is a copy of the one below it whose two outputs are zero, so that it changes nothing yet and still gets
    gradients (progressive stacking).
    """
    config: ModelConfig = msgspec.structs.replace(model.config, layers=layers)
    result = Llama(config)
    result.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    result.model.norm.load_state_dict(model.model.norm.state_dict())
    taken = -1
    for index, layer in enumerate(result.model.layers):
        source = index * model.config.layers // layers
        layer.load_state_dict(model.model.layers[source].state_dict())
        if source == taken:
            nn.init.zeros_(layer.get_parameter("self_attn.o_proj.weight"))
            nn.init.zeros_(layer.get_parameter("mlp.down_proj.weight"))
        taken = source
    return result
