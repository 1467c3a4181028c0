"""The HTTP edge: OpenAI's protocol in, types inward, bytes out."""
