"""Which servers may be sent the hint, however their URL is spelled."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from otel_kvpolicy.hints.targets import HOSTED_VENDORS, Origin, RejectedOrigins, Targets
from tests import needs


def origin(url: str) -> Origin:
    return Origin.of(httpx2.URL(url))


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1",
        "https://API.OpenAI.com./v1",
        "https://eu.api.openai.com/v1",
        "https://user:secret@api.openai.com:443/v1",
        "https://acme.openai.azure.com/openai",
        "https://api.mistral.ai/v1",
        "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1",
        "https://openrouter.ai/api/v1",
        "https://api.openai.com:8443/v1",
        "https://api.openai.com../v1",
        "https://api。openai。com/v1",
        "https://vllm.example.com@api.openai.com/v1",
        "https://vllm.example.com:80@api.openai.com/v1",
        "https://vllm.example.com\\@api.openai.com/v1",
    ],
)
def test_auto_excludes_hosted_vendors(url: str) -> None:
    assert not Targets("auto").allow(origin(url))
    assert Targets("all").allow(origin(url))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/v1",
        "http://[::1]:8000/v1",
        "http://gb10.local:8000/v1",
        "https://vllm.example.com/v1",
        "https://api.openai.com.example.org/v1",
        "https://api.openai.com@vllm.example.com/v1",
        "https://notapi-openai.com/v1",
        "https://my-vllm-123.elb.us-east-1.amazonaws.com/v1",
    ],
)
def test_auto_allows_all_others(url: str) -> None:
    assert Targets("auto").allow(origin(url))


def test_auto_excludes_azure_clients_of_any_host() -> None:
    assert not Targets("auto").allow(origin("https://gateway.example.com"), azure=True)
    assert Targets("all").allow(origin("https://gateway.example.com"), azure=True)
    assert Targets("gateway.example.com").allow(origin("https://gateway.example.com"), azure=True)


@pytest.mark.parametrize(
    ("patterns", "url", "allowed"),
    [
        ("gb10.local", "http://gb10.local:8000/v1", True),
        ("GB10.local", "http://gb10.LOCAL/v1", True),
        ("gb10.local:8000", "http://gb10.local:8001/v1", False),
        ("gb10.local:443", "https://gb10.local/v1", True),
        ("*.lan", "http://a.b.lan/v1", True),
        ("*.lan", "http://lan/v1", False),
        ("*.lan", "http://a.lan.example.com/v1", False),
        ("gb10.local", "http://gb10.local@evil.example/v1", False),
        ("gb10.local", "http://xgb10.local/v1", False),
        ("gb10.local", "http://gb10xlocal/v1", False),
        ("a.lan, b.lan", "http://b.lan/v1", True),
        ("[::1]:8000", "http://[::1]:8000/v1", True),
        ("bücher.lan", "http://xn--bcher-kva.lan/v1", True),
        ("xn--bcher-kva.lan", "http://bücher.lan/v1", True),
        ("*.bücher.lan", "http://a.xn--bcher-kva.lan/v1", True),
        ("xn--strae-oqa.lan", "http://straße.lan/v1", True),
        ("xn--strae-oqa.lan", "http://strasse.lan/v1", False),
        ("apple.lan", "http://аpple.lan/v1", False),  # the first letter is Cyrillic
        ("gb10.local", "http://gb10.local:80@evil.example/v1", False),
        ("gb10.local", "http://evil.example/?@gb10.local/v1", False),
        ("gb10.local", "http://evil.example/#@gb10.local/v1", False),
        ("gb10.local", "http://evil.example/gb10.local", False),
        ("gb10.local", "http://gb10.local%2eevil.example/v1", False),
        ("gb10.local", "http://gb10.local./v1", True),
        ("gb10.local.", "http://gb10.local/v1", True),
        ("gb10.local", "http://gb10.local.evil.example/v1", False),
        ("gb10.local:80", "http://gb10.local/v1", True),
        ("gb10.local:80", "https://gb10.local/v1", False),
        ("gb10.local:*", "https://gb10.local:8443/v1", True),
        ("*:8000", "http://anything.example:8000/v1", True),
        ("*:8000", "http://anything.example:80001/v1", False),
        ("[::1]", "http://[::1]:8000/v1", True),
        ("[::1]:8000", "http://[::1]:8001/v1", False),
        (
            "[::1]",
            "http://[0:0:0:0:0:0:0:1]/v1",
            False,
        ),  # another spelling does not match, so no hint is sent
        ("[::1]", "http://[::1%25eth0]/v1", False),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]/v1", False),
        ("127.0.0.1", "http://127.0.0.1.evil.example/v1", False),
        ("10.0.0.7", "http://10x0.0.7/v1", False),
        ("10.0.0.*", "http://10.0.0.7:8000/v1", True),
        ("10.0.0.*", "http://10.0.0.7.evil.example/v1", False),
        ("10.*:8000", "http://10.1.2.3:8000/v1", True),
        ("10.*", "http://10.evil.example/v1", False),
        ("10.*.lan", "http://10.a.lan/v1", True),
        ("*", "http://anything.example/v1", True),
        ("*.*.lan", "http://a.lan/v1", False),
        ("*.lan.", "http://a.lan./v1", True),
        ("gb10.local.:8000", "http://gb10.local:8000/v1", True),
        ("gb10.local", "HTTP://GB10.Local:8000/v1", True),
        ("[FE80::1]:8000", "http://[fe80::1]:8000/v1", True),
        ("[fe80::1]", "http://[FE80::1]/v1", True),
        ("127.0.0.1", "http://2130706433/v1", False),
        ("127.0.0.1", "http://0x7f.0.0.1/v1", False),
        ("localhost", "http://127.0.0.1/v1", False),
        ("localhost", "http://[::1]/v1", False),
        ("BÜCHER.lan", "http://bücher.lan/v1", True),
        ("bücher.lan", "http://XN--BCHER-KVA.lan/v1", True),
        ("bücher.lan.", "http://bücher.lan./v1", True),
        ("bücher.lan:8000", "http://bücher.lan:8001/v1", False),
        ("gb10.local:65535", "http://gb10.local:65535/v1", True),
        ("gb10.local:08000", "http://gb10.local:8000/v1", True),
    ],
)
def test_patterns_match_whole_hosts_and_ports(patterns: str, url: str, allowed: bool) -> None:
    assert Targets(patterns).allow(origin(url)) is allowed


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "http://x",
        "a b",
        "host:port",
        "host/path",
        "user@host",
        "host?q",
        "host#f",
        "...",
        "[....]",
        "[fd00::*]",
        "[::1%eth0]",
        "[::1",
        "host:",
        "host:70000",
        "straße.lan",
        "ａ.lan",
        "ß" * 70,
        "auto,gb10.local",
        "gb10.local,all",
    ],
)
def test_a_text_that_is_not_a_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Targets(text)


def test_every_vendor_has_evidence() -> None:
    assert all(evidence for evidence in HOSTED_VENDORS.values())


def test_rejected_origins_are_distinct_and_bounded() -> None:
    rejected = RejectedOrigins(limit=2)
    first, *others = [origin(f"http://host-{number}") for number in range(3)]
    assert rejected.add(first)
    assert not rejected.add(first)
    assert origin("https://host-0") not in rejected
    for other in others:
        rejected.add(other)
    assert first not in rejected
    assert all(other in rejected for other in others)


def test_urls_of_legacy_httpx_give_the_same_origin() -> None:
    httpx: Any = needs.module("httpx", install="httpx", optional=True)
    assert Origin.of(httpx.URL("https://Bücher.lan/v1")) == origin("https://bücher.lan/v1")
