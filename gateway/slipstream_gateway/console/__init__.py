"""The console: the gateway's present state on one page and in a terminal."""
