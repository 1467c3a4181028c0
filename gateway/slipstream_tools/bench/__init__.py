"""Compares decoding modes on a team's own requests: `slipstream bench` and `slipstream replay`."""
