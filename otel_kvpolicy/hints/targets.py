"""Which servers may get the hint: by default all but vendors that reject unknown fields."""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from typing import Any, Final, NamedTuple

HOSTED_VENDORS: Final[dict[str, str]] = {
    "api.openai.com": "400 unknown parameter: spring-ai #5197, semantic-router #1901",
    "*.api.openai.com": "regional hosts of api.openai.com",
    "*.openai.azure.com": "400: quarkus-langchain4j #285",
    "*.services.ai.azure.com": "400, AI Foundry: DeepSeek-Reasonix #1299",
    "*.cognitiveservices.azure.com": "Azure OpenAI under its other name",
    "*.inference.ai.azure.com": "AI Foundry serverless and GitHub Models",
    "models.github.ai": "GitHub Models, served by AI Foundry",
    "api.mistral.ai": "422 extra_forbidden: mistralai/platform-docs-public #7",
    "integrate.api.nvidia.com": "422 extra_forbidden: garak #748",
    "api.groq.com": "400 property is unsupported: immersive-translate #3003",
    "generativelanguage.googleapis.com": "400 cannot find field: openhanako #394",
    "*aiplatform.googleapis.com": "Vertex AI, the same front end as Gemini's",
    "api.anthropic.com": "400 extra inputs are not permitted: litellm #13825",
    "bedrock*.amazonaws.com": "400, Claude on Bedrock: litellm #7416",
    "api.fireworks.ai": "400: Flowise #2866",
    "open.bigmodel.cn": "400, GLM: agent-stuff #19",
    "api.z.ai": "400, GLM: agent-stuff #19",
    "openrouter.ai": "not established, so treated as unsafe",
    "api.together.xyz": "not established, so treated as unsafe",
    "api.together.ai": "not established, so treated as unsafe",
    "api.cerebras.ai": "not established, so treated as unsafe",
    "api.deepinfra.com": "not established, so treated as unsafe",
    "api.x.ai": "not established, so treated as unsafe",
    "api.deepseek.com": "not established, so treated as unsafe",
    "api.perplexity.ai": "not established, so treated as unsafe",
    "api.cohere.com": "not established, so treated as unsafe",
    "api.cohere.ai": "not established, so treated as unsafe",
    "api.moonshot.ai": "not established, so treated as unsafe",
    "api.moonshot.cn": "not established, so treated as unsafe",
    "dashscope*.aliyuncs.com": "not established, so treated as unsafe",
    "router.huggingface.co": "not established, so treated as unsafe",
}
"""Host pattern -> why the hint is not sent there, from public reports as of 2026-12. If a server
that is not listed rejects the hint, the call is repeated without it."""

_PATTERN: Final = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[^\s:/@\[\]?#]+)(?::(?P<port>\d{1,5}|\*))?")

_ADDRESSES: Final = re.compile(r"\d{1,3}\.[\d.*]*")


class Origin(NamedTuple):
    """A server: scheme, host (lower case, IDNA-encoded) and port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: Any) -> Origin:
        """Return the origin of an httpx or httpx2 URL, whose ``raw_host`` is encoded already."""
        scheme = url.scheme
        host = url.raw_host.decode("ascii").lower().rstrip(".")
        return cls(scheme, host, url.port or (443 if scheme == "https" else 80))


class HostPattern:
    """A host pattern such as ``gb10.local``, ``*.lan:8000`` or ``[::1]:8000``.

    ``*`` matches any characters, dots included, but in a pattern for IPv4 addresses such as
    ``10.0.0.*`` only digits and dots. A pattern without a port, or with the port ``*``, matches any
    port.

    Args:
        pattern: the pattern, in lower case.

    Raises:
        ValueError: it is not a host pattern.
    """

    __slots__ = ("_host", "_port")

    def __init__(self, pattern: str) -> None:
        match = _PATTERN.fullmatch(pattern)
        if match is None:
            raise ValueError(f"{pattern!r} is not a host pattern such as gb10.local or *.lan:8000")
        host, port = _encoded(match["host"].strip("[]").rstrip(".")), match["port"]
        if not host or host in {"auto", "all"}:
            raise ValueError(f"{pattern!r} does not name a host; auto and all must stand alone")
        if port is not None and port != "*" and int(port) > 65535:
            raise ValueError(f"{pattern!r} has a port above 65535")
        self._host = _glob(host)
        self._port = None if port in {None, "*"} else int(port)

    def matches(self, origin: Origin) -> bool:
        """Return True if the pattern matches a server."""
        return self._port in {None, origin.port} and bool(self._host.fullmatch(origin.host))


class Targets:
    """The setting ``KV_CACHE_TARGETS``.

    Args:
        text: ``auto``, ``all``, or host patterns separated by commas, such as ``gb10.local``,
            ``*.lan``, ``10.0.0.7:8000``, ``[::1]:8000``; see :class:`HostPattern`.

    Raises:
        ValueError: a pattern is not a host.
    """

    __slots__ = ("_patterns", "text")

    def __init__(self, text: str) -> None:
        self.text = ",".join(part.strip().lower() for part in text.split(",") if part.strip())
        if not self.text:
            raise ValueError("it holds no host pattern")
        self._patterns = (
            None
            if self.text in {"auto", "all"}
            else tuple(HostPattern(part) for part in self.text.split(","))
        )

    def allow(self, origin: Origin, *, azure: bool = False) -> bool:
        """Return True if the hint may go to a server.

        Args:
            origin: the server.
            azure: True if the client is made for Azure OpenAI, at any host.
        """
        if self._patterns is not None:
            return any(pattern.matches(origin) for pattern in self._patterns)
        return self.text == "all" or not (azure or _hosted(origin.host))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Targets) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Targets({self.text!r})"


def _encoded(host: str) -> str:
    """Return the host as it appears in a URL.

    Hosts that the two IDNA standards encode differently, such as those with ``ß``, are ambiguous.
    """
    if host.isascii():
        return host
    encoded = host.encode("idna")
    if encoded.decode("idna") != host:
        raise ValueError(f"{host!r} is ambiguous; write it as xn--...")
    return encoded.decode("ascii")


def _glob(host: str) -> re.Pattern[str]:
    # 10.0.0.* must not match 10.0.0.7.example.com.
    anything = r"[\d.]*" if _ADDRESSES.fullmatch(host) else ".*"
    return re.compile(anything.join(map(re.escape, host.split("*"))))


_HOSTED: Final = tuple(map(_glob, HOSTED_VENDORS))


@lru_cache(maxsize=256)
def _hosted(host: str) -> bool:
    return any(pattern.fullmatch(host) for pattern in _HOSTED)


class RejectedOrigins:
    """Servers that rejected the hint, bounded in number.

    Args:
        limit: servers to remember; the oldest are forgotten first.
    """

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._origins: dict[Origin, None] = {}
        self._lock = threading.Lock()

    def add(self, origin: Origin) -> bool:
        """Remember ``origin``. Return True if it is new."""
        with self._lock:
            if origin in self._origins:
                return False
            if len(self._origins) >= self._limit:
                del self._origins[next(iter(self._origins))]
            self._origins[origin] = None
            return True

    def __contains__(self, origin: Origin) -> bool:
        return origin in self._origins
