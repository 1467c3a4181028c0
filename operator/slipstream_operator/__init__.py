"""Slipstream's control plane: model pairs become Triton deployments, and speculation is promoted and taken back."""
