"""The server for the examples: ``OPENAI_BASE_URL`` if it is set, otherwise an embedded stand-in.

The stand-in needs ``pip install 'otel-kvpolicy[demo]'``.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from otel_kvpolicy.standin import StandIn


@contextmanager
def base_url() -> Iterator[str]:
    """Yield the base URL for an OpenAI client."""
    if url := os.environ.get("OPENAI_BASE_URL"):
        yield url
        return
    with StandIn() as server:
        yield server.base_url
