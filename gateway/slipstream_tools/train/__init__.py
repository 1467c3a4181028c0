"""Trains the classifier: reads rows, fits, measures on held-out sources. Only `slipstream train` imports it."""
