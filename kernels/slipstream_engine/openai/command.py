"""`python -m slipstream_engine.openai`: serves a pair of checkpoints by HTTP, without Triton."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import uvicorn

from slipstream_engine.errors import EngineError
from slipstream_engine.openai.app import create_app
from slipstream_engine.serving.service import EngineService
from slipstream_engine.settings import EngineSettings, settings_from_text

_SHUTDOWN_TIMEOUT_S = 20  # after a signal; answers that still run then are cancelled
API_KEY = "SLIPSTREAM_ENGINE_API_KEY"
EMBEDDED_PAIR = {"target": "embedded:target", "draft": "embedded:draft", "draft_kind": "model"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal. Returns 1 with one line of error if the engine cannot be loaded."""
    options = _parser().parse_args(arguments)
    try:
        given = dict(pair.partition("=")[::2] for pair in options.set)
        engine = EngineService.start(settings_from_text({**EMBEDDED_PAIR, **given}, EngineSettings))
    except (EngineError, RuntimeError) as exc:  # PyTorch raises RuntimeError where memory or a device fails
        print(" ".join(str(exc).split()), file=sys.stderr)
        return 1
    try:
        app = create_app(engine, model=options.model, api_key=os.environ.get(API_KEY) or None)
        uvicorn.run(
            app,
            host=options.host,
            port=options.port,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
        )
    finally:
        engine.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slipstream_engine.openai",
        description="Serve the embedded engine as an OpenAI application.",
        epilog=f"The environment variable {API_KEY} sets a bearer token that every request must have.",
        allow_abbrev=False,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--model", default="slipstream-embedded", help="the model's name in requests")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the engine, such as target=FOLDER or max_draft_tokens=4; repeatable (default: the embedded "
        "pair)",
    )
    return parser
