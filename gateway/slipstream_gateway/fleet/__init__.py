"""The servers that the current routing table names."""
