"""The operator's decisions: pure functions from the observed state to the desired state. No I/O, no clock."""
