"""Copies a trained pair into the package `slipstream_engine.embedded`.

    python -m embedded_training.export --target DIR --draft DIR

Only the files for serving are copied, not the trainer's state. Each file is replaced atomically.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR

FILES = (
    "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip
MAX_BYTES = 12_000_000


def export_pair(target: Path, draft: Path, *, target_out: Path = TARGET_DIR, draft_out: Path = DRAFT_DIR) -> int:
    """Copy both checkpoints; return their size in bytes.

    Raises `ValueError` before anything is written if they are too large or their tokenizers differ.
    """
    size = sum((folder / name).stat().st_size for folder in (target, draft) for name in FILES)
    if size > MAX_BYTES:
        raise ValueError(f"the pair has {size} bytes, more than {MAX_BYTES}")
    if (target / "tokenizer.json").read_bytes() != (draft / "tokenizer.json").read_bytes():
        raise ValueError("target and draft have different tokenizers")
    for source, out in ((target, target_out), (draft, draft_out)):
        out.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            fresh = out / f".{name}.fresh"
            shutil.copyfile(source / name, fresh)
            os.replace(fresh, out / name)
    return size


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True, help="folder of the trained target")
    parser.add_argument("--draft", type=Path, required=True, help="folder of the trained draft")
    args = parser.parse_args()
    size = export_pair(args.target, args.draft)
    print(f"{size / 1e6:.2f} MB -> {TARGET_DIR.parent}")


if __name__ == "__main__":
    main()
