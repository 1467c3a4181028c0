"""The application's services, each built once from the settings: `build_services`; and its endpoints, by side."""

from slipstream_gateway.app.wiring import Services, build_services

__all__ = ["Services", "build_services"]
