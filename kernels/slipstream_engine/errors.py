"""The engine's errors.

EngineError
├── CheckpointError          a checkpoint folder cannot be loaded; the message names the file and the problem
│   └── DraftMismatchError   the draft's tokenizer differs from the target's
├── RequestError             a request that can never succeed
├── OverloadedError          the waiting queue is full; retry later
└── ClosedError              the engine is shutting down
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors raised by `slipstream_engine`."""


class CheckpointError(EngineError):
    """A checkpoint folder cannot be loaded."""


class DraftMismatchError(CheckpointError):
    """The draft's token ids differ from the target's."""


class RequestError(EngineError):
    """A request that this engine can never serve. `param` is the field of the request that is wrong, None if that is
    the prompt: its token at `token`, or all of it, and the one with the index `prompt` if the request has several.
    `code` is OpenAI's name of the problem."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_value", token: int | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.token = token
        self.prompt: int | None = None


class OverloadedError(EngineError):
    """The engine's waiting queue is full."""


class ClosedError(EngineError):
    """The engine is shutting down, and answers no more requests."""
