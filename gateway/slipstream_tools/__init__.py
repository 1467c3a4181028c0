"""The command line: a package for each command."""
