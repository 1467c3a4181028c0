"""`slipstream drafts`: what gateways have captured for training drafts: list it, describe it, export it, delete it."""
