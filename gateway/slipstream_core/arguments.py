"""Command-line options made from the fields of settings, and the types of their values.

A field with `option(...)` in its annotation is an option: its name, type, bounds and default come from the field, its
help from the description. argparse puts the option's name before the error message of a type.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, inspect

_MAX_PORT = 65535
_MAX_DIGITS = 18  # Python reads no number of thousands of digits
_MAX_FLOAT = 1e6
_ON_OFF = ("on", "off")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class StrictParser(argparse.ArgumentParser):
    """Refuses abbreviated options, also those of its sub-parsers: a later option may begin with the same letters."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})


def not_negative(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def at_least_one(text: str) -> int:
    value = not_negative(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return value


def port(text: str) -> int:
    if (value := port_or_any(text)) == 0:
        raise argparse.ArgumentTypeError(f"a port is 1 to {_MAX_PORT}, got {text}")
    return value


def port_or_any(text: str) -> int:
    """A port to listen on; 0 for a free one."""
    value = not_negative(text)
    if value > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"expected 0 to {_MAX_PORT}, got {text}")
    return value


def listen_address(text: str) -> str:
    """`HOST:PORT` or `unix:/PATH` to listen on."""
    if text.startswith("unix:/"):
        return text
    host, separator, number = text.rpartition(":")
    if not separator or not host or text.startswith("unix:"):
        raise argparse.ArgumentTypeError(f"expected HOST:PORT or unix:/PATH, got {text!r}")
    return f"{host}:{port(number)}"


def number(text: str, expected: str, is_good: Callable[[float], bool]) -> float:
    """`text` as a number that `is_good`. `expected` describes it in the error message."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not is_good(value):  # a comparison with NaN is false
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return value


def seconds(text: str) -> float:
    return number(text, "seconds above 0", lambda value: 0 < value < _MAX_FLOAT)


def share(text: str) -> float:
    return number(text, "a number from 0 to 1", lambda value: 0 <= value <= 1)


def above_one(text: str) -> float:
    return number(text, "a number above 1", lambda value: 1 < value < _MAX_FLOAT)


def _typed(parse: Callable[[str], Any], metavar: str = "N") -> Meta:
    return Meta(extra={"type": parse, "metavar": metavar})


NotNegative = Annotated[int, _typed(not_negative)]
AtLeastOne = Annotated[int, _typed(at_least_one)]
Port = Annotated[int, _typed(port)]
PortOrAny = Annotated[int, _typed(port_or_any)]
ListenAddress = Annotated[str, _typed(listen_address, "ADDRESS")]
Seconds = Annotated[float, _typed(seconds, "SECONDS")]
Share = Annotated[float, _typed(share)]
AboveOne = Annotated[float, _typed(above_one)]
File = Annotated[Path, _typed(Path, "FILE")]
OnOff = Annotated[bool, Meta(extra={"choices": _ON_OFF})]


def option(text: str, *names: str, **how: Any) -> Meta:
    """Makes a field an option with the help `text`. The default name is the field's, without its unit `_s`. `how`
    overrides arguments of `add_argument` that follow from the field's type and default."""
    return Meta(description=text, extra={"names": names, **how})


def add_options(
    to: argparse._ActionsContainer, *settings: type[msgspec.Struct], types: Mapping[str, Callable[[str], Any]] = {}
) -> None:
    """Adds the options of `settings`. `types` are parsers, by field, that the module of the settings cannot import."""
    for struct in settings:
        for field, names, how in _options(struct):
            how["type"] = types.get(field, how.get("type"))
            to.add_argument(*names, **{name: value for name, value in how.items() if value is not None})


def read_options(args: argparse.Namespace, settings: type[_Struct], **given: Any) -> _Struct:
    """The `settings` of the options in `args`, with absolute paths. `given` are fields that need more than one."""
    values = dict(given)
    for field, _, how in _options(settings):
        value = getattr(args, how["dest"])
        if field in given or value is None:  # None: the field's own default
            continue
        if how.get("choices") == _ON_OFF:
            value = value == "on"
        if isinstance(value, Path):
            value = value.absolute()
        values[field] = tuple(value) if isinstance(value, list) else value
    return settings(**values)


def _options(settings: type[msgspec.Struct]) -> Iterator[tuple[str, tuple[str, ...], dict[str, Any]]]:
    """The field, the names, and the arguments of `add_argument`, of each option."""
    fields: Sequence[inspect.Field] = inspect.type_info(settings).fields  # type: ignore[attr-defined]  # a union
    for field in fields:
        known, is_list, is_flag = _inside(field.type)
        if "names" not in known:
            continue
        names = known.pop("names") or ("--" + field.name.removesuffix("_s").replace("_", "-"),)
        text = known.pop("description").replace("%", "%%")
        how = {"dest": names[-1].lstrip("-").replace("-", "_"), **known}
        default = how.pop("default", None if field.default in (msgspec.NODEFAULT, ()) else field.default)
        if how.get("choices") == _ON_OFF:
            default = "on" if default else "off"
        if is_list:
            how.setdefault("action", "append")
        elif is_flag and "choices" not in how:
            how["action"] = "store_true"
        elif default is not None:
            how["default"] = default
            text += " (default: %(default)g)" if isinstance(default, float) else " (default: %(default)s)"
        yield field.name, names, {**how, "help": text}


def _inside(kind: inspect.Type) -> tuple[dict[str, Any], bool, bool]:
    """The merged annotations of a type, whether it is a tuple, and whether it is a bool."""
    if isinstance(kind, inspect.Metadata):
        known, is_list, is_flag = _inside(kind.type)
        return {**known, **(kind.extra or {}), **(kind.extra_json_schema or {})}, is_list, is_flag
    if isinstance(kind, inspect.UnionType):
        return _inside(kind.types[0])
    if isinstance(kind, inspect.VarTupleType):
        return _inside(kind.item_type)[0], True, False
    return {}, False, isinstance(kind, inspect.BoolType)
