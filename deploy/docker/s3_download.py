"""Downloads the files below a prefix of an S3-compatible store.

    python3 s3_download.py s3://BUCKET/PREFIX[@DIGEST] FOLDER

The program of the init container `weights`, in the images of servers; boto3 is all that it needs. Settings and
credentials are those of boto3, such as AWS_ENDPOINT_URL and AWS_ACCESS_KEY_ID. Without credentials requests are
anonymous.

The digest is over names, sizes and ETags of all files, so it changes with any of them. Each request names the ETag of
the listing: a file that is replaced during the download is an error. What was cut off is resumed, on a shared volume
also by another pod.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import re
import shutil
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
from botocore.exceptions import ConnectionError as ConnectionFailed

COMPLETE, LOCK, PART = ".slipstream-complete", ".slipstream-lock", ".slipstream-part"
DIGEST_CHARS = 16
FILES_AT_ONCE = 8
CHUNK_BYTES = 1 << 20
FAILURES = 5
"""Broken responses in succession, without a byte, that end the download."""
_DENIED = re.compile(r"AccessDenied|Forbidden|40[13]|InvalidAccessKeyId|SignatureDoesNotMatch|Token")
_ETAG = re.compile(r"[A-Za-z0-9_=+.-]+")
_OWN_NAME = re.compile(rf"^\.slipstream-|{re.escape(PART)}$")
_MD5 = re.compile(r"(?P<digest>[0-9a-f]{32})(-(?P<parts>[0-9]+))?")


class DownloadError(Exception):
    """The files cannot be had; the message is one line."""


class RemoteFile(NamedTuple):
    """A file of the store. `name` is its path below the prefix."""

    bucket: str
    key: str
    name: str
    size_bytes: int
    etag: str

    @property
    def request(self) -> dict[str, str]:
        """The arguments of requests for this very content."""
        return {"Bucket": self.bucket, "Key": self.key, "IfMatch": f'"{self.etag}"'}

    def part(self, folder: Path) -> Path:
        """The path of what was received so far of this very content. All parts get their names at the end."""
        final = folder / self.name
        return final.with_name(f"{final.name}.{self.etag}{PART}")


def provide(source: str, folder: Path) -> str:
    """Downloads `source` once. Returns it with the digest of what is in `folder`.

    Raises:
        DownloadError: the prefix is empty, has another digest or an unusable name, or a file is damaged.
        BotoCoreError, ClientError: the store refuses a request or is not reached.
        OSError: the folder cannot be written.
    """
    location, _, pinned = source.partition("@")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another pod may download to the same volume
        complete = folder / COMPLETE
        if complete.exists():
            log(f"{source} is complete")
            return f"{location}@{complete.read_text()}"
        found = download(location, pinned, folder)
        unfinished = folder / f"{COMPLETE}{PART}"
        unfinished.write_text(found)
        unfinished.replace(complete)
        return f"{location}@{found}"


def download(location: str, pinned: str, folder: Path) -> str:
    """Downloads what is missing in `folder`, and returns the digest."""
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    client = connect()
    files = sorted(listing(client, bucket, f"{prefix}/"))
    if not files:
        raise DownloadError(f"Prefix not found: there are no files below {location}/")
    found = digest(files)
    if pinned not in ("", found):
        raise DownloadError(f"Revision not found: {location} has the digest {found}, not {pinned}")
    check_space(files, folder)
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        verified = list(pool.map(lambda file: fetch(client, file, folder), files))
    for file in files:
        file.part(folder).replace(folder / file.name)
    if unverified := verified.count(False):
        log(f"{unverified} of {len(files)} files have no checksum that can be compared, their sizes are right")
    return found


def connect() -> Any:
    session = boto3.Session()
    signature = {} if session.get_credentials() is not None else {"signature_version": UNSIGNED}
    retries = {"mode": "standard", "total_max_attempts": FAILURES}
    config = Config(
        connect_timeout=10,
        read_timeout=60,
        retries=retries,
        max_pool_connections=FILES_AT_ONCE,
        response_checksum_validation="when_required",  # parts of a file have none; whole files are compared here
        **signature,
    )
    return session.client("s3", region_name=session.region_name or "us-east-1", config=config)


def listing(client: Any, bucket: str, prefix: str) -> Iterator[RemoteFile]:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for entry in page.get("Contents", ()):
            key, name = entry["Key"], entry["Key"].removeprefix(prefix)
            if key.endswith("/"):
                continue  # some tools make an empty object for each folder
            if any(part in ("", ".", "..") or _OWN_NAME.search(part) for part in name.split("/")):
                raise DownloadError(f"the name {key!r} cannot be a path below a folder")
            etag = entry["ETag"].strip('"')
            if not _ETAG.fullmatch(etag):
                raise DownloadError(f"the ETag {etag!r} of {key!r} cannot be a part of a file's name")
            yield RemoteFile(bucket, key, name, entry["Size"], etag)


def digest(files: list[RemoteFile]) -> str:
    lines = "".join(f"{file.name}\t{file.size_bytes}\t{file.etag}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()[:DIGEST_CHARS]


def check_space(files: list[RemoteFile], folder: Path) -> None:
    """Removes parts of other versions of the files, and compares the missing bytes with the free ones."""
    parts = {file.part(folder): file.size_bytes for file in files}
    present = {path: path.stat().st_size for path in folder.rglob(f"*{PART}")}
    for path in present.keys() - parts.keys():
        path.unlink()
    missing = sum(size - present.get(path, 0) for path, size in parts.items())
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise DownloadError(f"Not enough free disk space: {missing} bytes are missing, {free} bytes are free")


def fetch(client: Any, file: RemoteFile, folder: Path) -> bool:
    """Downloads one file as its part. Returns False if the store has no checksum that can be computed here."""
    part = file.part(folder)
    part.parent.mkdir(parents=True, exist_ok=True)
    part.touch()
    failures = 0
    while (before := part.stat().st_size) < file.size_bytes:
        try:
            append(client, file, part)
        except (ConnectionFailed, HTTPClientError, IncompleteReadError):
            received = part.stat().st_size
            failures = 1 if received > before else failures + 1
            if failures == FAILURES:
                raise
            log(f"{file.key} broke off, and continues after {received} bytes")
            time.sleep(0.5 * 2**failures)
    try:
        return compare(client, file, part)
    except DownloadError:
        part.unlink()
        raise


def append(client: Any, file: RemoteFile, part: Path) -> None:
    """Appends the rest of `file` to `part`, as far as the response goes."""
    with part.open("ab") as target:
        answer = client.get_object(**file.request, Range=f"bytes={target.tell()}-")
        with closing(answer["Body"]) as body:
            for chunk in body.iter_chunks(CHUNK_BYTES):
                target.write(chunk)


def compare(client: Any, file: RemoteFile, path: Path) -> bool:
    """Whether the store has a checksum that can be computed here.

    Raises:
        DownloadError: the size or the checksum differs.
    """
    if (received := path.stat().st_size) != file.size_bytes:
        raise DownloadError(f"{file.key} is damaged: {received} bytes were received, the store has {file.size_bytes}")
    head = client.head_object(**file.request, ChecksumMode="ENABLED")
    if part_bytes := etag_part_bytes(client, file, head):
        wanted, got = file.etag, etag(path, file, part_bytes)
    elif "ChecksumCRC32" in head and head.get("ChecksumType") != "COMPOSITE":
        wanted, got = head["ChecksumCRC32"], crc32(path)
    else:
        return False
    if wanted != got:
        raise DownloadError(f"{file.key} is damaged: its checksum is {got}, the store has {wanted}")
    return True


def etag_part_bytes(client: Any, file: RemoteFile, head: dict[str, Any]) -> int | None:
    """The size of the parts that the MD5s of the ETag are of; None if it is not made of MD5s: of objects encrypted with
    other keys than the store's own, and in directory buckets.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
    """
    is_encrypted = "SSECustomerAlgorithm" in head or "kms" in head.get("ServerSideEncryption", "")
    found = _MD5.fullmatch(file.etag)
    if found is None or is_encrypted or file.bucket.endswith("--x-s3"):
        return None
    if found["parts"] is None:
        return max(file.size_bytes, 1)
    count = int(found["parts"])
    size = part_size(client, file, 1)
    is_even = size > 0 and -(-file.size_bytes // size) == count
    others = {2, count - 1} if count > 2 else set()
    return size if is_even and all(part_size(client, file, number) == size for number in others) else None


def part_size(client: Any, file: RemoteFile, number: int) -> int:
    size: int = client.head_object(Bucket=file.bucket, Key=file.key, PartNumber=number)["ContentLength"]
    return size


def etag(path: Path, file: RemoteFile, part_bytes: int) -> str:
    """The MD5 of the content, or the MD5 of the MD5s of its parts, with their number."""
    if "-" not in file.etag:
        return md5(path, 0, part_bytes).hex()
    parts = [md5(path, start, part_bytes) for start in range(0, file.size_bytes, part_bytes)]
    return f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"


def crc32(path: Path) -> str:
    value = 0
    for chunk in chunks(path, 0, path.stat().st_size):
        value = zlib.crc32(chunk, value)
    return base64.b64encode(value.to_bytes(4, "big")).decode()


def md5(path: Path, start: int, size: int) -> bytes:
    value = hashlib.md5(usedforsecurity=False)
    for chunk in chunks(path, start, size):
        value.update(chunk)
    return value.digest()


def chunks(path: Path, start: int, size: int) -> Iterator[bytes]:
    with path.open("rb") as content:
        content.seek(start)
        while size and (chunk := content.read(min(CHUNK_BYTES, size))):
            size -= len(chunk)
            yield chunk


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def why(exc: Exception) -> str:
    """One line, which the operator sorts by its first words."""
    line = " ".join(str(exc).split())
    if isinstance(exc, ClientError):
        code = exc.response["Error"]["Code"]
        if code == "NoSuchBucket":
            return f"Bucket not found: {line}"
        if code in ("PreconditionFailed", "412"):
            return f"a file was replaced during the download: {line}"
        return f"Access denied: {line}" if _DENIED.search(code) else line
    if isinstance(exc, (ConnectionFailed, HTTPClientError, IncompleteReadError)):
        return f"Connection failed: {line}"
    return f"Access denied: {line}" if isinstance(exc, BotoCoreError) else line


def main(source: str, folder: str) -> int:
    try:
        print(provide(source, Path(folder)))
    except (DownloadError, BotoCoreError, ClientError, OSError) as exc:
        log(f"Error: {why(exc)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
