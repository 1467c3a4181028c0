"""The tokenizer, the batches and the trainer, on sizes that take seconds."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from slipstream_engine.embedded.corpus import example
from slipstream_training.acceptance import count_acceptance
from slipstream_training.embedded.corpus_batches import Corpus, encode, render_prompt
from slipstream_training.embedded.shapes import DRAFT, grown
from slipstream_training.embedded.train import save
from slipstream_training.embedded.train_tokenizer import save_tokenizer, train_tokenizer
from slipstream_training.models.llama import Llama
from slipstream_training.models.losses import cross_entropy
from slipstream_training.rows import PROMPT_WEIGHT, SHORT_ANSWER
from slipstream_training.trainer import Plan, Trainer
from tokenizers import Tokenizer

PLAN = Plan(tokens=40_000, step_tokens=1024, matrix_lr=4e-3, other_lr=3e-3)


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(seed=1, vocab_size=600, sample=300), folder, max_length=2048)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))


def test_training_the_tokenizer_twice_gives_the_same_one(tokenizer: Tokenizer) -> None:
    assert train_tokenizer(seed=1, vocab_size=600, sample=300).to_str() == tokenizer.to_str()


def test_batches_resume_at_a_number(tokenizer: Tokenizer) -> None:
    corpus = Corpus(tokenizer, seed=4, max_tokens=2048)
    whole = list(itertools.islice(corpus.batches(0), 6))
    number, batch = next(corpus.batches(5))
    assert number == 5
    assert torch.equal(batch.ids, whole[5][1].ids)
    assert torch.equal(batch.weight, whole[5][1].weight)


def test_a_batch_is_bounded_and_weighs_answers_fully(tokenizer: Tokenizer) -> None:
    for _, batch in itertools.islice(Corpus(tokenizer, seed=4, max_tokens=2048).batches(0), 5):
        assert batch.ids.numel() <= 2048 + 32 * batch.ids.shape[0]
        assert {round(weight, 4) for weight in batch.weight.unique().tolist() if weight < 1.0} <= {0.0, PROMPT_WEIGHT}
        assert float(batch.weight.max()) <= SHORT_ANSWER
        padding = batch.ids[:, 1:] == tokenizer.token_to_id("<|pad|>")
        assert float(batch.weight[padding].sum()) == 0.0


def test_the_weight_of_one_covers_the_answer_and_its_end(tokenizer: Tokenizer) -> None:
    ids, prompt_length = encode(tokenizer, render_prompt(example(4, 0)), example(4, 0).answer)
    assert tokenizer.decode(ids[prompt_length:].tolist()) == example(4, 0).answer
    assert ids[-1] == tokenizer.token_to_id("<|end|>")


def test_training_lowers_the_loss_and_goes_on_from_its_checkpoint(
    tokenizer: Tokenizer, tokenizer_dir: Path, tmp_path: Path
) -> None:
    config = replace(DRAFT, hidden_size=64, heads=2, kv_heads=2, intermediate_size=64, vocab_rows=600)
    source = Corpus(tokenizer, seed=1, max_tokens=1024)

    def trainer_of(model: Llama, folder: Path, plan: Plan) -> Trainer:
        def write(fresh: Path) -> None:
            save(model, fresh, tokenizer, tokenizer_dir)

        return Trainer(model, partial(cross_entropy, model), plan, source, folder, write)

    def trainer(folder: str, plan: Plan = PLAN) -> Trainer:
        torch.manual_seed(0)
        (tmp_path / folder).mkdir(exist_ok=True)
        return trainer_of(Llama(config), tmp_path / folder, plan)

    whole = trainer("whole")
    before = whole.held_out_loss()
    *_, last = whole.run()
    assert last.held_out == whole.held_out_loss() < before - 0.5

    stopped = trainer("parts", PLAN._replace(tokens=20_000))
    list(stopped.run())
    resumed = trainer("parts")
    assert resumed.held_out_loss() == stopped.held_out_loss() < before
    list(resumed.run())
    assert resumed.held_out_loss() < stopped.held_out_loss()
    # bf16 autocast rounds the stored bf16 weights no further: the files give nearly the same loss
    reloaded = trainer_of(Llama.load(tmp_path / "parts"), tmp_path, PLAN)
    assert reloaded.held_out_loss() == pytest.approx(resumed.held_out_loss(), abs=0.02)


def test_the_learning_rate_warms_up_and_decays_to_zero() -> None:
    scales = [PLAN.lr_scale(seen) for seen in range(0, PLAN.tokens + 1, 400)]
    assert scales[0] < 0.1
    assert max(scales) > 0.95
    assert scales[-1] == 0.0
    assert PLAN.lr_scale(2 * PLAN.tokens) == 0.0


def test_acceptance_counts_a_known_sequence() -> None:
    counted = count_acceptance([[True, True, False, True, True, True, True, True]] * 4)
    # windows: TTFT (2 of 4 accepted, the miss is the target's own), TTTT (4 accepted and a bonus token)
    assert (counted.drafted, counted.accepted, counted.steps) == (8, 6, 2)


def test_acceptance_depends_on_the_position_in_a_draft() -> None:
    counted = count_acceptance([[True, True, True, True], [False, True, False, True]])
    # windows: token 0 hits and 1 hits, 2 is the target's own; 3 hits at the first position
    assert (counted.drafted, counted.accepted, counted.steps) == (3, 3, 2)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 8))
def test_acceptance_never_exceeds_what_was_drafted(matches: list[bool], gamma: int) -> None:
    counted = count_acceptance([matches] * gamma)
    assert 0 <= counted.accepted <= counted.drafted <= counted.steps * gamma
    assert counted.steps <= counted.tokens == len(matches)
    assert counted.accepted + counted.steps >= counted.tokens


def test_a_grown_model_computes_the_same_and_trains_in_every_layer() -> None:
    torch.manual_seed(0)
    stem = Llama(replace(DRAFT, layers=2, hidden_size=64, heads=2, kv_heads=2, intermediate_size=64, vocab_rows=300))
    deeper = grown(stem, 5)
    ids = torch.randint(0, 300, (2, 20))
    torch.testing.assert_close(deeper(ids), stem(ids))
    deeper(ids).logsumexp(-1).sum().backward()
    for layer in deeper.model.layers:
        assert float(layer.get_parameter("mlp.down_proj.weight").grad.abs().sum()) > 0.0
        assert float(layer.get_parameter("self_attn.o_proj.weight").grad.abs().sum()) > 0.0
