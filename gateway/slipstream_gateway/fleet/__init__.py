"""The servers of the current routing table."""
