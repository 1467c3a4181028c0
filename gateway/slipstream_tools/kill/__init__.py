"""`slipstream kill` and `slipstream unkill`."""
