"""`slipstream gateway`: options and start."""
