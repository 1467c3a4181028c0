"""vLLM's `AsyncLLM` as an engine of Slipstream's Triton model.

Runs in vLLM's own Python environment, of which it needs nothing but vLLM, msgspec and numpy.
"""
