"""The HTTP edge: parses OpenAI's protocol into types, and renders types as responses."""
