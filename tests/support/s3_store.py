"""A store with S3's API on the loopback: Moto's server, in an environment of its own."""

from __future__ import annotations

import fcntl
import hashlib
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx

_ROOT = Path(__file__).parents[2]
_REQUIREMENTS = (_ROOT / "requirements" / "s3.txt", Path(__file__).with_name("s3_store.txt"))
_CACHE = Path("~/.cache/slipstream").expanduser()
_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def s3_python() -> Path:
    """The Python of an environment with boto3 and Moto, in the user's cache. The first call makes it."""
    content = "".join(path.read_text() for path in _REQUIREMENTS)
    folder = _CACHE / f"s3-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    _CACHE.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--no-deps"]
            for path in _REQUIREMENTS:
                subprocess.run([*pip, "-r", str(path)], check=True)
            (folder / "complete").touch()
    return folder / "bin" / "python"


class S3Store:
    """The server. It accepts every signature until `refuse_strangers`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [str(s3_python()), "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        owner = {"authorization": "AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/s3/aws4_request"}
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=owner, timeout=30)

    @property
    def url(self) -> str:
        return str(self._client.base_url)

    def make_bucket(self, name: str) -> None:
        self._client.put(f"/{name}").raise_for_status()

    def put(self, bucket: str, files: Mapping[str, bytes], *, public: bool = False) -> None:
        access = {"x-amz-acl": "public-read" if public else "private"}
        for key, content in files.items():
            self._client.put(f"/{bucket}/{key}", content=content, headers=access).raise_for_status()

    def put_in_parts(self, bucket: str, key: str, content: bytes, part_bytes: int) -> None:
        begun = self._client.post(f"/{bucket}/{key}?uploads").raise_for_status()
        [upload] = re.findall(r"<UploadId>(.+)</UploadId>", begun.text)
        listed = ""
        for number, start in enumerate(range(0, len(content), part_bytes), start=1):
            part = content[start : start + part_bytes]
            sent = self._client.put(f"/{bucket}/{key}?partNumber={number}&uploadId={upload}", content=part)
            etag = sent.raise_for_status().headers["etag"]
            listed += f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>"
        self._client.post(f"/{bucket}/{key}?uploadId={upload}", content=body).raise_for_status()

    def refuse_strangers(self) -> None:
        """Later requests need credentials, and no credentials are valid."""
        self._client.post("/moto-api/reset-auth", content="0").raise_for_status()

    def stop(self) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
