"""The caller of a request and its permissions, compiled once from the key file or from a token's claims."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

import msgspec
from slipstream_core.rate_limits import Charge, Limits
from slipstream_core.types import ANONYMOUS, Caller, GenerationRequest, Mode, Priority, PromptSize

from slipstream_gateway.access.records import Price, Scopes

UNLIMITED_OUTPUT_TOKENS = 1024
MOST_OUTPUT_TOKENS = 131_072
"""Per choice. A request may ask for two billion tokens, which no model generates; such a charge would block its key for
years."""
_BYTES_PER_TOKEN = 4
_MEDIA_TOKENS = 1024
_MOST_MEDIA_TOKENS = 16_384  # an image of Qwen2-VL at full size
_NANO_PER_USD_PER_MILLION = 1000


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller. `models` None: all models. `key_id` is not secret, nor is any other field."""

    key_id: str
    name: str = ""
    scopes: Scopes = Scopes()
    limits: Limits = Limits()
    caller: Caller = ANONYMOUS
    models: re.Pattern[str] | None = None
    state: re.Pattern[str] = re.compile(r"(?!)")

    @property
    def is_admin(self) -> bool:
        return self.scopes.admin

    def may_use(self, model: str) -> bool:
        return self.models is None or self.models.fullmatch(model) is not None

    def may_demand(self, mode: Mode) -> bool:
        return mode is Mode.AUTO or mode in self.scopes.modes


def compile_principal(key_id: str, name: str, scopes: Scopes, priority: Priority, limits: Limits) -> Principal:
    return Principal(
        key_id=key_id,
        name=name,
        scopes=scopes,
        limits=limits,
        caller=Caller(key_id=key_id, priority=priority),
        models=None if "*" in scopes.models else _any_of(scopes.models),
        state=_any_of(scopes.state),
    )


def _any_of(globs: Sequence[str]) -> re.Pattern[str]:
    """A pattern that matches any of `globs`; it matches nothing without globs."""
    return re.compile("|".join(fnmatch.translate(glob) for glob in globs) or r"(?!)")


class Prices:
    """The price of tokens, by model. Prices are per token and not per GPU hour: a caller must be able to predict the
    cost of a request, and must not pay for slow neighbours."""

    def __init__(self, prices: Sequence[Price]) -> None:
        self._prices = [
            (
                re.compile(fnmatch.translate(price.models)),
                price.input_usd_per_million_tokens * _NANO_PER_USD_PER_MILLION,
                price.output_usd_per_million_tokens * _NANO_PER_USD_PER_MILLION,
            )
            for price in prices
        ]

    def nano_usd(self, model: str, prompt_tokens: int, output_tokens: int) -> int:
        for models, prompt, output in self._prices:
            if models.fullmatch(model) is not None:
                return round(prompt * prompt_tokens + output * output_tokens)
        return 0

    def expected(self, request: GenerationRequest, limits: Limits) -> Charge:
        """The charge of `request` before it runs: an estimate of its prompt tokens, all output tokens that it asks for,
        and one place for each of its choices."""
        prompt, output = expected_prompt_tokens(request.prompt_size), requested_output_tokens(request)
        if limits.usd_per_day is None:
            return Charge(prompt + output, 0, request.choices, output)
        prompt_cost, output_cost = self.nano_usd(request.model, prompt, 0), self.nano_usd(request.model, 0, output)
        return Charge(prompt + output, prompt_cost + output_cost, request.choices, output, output_cost)

    def taken(self, model: str, prompt_tokens: int, output_tokens: int) -> Charge:
        return Charge(prompt_tokens + output_tokens, self.nano_usd(model, prompt_tokens, output_tokens))


def requested_output_tokens(request: GenerationRequest) -> int:
    """The maximum number of output tokens; `UNLIMITED_OUTPUT_TOKENS` for a request without a limit."""
    limit = UNLIMITED_OUTPUT_TOKENS if request.max_tokens is None else request.max_tokens
    return min(limit, MOST_OUTPUT_TOKENS) * request.choices


def expected_prompt_tokens(size: PromptSize) -> int:
    """An estimate of the prompt tokens: four bytes of text each, as in English."""
    return 1 + size.text_bytes // _BYTES_PER_TOKEN + size.token_ids + size.media * _MEDIA_TOKENS


def most_prompt_tokens(size: PromptSize) -> int:
    """The maximum number of prompt tokens: each byte of text may be one, as with digits."""
    return size.text_bytes + size.token_ids + size.media * _MOST_MEDIA_TOKENS
