"""HTTP/1.1, the process, and several gateways on one port."""
