"""Which dialect a server speaks, and how that is known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from ... import series
from ...hints.lmcache import LMCACHE
from ...hints.vllm_offload import VLLM_OFFLOAD
from .findings import Finding, Outcome
from .server_facts import LMCacheFacts, VLLMFacts, mode_of

Proof = Literal["trials", "metrics", "version", "none"]
"""How it is known: trials showed it, the metrics page names the program, the program's version is
too old; or it is not known."""

_READS_CAP_SINCE: Final = (0, 23, 0)
"""The first vLLM whose ``OffloadingConnector`` reads ``max_offload_tokens``."""

_WITHOUT: Final = (
    (series.DYNAMO_PREFIX, "Dynamo", "refuses kv_transfer_params"),
    (series.TENSORRT_LLM_PREFIX, "TensorRT-LLM", "refuses kv_transfer_params"),
    (series.SGLANG_PREFIX, "SGLang", "drops kv_transfer_params"),
)
"""Prefix of a program's metrics, its name, and what it does with the hint. None of them can
control stores per request."""


@dataclass(frozen=True)
class Spoken:
    """The dialect of a server.

    Attributes:
        configured: the dialect that ``KV_CACHE_DIALECT`` names for it.
        speaks: the dialect that it speaks; None if it speaks none, or if that is not known.
        proof: how that is known.
        text: one line for people.
    """

    configured: str
    speaks: str | None
    proof: Proof
    text: str

    @property
    def mismatch(self) -> bool:
        """Whether the server is known to speak another dialect than the configured one."""
        return self.speaks is not None and self.speaks != self.configured

    def as_json(self) -> dict[str, Any]:
        """Return the finding for scripts."""
        return {
            "configured": self.configured,
            "speaks": self.speaks,
            "proof": self.proof,
            "text": self.text,
        }


def dialect_of(
    configured: str,
    vllm: VLLMFacts,
    lmcache: LMCacheFacts | None,
    findings: tuple[Finding, ...],
) -> Spoken:
    """Return the dialect that a server speaks.

    Trials prove more than a metrics page, which only shows what runs.

    Args:
        configured: the dialect that ``KV_CACHE_DIALECT`` names for the server.
        vllm: what the server says of itself.
        lmcache: what LMCache's multi-process server says, if its address is known.
        findings: what trials with LMCache's keys showed.
    """
    honoured = [finding.arm for finding in findings if finding.outcome == "honoured"]
    if honoured:
        text = f"prompts sent with {' or '.join(honoured)} were not stored"
        return _spoken(configured, LMCACHE.name, "trials", text)
    return (
        _by_program(configured, vllm)
        or _by_findings(configured, findings, vllm)
        or _by_lmcache(configured, vllm, lmcache)
    )


def _by_program(configured: str, vllm: VLLMFacts) -> Spoken | None:
    page = vllm.page
    if page is None:
        return None
    for prefix, program, behavior in _WITHOUT:
        if page.has_prefix(prefix):
            text = f"{program} {behavior}: it has no switch for single requests"
            return _spoken(configured, None, "metrics", text)
    return None


def _by_findings(configured: str, findings: tuple[Finding, ...], vllm: VLLMFacts) -> Spoken | None:
    if _all(findings, "refused"):
        return _spoken(configured, None, "trials", "it refuses kv_transfer_params")
    if vllm.page is not None and vllm.page.has_prefix(series.VLLM_OFFLOAD_PREFIX):
        return _offloading(configured, vllm.version)
    if _all(findings, "no_connector"):
        return _spoken(configured, None, "trials", "vLLM runs without a KV connector")
    return None


def _by_lmcache(configured: str, vllm: VLLMFacts, lmcache: LMCacheFacts | None) -> Spoken:
    if mode_of(vllm.page, lmcache) != "unknown":
        text = "LMCache's metrics are there, but no trial showed that it obeys"
        return _spoken(configured, LMCACHE.name, "metrics", text)
    return _spoken(configured, None, "none", "neither the trials nor the metrics show it")


def _offloading(configured: str, version: str | None) -> Spoken:
    parts = re.match(r"(\d+)\.(\d+)\.(\d+)", version or "")
    if parts is not None and tuple(map(int, parts.groups())) < _READS_CAP_SINCE:
        text = (
            f"OffloadingConnector of vLLM {version} has no switch for single requests; 0.23.0 has"
        )
        return _spoken(configured, None, "version", text)
    text = "OffloadingConnector's metrics are there; no trial was made with its key"
    return _spoken(configured, VLLM_OFFLOAD.name, "metrics", text)


def _spoken(configured: str, speaks: str | None, proof: Proof, text: str) -> Spoken:
    known = speaks or ("unknown" if proof == "none" else "none")
    how = "" if proof == "none" else f" (proven by {_BY[proof]})"
    return Spoken(configured, speaks, proof, f"{known}{how}: {text}; configured: {configured}")


_BY: Final[dict[Proof, str]] = {
    "trials": "trials",
    "metrics": "its metrics page",
    "version": "its version",
}


def _all(findings: tuple[Finding, ...], outcome: Outcome) -> bool:
    return bool(findings) and all(finding.outcome == outcome for finding in findings)
