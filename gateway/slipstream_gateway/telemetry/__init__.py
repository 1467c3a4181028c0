"""Metrics and spans through the OpenTelemetry API, served at `/metrics` and exported by OTLP where configured."""
