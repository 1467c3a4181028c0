"""Drafts that the package `speculators` trains for vLLM: the commands, as a script that a person can read and change.

The commands are those of speculators 0.9. vLLM serves the target meanwhile, and hands over its hidden states.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slipstream_core.errors import CommandError

SPECULATORS = "speculators>=0.9,<0.10"
_LONGEST, _DRAFT_VOCABULARY, _PORT = 8192, 32_000, 8000


class Method(NamedTuple):
    """One algorithm: its own options of `speculators train`, and whether its draft has a part of the vocabulary."""

    options: Sequence[str]
    reduces: bool = True


METHODS: Mapping[str, Method] = {
    "eagle3": Method(()),
    "peagle": Method(("--num-layers", "4", "--num-depths", "4", "--no-norm-before-residual")),
    "dflash": Method(("--num-layers", "5", "--lr", "3e-4")),
    "dspark": Method(("--num-layers", "5", "--lr", "3e-4", "--loss-fn", '{"ce": 0.1, "tv": 0.9}')),
    "mtp": Method((), reduces=False),
}


def script(method: str, *, target: str, draft: str | None, passes: str, answers: Path, output: Path) -> str:
    """The shell script that trains a draft by `method` on the rows in `answers`, and checks the result.

    Raises:
        CommandError: `target` is no checkpoint folder.
    """
    layers, vocabulary, context = _facts(target)
    longest = str(min(_LONGEST, context))
    chosen = METHODS[method]
    hidden = [layers] if method == "mtp" else [2, layers // 2, layers - 3, layers]
    reduced = chosen.reduces and vocabulary > _DRAFT_VOCABULARY
    data, checkpoints = output / "data", output / "checkpoints"
    prepare = [
        *("speculators", "prepare-data", "--model", target, "--data", str(answers), "--output", str(data)),
        *("--seq-length", longest, "--no-skip-token-freq" if reduced else "--skip-token-freq"),
    ]
    serve = [
        *("vllm", "serve", target, "--port", str(_PORT)),
        *("--speculative-config", json.dumps(_extraction(hidden))),
        *("--kv-transfer-config", json.dumps(_handover(output / "hidden_states"))),
    ]
    train = [
        *("speculators", "train", "--verifier-name-or-path", target, "--speculator-type", method),
        *("--data-path", str(data), "--save-path", str(checkpoints), "--total-seq-len", longest),
        *("--epochs", passes, "--save-best", *chosen.options),
        *(("--draft-vocab-size", str(_DRAFT_VOCABULARY)) if reduced else ()),
        *(("--target-layer-ids", str(layers)) if method == "mtp" else ()),
        *(("--from-pretrained", draft) if draft is not None else ()),
        *("--vllm-endpoint", f"http://localhost:{_PORT}/v1", "--on-missing", "generate"),
    ]
    best = checkpoints / "checkpoint_best"
    lines = [
        "#!/bin/sh",
        f"# Trains a draft by {method}. Needs two environments with GPUs: '{SPECULATORS}', and vLLM.",
        "set -eu",
        "umask 077  # what follows are answers of users, too",
        "",
        "# 1. The answers as rows for training",
        shlex.join(prepare),
        "",
        "# 2. The target, in the environment of vLLM. Leave it running.",
        f"# {shlex.join(serve)}",
        "",
        "# 3. The draft",
        shlex.join(train),
        "",
        "# 4. Whether the draft fits",
        shlex.join(["slipstream", "drafts", "check", "--target", target, "--draft", str(best)]),
    ]
    if method == "mtp":
        stitch = ["speculators", "stitch-mtp", str(best), target, "--output-path", str(output / "stitched")]
        lines += ["", "# 5. The target with its new MTP layers", shlex.join(stitch)]
    return "\n".join(lines) + "\n"


def _extraction(layers: Sequence[int]) -> dict[str, Any]:
    hidden = {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(layers)}}
    return {"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": hidden}


def _handover(folder: Path) -> dict[str, Any]:
    return {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }


class _Facts(NamedTuple):
    """Of a target: its numbers of layers, of tokens in its vocabulary and in its context."""

    layers: int
    vocabulary: int
    context: int


def _facts(target: str) -> _Facts:
    file = Path(target) / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        text = config.get("text_config") or config
        return _Facts(*(int(text[name]) for name in ("num_hidden_layers", "vocab_size", "max_position_embeddings")))
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as exc:
        raise CommandError(
            f"--target {target}: {file} does not name its layers, vocabulary and context: {exc!r}"
        ) from exc
