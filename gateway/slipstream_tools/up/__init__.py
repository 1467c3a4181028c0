"""`slipstream up`: starts Triton, the gateway and a demo with one command, on a laptop or a single server."""
