"""What the data plane, the control plane and the tools share."""
