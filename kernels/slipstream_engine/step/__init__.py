"""The decoding loop: one step for all running requests."""
