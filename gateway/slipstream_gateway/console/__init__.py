"""The console: the gateway's present state over all of its workers, on one page and in a terminal."""
