"""Container images without a container engine's service: built with buildah, on a base that Debian's own mmdebstrap
makes, and started by runc with the rights that a pod's specification gives."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import ssl
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream_tools.up.processes import Child

from tests.support.manifests import JSON

_ROOT = Path(__file__).parents[2]
_FILES = _ROOT / "deploy" / "docker"
_PROGRAMS = ("buildah", "mmdebstrap", "runc")  # Debian's packages have the same names
_LONGEST_S = 1500.0  # of one program: a build on a busy machine
# The folders that Debian's slim images leave out.
_UNNEEDED = ("doc", "info", "locale", "man")
_BUILD = ("build", "--isolation=chroot", "--layers", "--timestamp=0")


def install_programs() -> None:
    """Installs what is missing. Raises `RuntimeError` where that cannot be done."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


def build(name: str, *arguments: str, tag: str) -> None:
    """Builds the image `tag` from the container file of `name`."""
    install_programs()
    path = _FILES / f"{name}.Dockerfile"
    [base] = set(re.findall(r"^FROM (debian:\S+)", path.read_text(), re.MULTILINE))
    _make_base(base)
    with tempfile.TemporaryDirectory() as folder:
        volumes = _trust_of_this_machine(Path(folder))
        _run("buildah", *_BUILD, *volumes, *arguments, f"--file={path}", f"--tag={tag}", str(_ROOT))


def _trust_of_this_machine(folder: Path) -> list[str]:
    """Options by which pip trusts, while an image is built, the authorities that this machine trusts."""
    bundle, inside = ssl.get_default_verify_paths().cafile, "/etc/ssl/of-the-builder.crt"
    if bundle is None:
        return []
    config = folder / "pip.conf"
    config.write_text(f"[global]\ncert = {inside}\n")
    return [f"--volume={Path(bundle).resolve()}:{inside}:ro", f"--volume={config}:/etc/pip.conf:ro"]


@functools.cache
def _make_base(name: str) -> None:
    """Debian's smallest set of packages, under the name of the image that container files begin with."""
    if _succeeds("buildah", "inspect", "--type=image", name):
        return
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in _UNNEEDED]
    archive = Path(f"/var/tmp/{uuid.uuid4().hex}.tar")
    try:
        _run("mmdebstrap", "--variant=minbase", *excluded, "bookworm", str(archive))
        made = _run("buildah", "from", "scratch").strip()
        _run("buildah", "add", made, str(archive), "/")
        _run("buildah", "config", "--cmd=bash", made)
        _run("buildah", "commit", "--rm", made, name)
    finally:
        archive.unlink(missing_ok=True)


class Image:
    """An image that was built, with its file system."""

    def __init__(self, tag: str) -> None:
        self._container = _run("buildah", "from", "--pull-never", tag).strip()
        self.root = Path(_run("buildah", "mount", self._container).strip())
        config = json.loads(_run("buildah", "inspect", "--type=image", tag))["OCIv1"]
        self.config: JSON = config["config"]
        self.layers: list[str] = config["rootfs"]["diff_ids"]

    def remove(self) -> None:
        _run("buildah", "rm", self._container)

    def size_bytes(self) -> int:
        """What the files take that the image adds to an empty one."""
        kilobytes = _run("du", "--summarize", "--one-file-system", "--block-size=1K", str(self.root)).split()[0]
        return int(kilobytes) * 1024

    def start(
        self,
        pod: JSON,
        arguments: Sequence[str],
        *,
        folder: Path,
        files: Mapping[str, Path] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """The only container of `pod`, a pod's specification, with other `arguments`, on this machine's network.

        `files` are shown to it, by their path inside. Its root is read-only, its user a number without capabilities,
        as the specification says; an `emptyDir` is an empty folder.
        """
        [container] = pod["containers"]
        name = f"{container['name']}-{uuid.uuid4().hex[:8]}"
        bundle = folder / name
        bundle.mkdir()
        spec = self._spec(pod, container, arguments, {**(env or {})}, {**(files or {})})
        (bundle / "config.json").write_text(json.dumps(spec))
        return Child(
            name=name,
            command=["runc", f"--root={folder / 'runc'}", "run", f"--bundle={bundle}", name],
            log_path=folder / f"{name}.log",
            env=os.environ,
        )

    def _spec(
        self, pod: JSON, container: JSON, arguments: Sequence[str], env: Mapping[str, str], files: Mapping[str, Path]
    ) -> JSON:
        security = {**pod["securityContext"], **container["securityContext"]}
        assert security["capabilities"] == {"drop": ["ALL"]}
        empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        folders = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in empty]
        options = ["mode=1777", "nosuid", "nodev"]
        mounts = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro"]},
            *({"destination": path, "type": "tmpfs", "source": "tmpfs", "options": options} for path in folders),
            *(
                {"destination": path, "type": "bind", "source": str(source), "options": ["bind", "ro"]}
                for path, source in files.items()
            ),
        ]
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": security["runAsUser"], "gid": security["runAsGroup"]},
                "args": [*(container.get("command") or self.config["Entrypoint"]), *arguments],
                "env": [*self.config["Env"], *(f"{name}={value}" for name, value in env.items())],
                "cwd": "/",
                "capabilities": {},
                "noNewPrivileges": not security["allowPrivilegeEscalation"],
            },
            "root": {"path": str(self.root), "readonly": security["readOnlyRootFilesystem"]},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]},
        }


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise RuntimeError(f"{' '.join(command)} failed: {last}")
    return done.stdout
