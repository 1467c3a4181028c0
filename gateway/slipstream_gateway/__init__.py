"""Slipstream's data plane: one OpenAI-compatible endpoint that decides speculation per request."""
