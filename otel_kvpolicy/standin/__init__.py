"""An embedded vLLM with LMCache, without a model: for the demo and for tests. Needs the extra ``[demo]``.

``with StandIn() as server:`` gives an OpenAI-compatible server at ``server.base_url`` whose caches, counters and metrics behave like the
real pair's, and remembers the requests it got.
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
