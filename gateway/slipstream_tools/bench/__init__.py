"""Compares modes of decoding on a team's own requests: `slipstream bench` and `slipstream replay`."""
