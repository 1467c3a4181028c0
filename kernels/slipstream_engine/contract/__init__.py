"""Requests and results of the engine, the checks of a request, and what the engine reports of itself."""
