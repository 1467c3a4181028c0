"""What the official `openai` client gets from the embedded pair in front of the real Triton, feature by feature, and
what the gateway refuses for other engines: the cells of `docs/reference/features.md`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from slipstream_core.types import RESPONSES_FEATURE

from tests.gateway import scripted_dialects as scripted
from tests.support.openai_client.chat import CHAT
from tests.support.openai_client.engines import ROUTES, Served, expected
from tests.support.openai_client.features import Feature, Target
from tests.support.openai_client.others import ERRORS, MODELS, OTHERS
from tests.support.openai_client.results import result_of
from tests.support.polling import PATIENCE_S

OWN = ROUTES["own"]
ANSWERS = [one for one in (*CHAT, *OTHERS) if one.area != ERRORS and "retrieve, cancel" not in one.name]


def names(feature: Feature) -> str:
    return f"{feature.area}: {feature.name}"


def client(url: str, mode: str = "auto") -> openai.OpenAI:
    headers = {"x-slipstream-mode": mode}
    return openai.OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S, default_headers=headers
    )


@pytest.mark.parametrize("feature", ANSWERS, ids=names)
def test_own_pair(feature: Feature, gateway_url: str) -> None:
    served, lacking = expected(feature, OWN)
    asked = client(gateway_url, "speculative")
    arms: list[str | None] = []
    asked._client.event_hooks["response"].append(lambda answer: arms.append(answer.headers.get("x-slipstream-arm")))
    found = result_of(feature.run, Target(asked, OWN.model))
    if served is Served.REFUSED:
        check_refused(found, lacking)
    elif feature.area == MODELS:
        assert found in (["model"], "model")
    else:
        assert "exception" not in found, found
        assert set(arms) == {"speculative" if served is Served.BOTH else "plain"}


def check_refused(found: Any, lacking: tuple[str, ...]) -> None:
    assert found["exception"] == "BadRequestError", found
    if RESPONSES_FEATURE in lacking:
        assert found["error"]["code"] == "unsupported_endpoint"
    else:
        assert found["error"]["param"] in lacking


@pytest.fixture(scope="module")
def pools(run_gateway: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The URL of a gateway in front of two pools of a dialect's servers, by the dialect."""
    with contextlib.ExitStack() as stack:
        urls: dict[str, str] = {}
        for dialect, kind in scripted.DIALECTS.items():
            plain, speculative = kind(speculates=False), kind(speculates=True)
            stack.callback(plain.stop)
            stack.callback(speculative.stop)
            text = scripted.pair_text(dialect, plain=plain.url, speculative=speculative.url)
            path = tmp_path_factory.mktemp(dialect) / "pair.yaml"
            urls[dialect] = stack.enter_context(run_gateway(path, text)).url
        yield urls


def refused(dialect: str) -> Iterator[Any]:
    for feature in ANSWERS:
        served, lacking = expected(feature, ROUTES[dialect])
        if served is Served.REFUSED:
            yield pytest.param(dialect, feature, lacking, id=f"{dialect}: {names(feature)}")


@pytest.mark.parametrize(("dialect", "feature", "lacking"), [*refused("sglang"), *refused("trtllm")])
def test_dialect_refuses(dialect: str, feature: Feature, lacking: tuple[str, ...], pools: dict[str, str]) -> None:
    check_refused(result_of(feature.run, Target(client(pools[dialect]), "acme")), lacking)
