"""The command line of `slipstream bench`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.manifest import EMBEDDED_MANIFEST

from slipstream_tools.bench.arrivals import Arrivals, Load
from slipstream_tools.bench.plan import BenchMode, parse_modes
from slipstream_tools.bench.requests import is_embedded
from slipstream_tools.bench.suites import MODES, with_suite
from slipstream_tools.bench.summary import PLAIN
from slipstream_tools.bench.verdict import check_expectation


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Modes, requests and thresholds of one run. Without `url`, the embedded stack serves `manifest`; a threshold of
    None means that of the policy.
    """

    suite: str | None = None
    dtype: str | None = None
    manifest: Path = EMBEDDED_MANIFEST
    url: str | None = None
    api_key_env: str | None = None
    model: str | None = None
    classifier: Path | None = None
    requests: str
    limit: int | None = None
    modes: tuple[BenchMode, ...]
    concurrency: tuple[int, ...] = ()
    arrivals: tuple[Arrivals, ...] = ()
    drafts: tuple[str, ...] = ()
    rounds: int = 1
    warmup: int = 3
    seed: int = 0
    timeout_s: float = 120.0
    load_timeout_s: float = 110.0
    out: Path = Path("slipstream-bench")
    price: float | None = None
    price_speculative: float | None = None
    p95_reduction: float | None = None
    quality_loss: float | None = None
    cost_increase: float | None = None
    min_samples: int = 30
    expect: tuple[str, ...] = ()
    write_policy: Path | None = None
    pair: str | None = None

    @property
    def shown_url(self) -> str:
        """`url` without user name and password, so that it may be recorded and shown."""
        return re.sub(r"\A(\w+://)[^/?#]*@", r"\1", self.url or "").rstrip("/")

    @property
    def loads(self) -> tuple[Load, ...]:
        """The loads of the run, in their order: each is a block of its own."""
        return (*self.concurrency, *(one.name for one in self.arrivals))


def parse_options(args: argparse.Namespace) -> BenchOptions:
    """Checked options. Raises `CommandError`."""
    values: dict[str, Any] = {name: value for name, value in vars(args).items() if value is not None}
    own = {"manifest": "-f", "drafts": "--drafts", "classifier": "--classifier", "dtype": "--dtype"}
    refused = [option for name, option in own.items() if name in values]
    engine = values.pop("engine", None)
    if "suite" in values:
        values = with_suite(values, values["suite"], engine)
    elif engine is not None:
        raise CommandError("--engine needs --suite: other manifests have their own engine", exit_code=2)
    elif "dtype" in values:
        raise CommandError("--dtype needs --suite: other manifests have their own number format", exit_code=2)
    elif "requests" not in values:
        raise CommandError("--requests is required without --suite", exit_code=2)
    values["modes"] = parse_modes(values.get("modes", MODES), values.pop("draft_lengths", ()))
    if "arrivals" not in values:
        values.setdefault("concurrency", (1,))
    options = BenchOptions(**values)
    message = None
    if options.url is not None and refused:
        message = f"{refused[0]} configures the servers that bench starts and cannot be combined with --url"
    elif options.write_policy is not None and PLAIN not in [mode.name for mode in options.modes]:
        message = "--write-policy needs the mode plain as its baseline"
    elif options.write_policy is not None and len(options.drafts) > 1:
        message = "--write-policy needs a single draft: the ModelPair chooses the draft, a policy cannot"
    elif not is_embedded(options.requests) and not Path(options.requests).is_file():
        message = f"--requests: there is no file {options.requests!r}"
    if message is not None:
        raise CommandError(message, exit_code=2)
    for text in options.expect:
        check_expectation(text)
    return options
