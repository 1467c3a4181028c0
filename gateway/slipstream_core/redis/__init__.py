"""What replicas share of the outcomes they see: in memory (nothing is shared) or through Redis."""
