"""The console: what the gateway does right now, on one page and in a terminal, from all of its workers."""
