"""kopf's watch, the controller that receives its events, and the handlers of each kind."""
