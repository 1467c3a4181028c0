"""What an engine and its front end share: requests, results and the protocol of a served engine."""
