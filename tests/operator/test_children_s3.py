"""Weights from an S3-compatible store: the real program of the init container, and a real store that breaks off."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from slipstream_operator.reconcile.pods import PodReason

from tests.operator.downloads import condition_of, downloads, problem_of, words
from tests.operator.pair_objects import JSON, SPEC, VLLM_SPEC, pair_object, template
from tests.support.breaking_network import BreakingNetwork, Cut
from tests.support.polling import eventually
from tests.support.s3_store import S3Store, s3_python

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),  # the first run makes an environment
]

PROGRAM = Path(__file__).parents[2] / "deploy" / "docker" / "s3_download.py"
WEIGHTS = bytes(range(256)) * 40_000
SHARDED = WEIGHTS[::-1]
FILES = {"config.json": b"{}", "model-1.safetensors": WEIGHTS, "empty.txt": b"", "more/notes.md": b"# notes"}
KEYS = [
    {"name": "AWS_ACCESS_KEY_ID", "secret": {"name": "store", "key": "id"}},
    {"name": "AWS_SECRET_ACCESS_KEY", "secret": {"name": "store", "key": "key"}},
    {"name": "AWS_ENDPOINT_URL", "value": "http://minio.storage:9000"},
]


@pytest.fixture(scope="module")
def store() -> Iterator[S3Store]:
    """The bucket `models` with a model below `acme/target`, and neighbours that are not part of it."""
    store = S3Store()
    store.make_bucket("models")
    store.put("models", {f"acme/target/{name}": content for name, content in FILES.items()})
    store.put("models", {"acme/target-2/config.json": b"other", "acme/target/more/": b""})
    store.put_in_parts("models", "acme/target/model-2.safetensors", SHARDED, 6_000_000)
    yield store
    store.stop()


@pytest.fixture
def network(store: S3Store) -> Iterator[BreakingNetwork]:
    network = BreakingNetwork(store.port, 1)
    yield network
    network.stop()


def store_pair(source: str = "s3://models/acme/target", *, spec: JSON = VLLM_SPEC, mount: str = "/models") -> JSON:
    return pair_object(
        spec,
        target={"source": source, "revision": None},
        draft={"kind": "ngram", "source": None},
        serving={"storage": {"claim": "weights", "mountPath": mount}, "env": KEYS},
    )


class Download:
    """Runs the container that downloads, with its volume below `folder`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url, self.models, self.report = url, folder / "models", folder / "termination-log"

    def start(self, source: str = "s3://models/acme/target", **variables: str) -> subprocess.Popen[str]:
        container = downloads(store_pair(source, mount=str(self.models)))
        program = words(container)
        assert program[:2] == ["sh", "-c"]
        for there, here in (("/opt/slipstream/s3_download.py", PROGRAM), ("/dev/termination-log", self.report)):
            assert there in program[2]
            program[2] = program[2].replace(there, str(here))
        own = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_EC2_METADATA_DISABLED": "true"}
        path = f"{s3_python().parent}:{os.environ['PATH']}"
        environment = {**own, **keys, "AWS_ENDPOINT_URL": self.url, "PATH": path, **variables}
        return subprocess.Popen(
            program,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, source: str = "s3://models/acme/target", **variables: str) -> subprocess.CompletedProcess[str]:
        self.report.unlink(missing_ok=True)
        with self.start(source, **variables) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def cut_off(self, network: BreakingNetwork, after_bytes: int) -> Path:
        """Ends a download whose connection stalls after so many bytes. Returns the largest part."""
        network.plan(*[Cut(after_bytes, "stall")] * 2)
        with self.start() as process:
            eventually(lambda: network.made == 2, "two files stall", within_s=60)
            found = eventually(
                lambda: max(self.models.rglob("*.slipstream-part"), key=lambda path: path.stat().st_size, default=None),
                "a part",
            )
            os.killpg(process.pid, 9)
        network.plan()
        return found

    def content(self, digest: str = "") -> dict[str, bytes]:
        folder = self.models / "s3" / "models" / "acme" / "target" / f"@{digest}"
        files = (path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


EXPECTED = FILES | {"model-2.safetensors": SHARDED}


@pytest.fixture
def download(tmp_path: Path, store: S3Store) -> Download:
    return Download(tmp_path, store.url)


@pytest.mark.parametrize("spec", [SPEC, VLLM_SPEC], ids=["slipstream", "vllm"])
def test_keys_of_a_store_are_for_the_download_only(spec: JSON) -> None:
    raw = store_pair(spec=spec)
    [server] = template(raw)["spec"]["containers"]
    of_download, of_server = ({each["name"] for each in one["env"]} for one in (downloads(raw), server))
    assert {each["name"] for each in KEYS} <= of_download
    assert not of_server & {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    kept = pair_object(spec, serving={"env": KEYS})
    [server] = template(kept)["spec"]["containers"]
    assert {each["name"] for each in KEYS} <= {each["name"] for each in server["env"]}


def test_the_server_reads_the_folder_of_the_download() -> None:
    raw = store_pair("s3://models/acme/target@0123456789abcdef")
    folder = "/models/s3/models/acme/target/@0123456789abcdef"
    assert words(downloads(raw))[-3:] == ["store", "s3://models/acme/target@0123456789abcdef", folder]
    assert template(raw)["spec"]["containers"][0]["args"][0] == folder


def test_a_download_is_checked_and_happens_once_and_the_status_has_its_digest(download: Download) -> None:
    done = download.run()
    assert done.returncode == 0, done.stderr
    assert download.content() == EXPECTED
    assert "no checksum" not in done.stderr
    report = download.report.read_text()
    resolved = condition_of(store_pair(), {"exitCode": 0, "message": report}, type="ResolvedRefs")
    assert resolved.message == f"everything that the pair refers to exists; {report.strip()}"
    digest = report.strip().removeprefix("s3://models/acme/target@")
    assert len(digest) == 16
    download.url = "http://127.0.0.1:9"  # the store is gone
    again = download.run()
    assert again.returncode == 0, again.stderr
    assert "is complete" in again.stderr
    assert download.report.read_text() == report


def test_pods_with_different_content_are_seen_in_the_status() -> None:
    ends = [{"exitCode": 0, "message": f"s3://models/acme/target@{digest * 16}\n"} for digest in "ba"]
    resolved = condition_of(store_pair(), *ends, type="ResolvedRefs")
    assert "s3://models/acme/target@aaaaaaaaaaaaaaaa; s3://models/acme/target@bbbbbbbbbbbbbbbb" in resolved.message


def test_a_digest_pins_the_content(download: Download, store: S3Store) -> None:
    store.put("models", {"pinned/acme/target/config.json": b"first"})
    source = "s3://models/pinned/acme/target"
    assert download.run(source).returncode == 0
    pinned = download.report.read_text().strip()
    store.put("models", {"pinned/acme/target/config.json": b"other"})
    reason, message = problem_of(store_pair(pinned), download.run(pinned))
    assert reason == PodReason.WEIGHTS_NOT_FOUND
    assert f"not {pinned.partition('@')[2]}" in message
    store.put("models", {"pinned/acme/target/config.json": b"first"})
    assert download.run(pinned).returncode == 0


def test_a_download_that_breaks_off_is_resumed(download: Download, network: BreakingNetwork) -> None:
    download.url = f"http://127.0.0.1:{network.ports[0]}"
    network.plan(Cut(4_000_000), Cut(2_000_000), Cut(3_000_000))
    done = download.run()
    assert done.returncode == 0, done.stderr
    assert network.made == 3
    assert "continues after" in done.stderr
    assert download.content() == EXPECTED


def test_the_next_container_resumes_and_finds_a_damaged_part(download: Download, network: BreakingNetwork) -> None:
    download.url = f"http://127.0.0.1:{network.ports[0]}"
    part = download.cut_off(network, 4_000_000)
    received = part.read_bytes()
    assert 0 < len(received) < len(WEIGHTS)
    part.write_bytes(bytes([received[0] ^ 1]) + received[1:])
    reason, message = problem_of(store_pair(), download.run())
    assert reason == PodReason.WEIGHTS_FAILED
    assert "is damaged: its checksum is" in message
    done = download.run()
    assert done.returncode == 0, done.stderr
    assert download.content() == EXPECTED


def test_a_file_that_is_replaced_between_two_containers_is_downloaded_anew(
    download: Download, network: BreakingNetwork, store: S3Store
) -> None:
    download.url = f"http://127.0.0.1:{network.ports[0]}"
    part = download.cut_off(network, 4_000_000)
    name = part.name.partition(".safetensors")[0] + ".safetensors"
    store.put("models", {f"acme/target/{name}": WEIGHTS[1:] + b"."})
    try:
        done = download.run()
        assert done.returncode == 0, done.stderr
        assert download.content() == EXPECTED | {name: WEIGHTS[1:] + b"."}
        assert not list(download.models.rglob("*.slipstream-part"))
    finally:
        if name == "model-2.safetensors":
            store.put_in_parts("models", f"acme/target/{name}", SHARDED, 6_000_000)
        else:
            store.put("models", {f"acme/target/{name}": WEIGHTS})


@pytest.mark.parametrize(
    ("source", "variables", "reason", "part"),
    [
        ("s3://nowhere/acme", {}, PodReason.WEIGHTS_NOT_FOUND, "Bucket not found"),
        ("s3://models/acme/tar", {}, PodReason.WEIGHTS_NOT_FOUND, "no files below s3://models/acme/tar/"),
        (
            "s3://models/acme/target",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            PodReason.WEIGHTS_UNREACHABLE,
            "Could not connect to the endpoint URL",
        ),
        (
            "s3://models/acme/target",
            {"AWS_ENDPOINT_URL": "http://no.such.host.invalid"},
            PodReason.WEIGHTS_UNREACHABLE,
            "no.such.host.invalid",
        ),
    ],
    ids=["no bucket", "no prefix", "no server", "no name"],
)
def test_a_failure_is_one_clear_condition(
    download: Download, source: str, variables: dict[str, str], reason: PodReason, part: str
) -> None:
    found, message = problem_of(store_pair(source), download.run(source, **variables))
    assert found == reason
    assert part in message
    assert "HF_TOKEN" not in message


@pytest.mark.parametrize("name", [".slipstream-complete", "folder.slipstream-part/x"])
def test_names_that_are_the_programs_own_are_refused(download: Download, store: S3Store, name: str) -> None:
    prefix = f"odd{len(name)}"
    store.put("models", {f"{prefix}/{name}": b"x"})
    found, message = problem_of(store_pair(f"s3://models/{prefix}"), download.run(f"s3://models/{prefix}"))
    assert found == PodReason.WEIGHTS_FAILED
    assert f"'{prefix}/{name}' cannot be a path below a folder" in message


def test_refused_keys_are_said(tmp_path: Path) -> None:
    store = S3Store()
    try:
        store.make_bucket("models")
        store.put("models", {"acme/target/config.json": b"{}"})
        store.refuse_strangers()
        reason, message = problem_of(store_pair(), Download(tmp_path, store.url).run())
    finally:
        store.stop()
    assert reason == PodReason.WEIGHTS_DENIED
    assert "Access denied: An error occurred (InvalidAccessKeyId)" in message


def test_without_keys_only_public_files_are_downloaded(download: Download, store: S3Store) -> None:
    store.put("models", {"public/config.json": b"{}"}, public=True)
    none = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    assert download.run("s3://models/public", **none).returncode == 0
    reason, message = problem_of(store_pair(), download.run(**none))
    assert reason == PodReason.WEIGHTS_DENIED
    assert "Access denied: An error occurred (403)" in message


@pytest.mark.skipif(os.geteuid() != 0, reason="a volume of a limited size is mounted, which needs root")
def test_a_full_disk_is_said_before_the_download(download: Download) -> None:
    download.models.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9M", "tmpfs", str(download.models)], check=True)
    try:
        reason, message = problem_of(store_pair(), download.run())
        assert not list(download.models.rglob("*.safetensors*"))
    finally:
        subprocess.run(["umount", str(download.models)], check=True)
    assert reason == PodReason.DISK_FULL
    assert "bytes are missing" in message
