"""Slipstream's control plane: turns declared model pairs into Triton deployments (arrives with the CRDs)."""
