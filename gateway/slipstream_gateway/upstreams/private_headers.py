"""Headers of clients that no server gets if the gateway has keys, and that `--forward-header` never forwards."""

from __future__ import annotations

_CREDENTIALS = ("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key")
# By these a client acts on others in vLLM, past the permissions of its key.
_ON_OTHERS = ("x-vllm-priority", "x-session-id", "x-data-parallel-rank")
PRIVATE = (*_CREDENTIALS, *_ON_OTHERS)
