"""What may be given as the address of Redis, and what a message about it may show."""

from __future__ import annotations

from pathlib import Path

import pytest
from slipstream_core.errors import CommandError
from slipstream_core.redis.redis_store import RedisStore
from slipstream_core.redis.redis_url import parse_redis_url


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://cache", "redis://cache:6379/0"),
        ("redis://cache:6380/3", "redis://cache:6380/3"),
        ("redis://cache?db=4", "redis://cache:6379/4"),
        ("redis://user:secret%2F@[::1]:6380", "redis://[::1]:6380/0"),
        ("rediss://:secret@cache.example:6380/1", "rediss://cache.example:6380/1"),
        ("rediss://cache?ssl_cert_reqs=none&ssl_check_hostname=false", "rediss://cache:6379/0"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock?db=0"),
        ("unix://:secret@/run/redis.sock?db=2", "unix:///run/redis.sock?db=2"),
    ],
)
def test_good_address_is_shown_without_its_credentials(text: str, shown: str) -> None:
    url = parse_redis_url(text)
    assert url.text == text
    assert str(url) == shown
    assert "secret" not in f"{url} {url!r}"
    assert "secret" not in repr(RedisStore(text, pairs=tuple))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must be redis://host:port/db"),
        ("cache:6379", "must be redis://host:port/db"),
        ("http://:secret@cache", "must be redis://host:port/db"),
        ("redis://", "has no host"),
        ("redis://:secret@:6379", "has no host"),
        ("redis://:secret@cache:0", "port 0"),
        ("redis://:secret@cache:99999", "a port is a number from 1 to 65535"),
        ("redis://:secret@cache:many", "a port is a number from 1 to 65535"),
        ("redis://:sec/secret@cache", "/ is %2F"),
        ("redis://user:1/secret@cache", "/ is %2F"),
        ("redis://:1?secret@cache", "? is %3F"),
        ("redis://:1#secret@cache", "# is %23"),
        ("redis://:secret@cache#", "'#'"),
        ("redis://:secret @cache", "percent-encoded"),
        ("redis://:sécret@cache", "percent-encoded"),
        ("redis://:secret@[::1", "is invalid"),
        ("redis://:secret@cache/one", "the database 'one'"),
        ("redis://:secret@cache/-1", "the database '-1'"),
        ("redis://:secret@cache/1?db=2", "two databases"),
        ("redis://:secret@cache?db=x", "the database 'x'"),
        ("redis://:secret@cache?timeout=3", "unknown option 'timeout'"),
        ("redis://:secret@cache?ssl_cert_reqs=none", "rediss:// only"),
        ("rediss://:secret@cache?ssl_cert_reqs=maybe", "required or optional or none"),
        ("rediss://:secret@cache?ssl_ca_certs=/no/such/file.pem", "which is not a file"),
        ("unix://run/redis.sock", "three slashes"),
        ("unix://", "has no socket file"),
    ],
)
def test_bad_address_gets_one_line_that_names_the_fault_and_no_credential(text: str, complaint: str) -> None:
    with pytest.raises(CommandError) as caught:
        RedisStore(text, pairs=tuple)
    message = str(caught.value)
    assert complaint in message
    assert "\n" not in message
    assert "secret" not in message
    assert caught.value.__cause__ is None


def test_tls_verifies_the_server_unless_the_address_says_otherwise(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("")
    strict = RedisStore(f"rediss://cache?ssl_ca_certs={authority}", pairs=tuple)
    settings = strict._redis.connection_pool.connection_kwargs
    assert settings["ssl_ca_certs"] == str(authority)
    assert settings.get("ssl_cert_reqs", "required") == "required"
    assert settings.get("ssl_check_hostname", True)
