"""Checks whether speculation changes answers: of probes before traffic, and of a share of the answers in traffic."""
