"""The status of parents and the Events about them."""
