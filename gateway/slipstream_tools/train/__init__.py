"""Trains the classifier: reads rows, fits, measures on sources held out. Only `slipstream train` imports it."""
