"""kopf's watch, the controller that it feeds, and the handlers of each kind."""
