"""The embedded model pair: a small target and its draft, with the prompts and workloads made for it.

`target/` and `draft/` are checkpoint folders in Hugging Face format with one shared tokenizer. The package
`slipstream_training.embedded`, which is part of the source tree only, trains them on `corpus`. Importing this package
does not import torch.
"""

from __future__ import annotations

from pathlib import Path

TARGET_DIR = Path(__file__).parent / "target"
DRAFT_DIR = Path(__file__).parent / "draft"

__all__ = ["DRAFT_DIR", "TARGET_DIR"]
