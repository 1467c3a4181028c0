"""vLLM's `AsyncLLM` as an engine of Slipstream's Triton model.

Runs in vLLM's own Python environment and needs only vLLM, msgspec and numpy.
"""
