"""The draws of request ids at the gateways that tests start."""

from __future__ import annotations

from slipstream_gateway.decide.route import RequestDraws

SECRET = "the secret of all tests"
draws_of = RequestDraws(SECRET.encode()).of
