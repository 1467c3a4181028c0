"""Triton loads this file; the backend itself is part of the engine package."""

from slipstream_engine.pipe.triton_backend import TritonPythonModel

__all__ = ["TritonPythonModel"]
