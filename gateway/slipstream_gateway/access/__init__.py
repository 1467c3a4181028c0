"""API keys, tokens, scopes, rate limits and budgets.

`KeyedAccess` is the entry point. It reads the key file (`records`) of `slipstream keys`, and reloads it on change
(`follow`). Keys are compared by hash (`key_text`, `keyring`), tokens are verified with their issuer's public keys
(`jwks`, `tokens`). Limits (`limiting`) are exact over all replicas while Redis is reachable, and per process otherwise.
"""

from slipstream_gateway.access.follow import KeyFile
from slipstream_gateway.access.keyed_access import AccessStatus, KeyedAccess, Lease
from slipstream_gateway.access.keyring import Keyring
from slipstream_gateway.access.limiting import Limiter, SharedLimits
from slipstream_gateway.access.local_limits import LocalLimits
from slipstream_gateway.access.principal import Principal

__all__ = [
    "AccessStatus",
    "KeyFile",
    "KeyedAccess",
    "Keyring",
    "Lease",
    "Limiter",
    "LocalLimits",
    "Principal",
    "SharedLimits",
]
