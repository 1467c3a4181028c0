"""An engine with its threads, built from settings."""
