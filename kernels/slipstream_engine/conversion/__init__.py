"""Converts GGUF files to checkpoints."""
