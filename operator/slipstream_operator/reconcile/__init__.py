"""The operator's decisions: pure functions from what is observed to what should be. No I/O, no clock."""
