"""Whether a request speculates: classify, estimate, route."""
