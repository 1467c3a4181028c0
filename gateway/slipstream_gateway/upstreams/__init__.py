"""Where requests go: one small protocol, two implementations (Triton over gRPC, OpenAI over HTTP), replica pools."""
