"""The preparation of `slipstream up`: validates options, installs and downloads, before anything starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.manifest import RoutingTable, load_file
from slipstream_gateway.access import KeyFile

from slipstream_tools.gateway.options.checks import check_exposure
from slipstream_tools.up.cache import Report
from slipstream_tools.up.options import UpOptions
from slipstream_tools.up.ports import check_ports
from slipstream_tools.up.servers import with_ports
from slipstream_tools.up.smollm2 import FOLDER, smollm2_folder
from slipstream_tools.up.vllm_environment import VllmInstall, existing_vllm
from slipstream_tools.up.vllm_install import install_vllm
from slipstream_tools.up.vllm_pairs import needs_vllm


class Prepared(NamedTuple):
    """The input for starting the servers. `options` have the manifest and every port; `vllm` is None if no pair needs
    vLLM on this machine."""

    options: UpOptions
    table: RoutingTable
    vllm: VllmInstall | None


def check(options: UpOptions) -> None:
    """Finds problems before anything is downloaded or started.

    Raises:
        CommandError: a port is taken, an option does not fit the manifest, or the keys cannot be read.
        ManifestError: the manifest is invalid.
    """
    table = load_file(options.manifest)
    check_ports(options.ports())
    check_exposure([("--host", options.host)], allowed=options.allow_anonymous or options.keys is not None)
    if options.keys is not None:
        KeyFile(options.keys, None).load()  # reports a bad file at once, not after the models are loaded
    if not needs_vllm(table):
        for option, value in (("--vllm-python", options.vllm_python), ("--vllm-arg", options.vllm_arguments)):
            if value:
                raise CommandError(f"{option} has no effect: no pair of the manifest needs vLLM here", exit_code=2)


def prepare(options: UpOptions, *, run_dir: Path, report: Report, stopping: Callable[[], bool]) -> Prepared:
    """Downloads the model, installs vLLM and chooses ports, as `options` require.

    Raises:
        CommandError: a download or an installation failed.
        Stopped: `stopping()` became true.
    """
    if options.model is not None:
        source = smollm2_folder(report, stopping=stopping)
        manifest = Path(shutil.copy(options.manifest, run_dir))
        (run_dir / FOLDER).symlink_to(source)
        options = msgspec.structs.replace(options, manifest=manifest)
    table = load_file(options.manifest)
    vllm = None
    if needs_vllm(table):
        vllm = existing_vllm(options.vllm_python) if options.vllm_python else install_vllm(report, stopping=stopping)
    return Prepared(with_ports(options, table), table, vllm)
