"""The target's forward pass: configuration, weights, caches and the batch of a step."""
