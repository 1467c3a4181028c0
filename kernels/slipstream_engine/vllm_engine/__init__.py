"""vLLM with the plugin as an application inside Triton.

Runs in vLLM's own Python environment and needs only vLLM, msgspec and numpy.
"""
