"""Servers that a manifest may not name, however they are spelled, and what a name resolves to."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp.resolver import ThreadedResolver
from hypothesis import given
from hypothesis import strategies as st
from slipstream_core.checked_resolver import CheckedResolver
from slipstream_core.endpoint_rules import EndpointRules, may_name_variable
from slipstream_core.errors import CommandError, ManifestError
from slipstream_core.manifest import compile_file
from slipstream_core.settings import UpstreamSettings
from slipstream_tools.cli import main

from tests.gateway.pair_manifest import chat, manifest_text
from tests.support.polling import PATIENCE_S

METADATA = (
    "http://169.254.169.254",
    "http://169.254.169.254:80/latest/meta-data",
    "http://[::ffff:169.254.169.254]",
    "http://[::ffff:a9fe:a9fe]",
    "http://[64:ff9b::a9fe:a9fe]",
    "http://[2002:a9fe:a9fe::1]",
    "http://[fd00:ec2::254]",
    "http://[fe80::1]",
    "http://metadata.google.internal",
    "http://METADATA.google.internal.",
    "http://0xa9fea9fe",
    "http://169.254.0xa9fe",
    "http://100.100.100.200",
    "http://168.63.129.16",
    "http://0.0.0.0:8000",
    "http://[::]:8000",
    "http://224.0.0.1",
    "http://2852039166",
    "http://0251.0376.0251.0376",
    "http://025177524776",
    "http://169.254.43518",
    "http://169.16689662",
    "http://0XA9.254.0xA9FE.",
    "http://0",
    "http://[64:ff9b:1::a9fe:a9fe]",
    "http://[64:ff9b:1:a9fe:a9:fe00::]",
    "http://[64:ff9b:1:a9:fe:a9fe::]",
    "http://[64:ff9b:1:0:a9:fea9:fe00::]",
    "http://[64:ff9b:1:2:3:4:a9fe:a9fe]",
    "http://[::ffff:0:a9fe:a9fe]",
    "http://[::a9fe:a9fe]",
    "http://[2001:db8::5efe:169.254.169.254]",
    "http://[fe80::5efe:808:808]",
    "http://[fe80::200:5efe:808:808]",
    "http://[2002:a9fe:a9fe::5efe:808:808]",
    "http://[2001:0:a9fe:a9fe:0:5efe:808:808]",
    "http://[2001:0:a9fe:a9fe::1]",
    "http://[2001:0:102:304::5601:5601]",
    "grpc://169.254.169.254:8001",
    "grpcs://[::ffff:169.254.169.254]:8001",
)


@pytest.mark.parametrize("endpoint", METADATA)
@pytest.mark.parametrize("rules", [EndpointRules(), EndpointRules(["0.0.0.0/0", "::/0"], shared=True)])
def test_metadata_services_are_refused_even_where_everything_is_allowed(endpoint: str, rules: EndpointRules) -> None:
    assert rules.refuse(endpoint) is not None


@pytest.mark.parametrize(
    ("host", "means"),
    [
        ("127.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("167837953", "10.1.1.1"),
        ("012.1.1.1", "10.1.1.1"),
    ],
)
def test_a_notation_that_readers_disagree_on_is_refused_with_the_address_it_means(host: str, means: str) -> None:
    assert socket.getaddrinfo(host, 80, socket.AF_INET)[0][4][0] == means  # a client would connect to it
    for rules in (EndpointRules(), EndpointRules(["10.0.0.0/8", "12.0.0.0/8", "127.0.0.0/8"])):
        assert rules.refuse(f"http://{host}:8000") == f"'{host}' is another notation of {means}"
    shared = EndpointRules(shared=True).refuse(f"http://{host}:8000")
    assert shared is not None
    assert means in shared


@given(st.ip_addresses(v=4), st.sampled_from(["{:d}", "0x{:x}", "0{:o}"]), st.integers(1, 4))
def test_no_notation_of_an_ipv4_address_counts_as_a_name(address: Any, number: str, parts: int) -> None:
    rest = int.from_bytes(address.packed[parts - 1 :])
    host = ".".join(number.format(part) for part in (*address.packed[: parts - 1], rest))
    rules = EndpointRules(["example.com"], shared=True)
    assert rules.refuse(f"http://{host}") is not None
    assert EndpointRules(["0.0.0.0/0"]).refuse(f"http://{host}") is not None or host == str(address)


@pytest.mark.parametrize(
    "host",
    [
        *("4294967296", "1.2.3.4.5", "08.1.1.1", "0x", "a.0x1", "a.1", "%31.1", "１.1.1.1", "a b", ""),
        *("a..b", f"{'a' * 64}.svc", f"{'a.' * 126}bc"),  # a resolver fails on them with no error of its own
    ],
)
def test_what_is_neither_a_name_nor_an_address_is_refused(host: str) -> None:
    assert EndpointRules().refuse(f"http://{host}") is not None
    assert EndpointRules().refuse(f"http://[{host}") is not None


@given(st.ip_addresses(v=4))
def test_an_address_in_ipv6_clothes_is_judged_as_what_it_is(address: Any) -> None:
    rules = EndpointRules(["10.0.0.0/8"], shared=True)
    plain = rules.refuse(f"http://{address}") is None
    assert plain == (rules.refuse(f"http://[::ffff:{address}]") is None)
    low = f"{int(address) >> 16:x}:{int(address) & 0xFFFF:x}"
    for prefix in ("64:ff9b::", "::ffff:0:"):
        assert plain == (rules.refuse(f"http://[{prefix}{low}]") is None)
    assert plain == (rules.refuse(f"http://[2002:{low}::1]") is None)
    assert not plain or address in EndpointRules(["10.0.0.0/8"])._networks[0]


def test_an_isatap_address_is_judged_as_itself_and_as_what_it_holds() -> None:
    address = "http://[2a01:4f8::5efe:a00:5]"  # any network may give its hosts such addresses
    assert EndpointRules(["10.0.0.0/8"]).refuse(address) is not None
    assert EndpointRules(["10.0.0.0/8", "2a01:4f8::/32"]).refuse(address) is None
    assert EndpointRules(["2a01:4f8::/32"]).refuse(address) is None
    assert EndpointRules(["2a01:4f8::/32"]).refuse("http://[2a01:4f8::5efe:a9fe:a9fe]") is not None


@pytest.mark.parametrize(
    ("endpoint", "alone", "shared"),
    [
        ("http://127.0.0.1:8000", True, False),
        ("http://[::1]:8000", True, False),
        ("http://localhost:8000", True, False),
        ("http://a.localhost", True, False),
        ("http://10.1.2.3:8000", True, True),
        ("http://vllm.models.svc:8000", True, True),
    ],
)
def test_the_gateways_own_machine_is_no_server_for_manifests_of_others(
    endpoint: str, alone: bool, shared: bool
) -> None:
    assert (EndpointRules().refuse(endpoint) is None) == alone
    assert (EndpointRules(shared=True).refuse(endpoint) is None) == shared
    assert EndpointRules(["127.0.0.0/8", "::1/128", "localhost"], shared=True).refuse("http://localhost") is None


@pytest.mark.parametrize(
    ("endpoint", "allowed"),
    [
        ("http://10.1.2.3", True),
        ("http://10.1.2.3.evil.example", False),
        ("http://192.168.0.1", False),
        ("http://a.models.svc", True),
        ("http://A.Models.SVC.:80", True),
        ("http://models.svc", False),
        ("http://evilmodels.svc", False),
        ("http://models.svc.evil.example", False),
        ("http://exact.example", True),
        ("http://below.exact.example", True),
        ("http://inexact.example", False),
        ("grpcs://a.models.svc:8001", True),
    ],
)
def test_a_list_allows_what_is_on_it_and_nothing_else(endpoint: str, allowed: bool) -> None:
    rules = EndpointRules(["10.0.0.0/8", ".models.svc", "exact.example"])
    assert (rules.refuse(endpoint) is None) == allowed


@pytest.mark.parametrize("entry", ["10.0.0.0/99", "http://x", "a b", ""])
def test_a_list_of_something_else_is_refused(entry: str) -> None:
    with pytest.raises(CommandError, match="expected a network"):
        EndpointRules([entry])


async def test_what_a_name_resolves_to_is_looked_at_for_each_connection() -> None:
    """`localhost` stands for a name that has come to mean another machine: the name is allowed, its address is not."""
    resolver = CheckedResolver(EndpointRules(["example.com"], shared=True))
    with pytest.raises(OSError, match=r"localhost is refused: 127\.0\.0\.1 is this machine's loopback"):
        await resolver.resolve("localhost", 80)
    await resolver.close()
    alone = CheckedResolver(EndpointRules())
    plain = ThreadedResolver()
    assert await alone.resolve("localhost", 80, socket.AF_INET) == await plain.resolve("localhost", 80, socket.AF_INET)
    await alone.close()


@pytest.mark.parametrize(
    "found", ["::ffff:169.254.169.254", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1", "::a9fe:a9fe"]
)
async def test_an_ipv4_address_within_what_a_name_resolves_to_is_looked_at(found: str) -> None:
    resolver = CheckedResolver(EndpointRules())
    with pytest.raises(OSError, match=r"169\.254\.169\.254\)? is link-local"):
        await resolver.resolve(found, 80, socket.AF_INET6)
    await resolver.close()


def test_pair_with_a_refused_server_is_down_and_the_others_are_not(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    server = openai_server()
    rules = UpstreamSettings(endpoints=("127.0.0.1/32",))
    text = manifest_text([server.url, "http://192.0.2.1:9"])
    assert _ask(gateway(text, upstreams=rules), chat("tokens=2")).status_code == 200
    refused = _ask(gateway(text, upstreams=UpstreamSettings(endpoints=("10.0.0.0/8",))), chat("tokens=2"))
    assert refused.status_code == 503
    assert len(server.requests) == 1


def _ask(started: Any, body: Any) -> httpx.Response:
    return httpx.post(f"{started.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)


@pytest.mark.parametrize("address", ["http://user:secret@host", "http://user@host", "ftp://host", "file:///etc/passwd"])
def test_credentials_and_other_schemes_are_no_address(address: str) -> None:
    with pytest.raises(ManifestError) as caught:
        compile_file(Path("pair.yaml"), manifest_text([address]).encode())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "patterns", "allowed"),
    [
        ("VLLM_API_KEY", ("*_API_KEY",), True),
        ("AWS_SECRET_ACCESS_KEY", ("*_API_KEY",), False),
        ("SLIPSTREAM_REDIS_URL", ("*",), False),
        ("SLIPSTREAM_X_API_KEY", ("*_API_KEY",), False),
        ("PATH", ("*",), True),
        ("vllm_api_key", ("*_API_KEY",), False),
    ],
)
def test_environment_variables_that_manifests_may_name(name: str, patterns: tuple[str, ...], allowed: bool) -> None:
    assert may_name_variable(name, patterns) == allowed


def test_our_own_secrets_are_sent_to_nobody(
    gateway: Callable[..., Any], openai_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPSTREAM_REDIS_URL", "redis://:hunter2@127.0.0.1:1/0")
    server = openai_server()
    text = manifest_text([server.url]).replace("model: acme, endpoints", "model: acme, apiKeyEnv: K, endpoints")
    for name, sent in (("SLIPSTREAM_REDIS_URL", None), ("SOME_API_KEY", "Bearer upstream-key")):
        monkeypatch.setenv("SOME_API_KEY", "upstream-key")
        started = gateway(text.replace("apiKeyEnv: K", f"apiKeyEnv: {name}"))
        assert _ask(started, chat("tokens=2")).status_code == 200
        assert server.headers[-1].get("authorization") == sent


def test_headers_on_the_list_go_on_and_no_others(
    gateway: Callable[..., Any], openai_server: Callable[..., Any]
) -> None:
    server = openai_server()
    started = gateway(manifest_text([server.url]), upstreams=UpstreamSettings(forwarded_headers=("x-tenant",)))
    headers = {"X-Tenant": "blue", "X-Other": "red", "Cookie": "a=b", "Proxy-Authorization": "Basic x"}
    url = f"{started.url}/v1/chat/completions"
    for stream in (False, True):
        body = chat("tokens=2", stream=stream)
        assert httpx.post(url, json=body, headers=headers, timeout=PATIENCE_S).status_code == 200
        assert server.headers[-1]["x-tenant"] == "blue"
        assert not {"x-other", "cookie", "proxy-authorization"} & set(server.headers[-1])


@pytest.mark.parametrize("value", ["José".encode(), "José".encode("latin-1")], ids=["utf-8", "latin-1"])
def test_the_bytes_of_a_forwarded_header_are_the_clients(
    gateway: Callable[..., Any], openai_server: Callable[..., Any], value: bytes
) -> None:
    server = openai_server()
    started = gateway(manifest_text([server.url]), upstreams=UpstreamSettings(forwarded_headers=("x-tenant",)))
    url = f"{started.url}/v1/chat/completions"
    reply = httpx.post(url, json=chat("tokens=2"), headers={b"x-tenant": value}, timeout=PATIENCE_S)
    assert reply.status_code == 200
    assert server.headers[-1]["x-tenant"].encode("latin-1") == value


@pytest.mark.parametrize("name", ["Authorization", "cookie", "Connection", "HOST", "content-length", "a b", "x:y", ""])
def test_headers_that_are_never_forwarded(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from slipstream_core.manifest import EMBEDDED_MANIFEST

    assert main(["gateway", "-f", str(EMBEDDED_MANIFEST), "--forward-header", name]) == 2
    assert "--forward-header" in capsys.readouterr().err
