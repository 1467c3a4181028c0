"""Parses bodies into the requests of the engine."""
