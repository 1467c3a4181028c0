"""Writes the answers of the engine in OpenAI's form."""
