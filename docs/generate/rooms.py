"""The rooms of each package with their ranks, from the import contracts, the highest rank first. A room's job is the
first paragraph of its docstring."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from docs.generate.markdown import listing

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs" / "architecture.md"
_BEGIN = "<!-- Rooms: made by `make docs` from the import contracts and docstrings. -->"
_END = "<!-- End of the rooms. -->"
PACKAGES = {
    "slipstream_gateway": "gateway",
    "slipstream_core": "gateway",
    "slipstream_tools": "gateway",
    "slipstream_operator": "operator",
    "slipstream_engine": "kernels",
    "slipstream_training": "kernels",
}


def architecture() -> str:
    """The page on the architecture with the present rooms."""
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    tables = "\n\n".join(_rooms(package) for package in PACKAGES)
    return f"{before}{_BEGIN}\n\n{tables}\n\n{_END}{after}"


def _rooms(package: str) -> str:
    folder = _ROOT / PACKAGES[package] / package
    rows = (
        (f"`{name}` ({rank})", _job(folder / name))
        for rank, names in _layers(package)
        for name in names
        if (folder / name).is_dir()
    )
    return f"**`{package}`**\n\n{listing(rows)}"


def _layers(package: str) -> Iterator[tuple[int, list[str]]]:
    """The ranks, the highest first, with their rooms."""
    contracts = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [one["layers"] for one in contracts if one.get("containers") == [package]]
    for index, layer in enumerate(layers):
        yield len(layers) - index, [name.strip() for name in layer.split("|")]


def _job(room: Path) -> str:
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    return text.partition("\n\n")[0]
