"""Who may do what, and how much of it: API keys, tokens, scopes, rates, budgets.

`Gate` is all of it; it is built from a file of keys (`records`) that `slipstream keys` writes and that is followed
(`follow`). Keys are compared by hash (`key_text`, `keyring`), tokens by their issuer's public keys (`jwks`, `tokens`).
Limits (`limiting`) are exact over all replicas while Redis answers and local otherwise.
"""

from slipstream_gateway.access.counts import AccessStatus
from slipstream_gateway.access.follow import KeyFile
from slipstream_gateway.access.gate import Gate, Lease
from slipstream_gateway.access.keyring import Keyring, load_keyring
from slipstream_gateway.access.limiting import Limiter, SharedLimits, SharedUsage
from slipstream_gateway.access.local_limits import LocalLimits
from slipstream_gateway.access.principal import Principal

__all__ = [
    "AccessStatus",
    "Gate",
    "KeyFile",
    "Keyring",
    "Lease",
    "Limiter",
    "LocalLimits",
    "Principal",
    "SharedLimits",
    "SharedUsage",
    "load_keyring",
]
