"""An embedded vLLM with LMCache, without a model: for the demo and for tests. Needs the extra ``[demo]``.

``with StandIn() as server:`` gives an OpenAI-compatible server at ``server.base_url`` whose caches, counters and metrics behave like the
real pair's, and remembers the requests it got.
"""

from .app import FAULT_HEADER, RecordedRequest
from .options import CHUNK_TOKENS, Options
from .server import StandIn

__all__ = ["CHUNK_TOKENS", "FAULT_HEADER", "Options", "RecordedRequest", "StandIn"]
