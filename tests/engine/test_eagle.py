"""EAGLE heads: the engine proposes what the trainer trained, reads their files, and says what is wrong with them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from slipstream_engine.drafts.eagle import EagleDrafts, EagleHead
from slipstream_engine.drafts.sources import DraftRow, Offer
from slipstream_engine.errors import CheckpointError, DraftMismatchError
from slipstream_engine.model.model import Model
from slipstream_engine.model.step_batch import Span
from slipstream_engine.preflight import compare
from slipstream_training.models.eagle_head import Head, HeadPass
from torch import Tensor
from torch.nn import functional

from tests.engine.conftest import eagle_head
from tests.engine.requests_and_answers import Make

CPU = torch.device("cpu")
PROPOSED = list(range(0, 257, 2))
DRAFT_LENGTH = 4


@pytest.fixture(scope="module")
def target(pair_folder: Path) -> Model:
    return Model.load(pair_folder / "target", device=CPU, dtype=torch.float32)


def _hidden(target: Model, tokens: list[int]) -> Tensor:
    batch = target.layout([Span(0, 0, len(tokens))])
    return target.forward(torch.tensor(tokens), batch, target.new_cache(1))


@torch.no_grad()
def _expected(head: Head, target: Model, tokens: list[int]) -> list[int]:
    """The drafts after `tokens` by the trainer's own forward pass."""
    known = target.features(_hidden(target, tokens[:-1]))
    drafts: list[int] = []
    for _ in range(DRAFT_LENGTH):
        embedded = target.embed(torch.tensor([*tokens[1:], *drafts]))[None]
        features = functional.pad(known, (0, 0, 0, len(drafts)))[None]
        passes: list[HeadPass] = []
        for _ in range(len(drafts) + 1):
            predicted, made = head(embedded, features, passes)
            passes.append(made)
            features = functional.pad(predicted, (0, 0, 1, 0))[:, :-1]
        logits = target.read(predicted[0, -1:])
        drafts.append(max(PROPOSED, key=lambda token: float(logits[0, token])))
    return drafts


@torch.inference_mode()
def test_engine_proposes_as_the_trainer_predicts(pair_folder: Path, target: Model) -> None:
    """Over a request's life: a prompt in two parts, then steps that accept none, some and all drafts."""
    head = eagle_head(transformers.LlamaForCausalLM.from_pretrained(pair_folder / "target"))
    drafts = EagleDrafts(EagleHead.load(pair_folder / "eagle", target), target, slots=3)
    text = torch.randint(0, 256, (60,), generator=torch.Generator().manual_seed(5)).tolist()
    hidden = _hidden(target, text)
    slot, prompt = 1, 17
    for start, end in ((0, 9), (9, prompt)):
        drafts.observe(slot, hidden[start:end])
        drafts.prefill(slot, text[:prompt], end)
    seen, length = prompt, prompt + 1  # the target's output is known of all tokens but the last
    for accepted in (0, 2, DRAFT_LENGTH, 1, None, None, 3, 0):
        tokens = text[:length]
        if accepted is not None:  # else a step without drafts
            proposed = drafts.propose([DraftRow(slot, tokens, DRAFT_LENGTH)])
            assert proposed.token_ids[0].tolist() == _expected(head, target, tokens)
            drafts.commit(slot, accepted)
        length += 1 + (accepted or 0)
        drafts.observe(slot, hidden[seen : length - 1])
        seen = length - 1
    drafts.release(slot)
    assert drafts.offers(DraftRow(slot, text[:2], DRAFT_LENGTH)) == [Offer([17, 18, 19, 20], copied=False)]


def test_head_proposes_its_tokens_alone(pair_folder: Path, target: Model) -> None:
    head = EagleHead.load(pair_folder / "eagle", target)
    features = torch.randn(50, target.config.hidden_size)
    expected = [PROPOSED[index] for index in target.read(features)[:, PROPOSED].argmax(-1).tolist()]
    assert head.likeliest(features).tolist() == expected


def test_head_without_a_list_of_tokens_proposes_all(pair_folder: Path, target: Model, tmp_path: Path) -> None:
    folder = shutil.copytree(pair_folder / "eagle", tmp_path / "all")
    (folder / "draft_token_ids.json").unlink()
    features = torch.randn(50, target.config.hidden_size)
    assert torch.equal(EagleHead.load(folder, target).likeliest(features), target.read(features).argmax(-1))


@pytest.mark.parametrize("content", ["{}", "[]", "[1, 1]", "[257]", "[-1]", "[0.5]", "no"])
def test_bad_list_of_tokens_is_named(pair_folder: Path, target: Model, tmp_path: Path, content: str) -> None:
    folder = shutil.copytree(pair_folder / "eagle", tmp_path / "broken")
    (folder / "draft_token_ids.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"draft_token_ids\.json: "):
        EagleHead.load(folder, target)


def test_head_for_another_target_is_refused_or_decodes_plainly(
    pair_folder: Path, make_engine: Make, tmp_path: Path
) -> None:
    folder = shutil.copytree(pair_folder / "eagle", tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    expected = "vocab_size is 257 in the target and 300 in the draft, an EAGLE head"
    with pytest.raises(DraftMismatchError, match=expected):
        make_engine(str(folder))
    assert make_engine(str(folder), on_draft_mismatch="plain").max_draft_tokens == 0
    report = compare(target=str(pair_folder / "target"), draft=str(folder))
    assert (report.tokenizer_compatible, report.message) == (False, expected)


def test_preflight_takes_a_head_for_its_target(pair_folder: Path) -> None:
    assert compare(target=str(pair_folder / "target"), draft=str(pair_folder / "eagle")).tokenizer_compatible


def test_head_with_an_unknown_tensor_is_refused(pair_folder: Path, target: Model, tmp_path: Path) -> None:
    """Such as the bias that some published heads have: without it the drafts would be wrong."""
    folder = shutil.copytree(pair_folder / "eagle", tmp_path / "bias")
    from safetensors.torch import load_file, save_file

    save_file(load_file(folder / "model.safetensors") | {"fc.bias": torch.zeros(32)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no place for tensor 'fc\.bias'"):
        EagleHead.load(folder, target)
