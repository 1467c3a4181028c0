"""Text and tokens: tokenizers, chat templates and streams that never end inside a character."""
