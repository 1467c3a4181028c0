"""Where manifests come from: a file or a cluster."""
