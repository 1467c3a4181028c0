"""The application's parts, each built once from the settings: `build_parts`; and its endpoints, by side."""

from slipstream_gateway.app.wiring import Parts, build_parts

__all__ = ["Parts", "build_parts"]
