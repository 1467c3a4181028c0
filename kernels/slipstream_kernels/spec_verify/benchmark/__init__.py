"""Parts of the verification benchmark: cases, checks and measurement."""
