"""Builds the application's services, each once from the settings (`build_services`), and its public and admin
endpoints."""

from slipstream_gateway.app.wiring import Services, build_services

__all__ = ["Services", "build_services"]
