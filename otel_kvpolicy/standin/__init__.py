"""An embedded stand-in for vLLM with LMCache that runs no model, for the demo and for tests.

``with StandIn() as server:`` starts an OpenAI-compatible server at ``server.base_url``. Its caches,
counters and metrics behave like those of the real pair, and it records the requests it receives.
Needs the extra ``[demo]``.
"""

try:
    from .app import FAULT_HEADER, RecordedRequest
    from .options import CHUNK_TOKENS, Options
    from .server import StandIn
except ModuleNotFoundError as missing:
    package = (missing.name or "").partition(".")[0]
    raise ModuleNotFoundError(
        f"the stand-in needs {package}: pip install 'otel-kvpolicy[demo]'", name=package
    ) from None

__all__ = ["CHUNK_TOKENS", "FAULT_HEADER", "Options", "RecordedRequest", "StandIn"]
