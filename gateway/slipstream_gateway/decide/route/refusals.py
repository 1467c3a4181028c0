"""Refusals of requests that no server of a model answers: parameters by name, and values beyond the pair's bounds."""

from __future__ import annotations

import msgspec
from slipstream_core.errors import InvalidRequest, RequestCode, UnsupportedParameter
from slipstream_core.manifest import Route
from slipstream_core.parameter_names import KNOWN_PARAMETERS, STREAM_OPTIONS, suggestion
from slipstream_core.types import RESPONSES_FEATURE, GenerationRequest

_STREAM_OPTION = "stream_options."


def unsupported(feature: str, route: Route, request: GenerationRequest) -> UnsupportedParameter:
    """The error for a feature of `request` that no server of the model supports."""
    model = f"by the model '{route.model}'"
    if feature == RESPONSES_FEATURE:
        message = f"The endpoint '{feature}' is not supported {model}; use '/v1/chat/completions'."
        return UnsupportedParameter(message, param=None, code="unsupported_endpoint")
    if feature == "max_tokens 0":
        message = f"Invalid 'max_tokens': 0 is not supported {model}, which generates at least one token."
        return UnsupportedParameter(message, param="max_tokens", code=RequestCode.UNSUPPORTED_VALUE)
    if _is_unknown(feature, request):
        name = feature.removeprefix(_STREAM_OPTION)
        hint = suggestion(name, KNOWN_PARAMETERS if name == feature else STREAM_OPTIONS)
        message = f"Unknown parameter: '{feature}'. {hint}".rstrip()
        return UnsupportedParameter(message, param=feature, code=RequestCode.UNKNOWN)
    return UnsupportedParameter(f"The parameter '{feature}' is not supported {model}.", param=feature)


def _is_unknown(feature: str, request: GenerationRequest) -> bool:
    """Whether `feature` is a field of the body, and no parameter that any known server has. Other features are kinds of
    parts and the like."""
    if feature.startswith(_STREAM_OPTION):
        return feature.removeprefix(_STREAM_OPTION) not in STREAM_OPTIONS
    if feature in KNOWN_PARAMETERS:
        return False
    return feature in msgspec.json.decode(request.raw or b"{}", type=dict[str, msgspec.Raw])


def check_bounds(request: GenerationRequest, route: Route) -> None:
    """Raises `InvalidRequest` for a value beyond the bounds of the pair."""
    bounds = route.bounds
    if bounds.max_prompts is not None and request.prompts > bounds.max_prompts:
        raise _too_long("prompt", f"{bounds.max_prompts} prompts", request.prompts)
    if bounds.max_choices is not None and request.choices > bounds.max_choices:
        raise _too_many_choices(request, bounds.max_choices)
    if bounds.max_temperature is not None and request.temperature > bounds.max_temperature:
        raise _beyond("temperature", bounds.max_temperature, request.temperature, RequestCode.DECIMAL_TOO_LARGE)
    if request.stop:
        _check_stop(request.stop, bounds.max_stop_strings, bounds.max_stop_bytes)


def _too_many_choices(request: GenerationRequest, most: int) -> InvalidRequest:
    each = request.choices // request.prompts
    name = "n" if request.n == each else "best_of"
    if request.prompts == 1:
        return _beyond(name, most, each, RequestCode.INTEGER_TOO_LARGE)
    if each == 1:
        return _too_long("prompt", f"{most} prompts", request.prompts)
    message = f"Invalid '{name}': expected at most {most} choices over all prompts, got {request.prompts} × {each}."
    return InvalidRequest(message, param=name, code=RequestCode.INTEGER_TOO_LARGE)


def _check_stop(stop: tuple[str, ...], max_strings: int | None, max_bytes: int | None) -> None:
    if max_strings is not None and len(stop) > max_strings:
        raise _too_long("stop", f"{max_strings} strings", len(stop))
    if max_bytes is None:
        return
    for index, text in enumerate(stop):
        if (size := len(text.encode())) > max_bytes:
            where = "stop" if len(stop) == 1 else f"stop[{index}]"
            message = f"Invalid '{where}': expected at most {max_bytes} bytes, got {size}."
            raise InvalidRequest(message, param=where, code=RequestCode.STRING_TOO_LONG)


def _too_long(where: str, most: str, got: int) -> InvalidRequest:
    message = f"Invalid '{where}': expected at most {most}, got {got}."
    return InvalidRequest(message, param=where, code=RequestCode.ARRAY_TOO_LONG)


def _beyond(where: str, most: float, got: float, code: RequestCode) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{where}': expected at most {most:g}, got {got:g}.", param=where, code=code)
