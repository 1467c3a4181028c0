"""Trains an EAGLE head for a target on the target's own answers. Not in any wheel."""
