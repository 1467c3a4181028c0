"""The engine's errors.

EngineError
├── CheckpointError          a checkpoint folder cannot be loaded; the message names the file and the problem
│   └── DraftMismatchError   the draft's tokenizer differs from the target's
├── RequestError             a request that can never succeed; `code` is stable and machine-readable
├── OverloadedError          the waiting queue is full; retry later
└── EngineFailedError        the engine has ended and answers no more requests
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors raised by `slipstream_engine`."""


class CheckpointError(EngineError):
    """A checkpoint folder cannot be loaded."""


class DraftMismatchError(CheckpointError):
    """The draft's token ids differ from the target's."""


class RequestError(EngineError):
    """A request that this engine can never serve. `code` is one of `invalid_request`,
    `context_length_exceeded`. `param` is the field of the request that is wrong, None if that is the prompt."""

    def __init__(self, message: str, *, code: str = "invalid_request", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class OverloadedError(EngineError):
    """The engine's waiting queue is full."""

    code = "overloaded"


class EngineFailedError(EngineError):
    """The engine has ended; every request fails until a restart."""

    code = "internal"
