"""The callback that `config.yaml` beside this file names."""

from pathlib import Path

from slipstream_gateway.litellm_proxy.callback import SlipstreamCallback

callback = SlipstreamCallback(Path(__file__).with_name("pair.yaml"))
