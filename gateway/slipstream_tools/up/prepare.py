"""What `slipstream up` needs before anything starts: options that fit, and what is installed or fetched once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from slipstream_core.errors import CommandError
from slipstream_core.manifest import RoutingTable, load_file
from slipstream_gateway.access import load_keyring

from slipstream_tools.gateway.options.listening import check_exposure
from slipstream_tools.up.cache import Say
from slipstream_tools.up.options import UpOptions
from slipstream_tools.up.ports import check_ports
from slipstream_tools.up.servers import with_ports
from slipstream_tools.up.smollm2 import FOLDER, smollm2_folder
from slipstream_tools.up.vllm_environment import VllmInstall, existing_vllm
from slipstream_tools.up.vllm_install import install_vllm
from slipstream_tools.up.vllm_pairs import needs_vllm


class Prepared(NamedTuple):
    """All that starting needs. `options` have the manifest to serve and every port; `vllm` is None where no pair needs
    vLLM on this machine."""

    options: UpOptions
    table: RoutingTable
    vllm: VllmInstall | None


def check(options: UpOptions) -> None:
    """Find what is wrong before anything is downloaded or started.

    Raises:
        CommandError: a port is taken, an option does not fit the manifest, or the keys cannot be read.
        ManifestError: the manifest is not good.
    """
    table = load_file(options.manifest)
    check_ports(options.ports())
    check_exposure([("--host", options.host)], allowed=options.allow_anonymous or options.keys is not None)
    if options.keys is not None:
        load_keyring(options.keys, None)  # a bad file is said at once, not after the models are loaded
    if not needs_vllm(table):
        for option, value in (("--vllm-python", options.vllm_python), ("--vllm-arg", options.vllm_arguments)):
            if value:
                raise CommandError(f"{option} has no effect: no pair of the manifest needs vLLM here", exit_code=2)


def prepare(options: UpOptions, *, run_dir: Path, say: Say, stopping: Callable[[], bool]) -> Prepared:
    """Fetch the model, install vLLM and choose ports, as far as `options` ask for it.

    Raises:
        CommandError: something cannot be fetched or installed.
        Stopped: `stopping()` became true.
    """
    if options.model is not None:
        source = smollm2_folder(say, stopping=stopping)
        manifest = Path(shutil.copy(options.manifest, run_dir))
        (run_dir / FOLDER).symlink_to(source)
        options = msgspec.structs.replace(options, manifest=manifest)
    table = load_file(options.manifest)
    vllm = None
    if needs_vllm(table):
        vllm = existing_vllm(options.vllm_python) if options.vllm_python else install_vllm(say, stopping=stopping)
    return Prepared(with_ports(options, table), table, vllm)
