"""The servers behind the gateway: one small protocol, two implementations (Triton over gRPC, OpenAI over HTTP), replica
pools."""
