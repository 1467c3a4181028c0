"""The comparison of tokenizers before a server starts, by vLLM's Python, on real checkpoints that were changed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from slipstream_engine.embedded import DRAFT_DIR, TARGET_DIR
from slipstream_tools.up.vllm_environment import VllmInstall

from tests.support.manifests import JSON


def edit(file: Path, change: Callable[[JSON], object]) -> None:
    content: JSON = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """The embedded draft without its weights."""
    return Path(shutil.copytree(DRAFT_DIR, tmp_path / "draft", ignore=shutil.ignore_patterns("*.safetensors")))


def compare(install: VllmInstall, draft: Path) -> tuple[int, bool | None, str]:
    report = draft.parent / "termination-log"
    program = ["-m", "slipstream_vllm.preflight", f"--target={TARGET_DIR}", f"--draft={draft}", f"--report={report}"]
    done = subprocess.run(
        [str(install.python), *program], cwd=draft.parent, capture_output=True, text=True, timeout=120, check=False
    )
    assert report.exists(), done.stderr
    content = json.loads(report.read_text())
    return done.returncode, content["tokenizerCompatible"], content["message"]


def test_the_embedded_pair_has_one_tokenizer(vllm_install: VllmInstall, draft: Path) -> None:
    assert compare(vllm_install, draft) == (0, True, "the draft has the target's tokenizer: the same 2048 tokens")


def test_an_id_with_another_token_is_an_error(vllm_install: VllmInstall, draft: Path) -> None:
    def swap(content: JSON) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    edit(draft / "tokenizer.json", swap)
    code, compatible, message = compare(vllm_install, draft)
    assert (code, compatible) == (1, False)
    assert message.startswith("2 token ids of the draft mean other tokens in the target; first, id ")
    assert message.endswith("'a' in the target, 'b' in the draft")


def test_a_token_that_only_one_of_them_has_is_none(vllm_install: VllmInstall, draft: Path) -> None:
    added = {"id": 2048, "content": "<extra>", "special": True, "normalized": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    edit(draft / "tokenizer.json", lambda content: content["added_tokens"].append(added | flags))
    code, compatible, message = compare(vllm_install, draft)
    assert (code, compatible) == (0, True)
    assert message == "the draft has the target's tokenizer: the same 2048 tokens, and 1 that only one of them has"


def test_embeddings_of_another_size_are_an_error(vllm_install: VllmInstall, draft: Path) -> None:
    edit(draft / "config.json", lambda content: content.update(vocab_size=4096))
    code, compatible, message = compare(vllm_install, draft)
    assert (code, compatible) == (1, False)
    assert message == "vLLM needs equal vocab_size: it is 2048 in the target and 4096 in the draft"


def test_a_tokenizer_of_an_unknown_form_is_left_to_vllm(vllm_install: VllmInstall, draft: Path) -> None:
    """For which the library raises a bare exception."""
    (draft / "tokenizer.json").write_text('{"version": "9.0", "model": {"type": "Unheard"}}')
    code, compatible, _ = compare(vllm_install, draft)
    assert (code, compatible) == (0, None)


def test_what_cannot_be_compared_is_left_to_vllm(vllm_install: VllmInstall, draft: Path) -> None:
    (draft / "tokenizer.json").unlink()
    (draft / "tokenizer_config.json").unlink()
    code, compatible, message = compare(vllm_install, draft)
    assert (code, compatible) == (0, None)
    assert message.startswith("the tokenizers could not be compared: ")
