"""The embedded model pair: a small target and its draft, and everything that made them.

`target/` and `draft/` are checkpoint folders in Hugging Face form with one shared tokenizer. They were made
by `train_tokenizer` and `train` from `corpus`, which needs nothing but a seed; `evaluate` measures them on
held-out prompts. Importing this package costs nothing: the modules that need torch are imported by name.
"""

from __future__ import annotations

from pathlib import Path

TARGET_DIR = Path(__file__).parent / "target"
DRAFT_DIR = Path(__file__).parent / "draft"

__all__ = ["DRAFT_DIR", "TARGET_DIR"]
