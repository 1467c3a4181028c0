"""Decode engine for Llama-family checkpoints with a draft length per request."""
