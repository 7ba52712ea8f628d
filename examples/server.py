"""Where the examples talk to: ``OPENAI_BASE_URL`` where it is set, else a stand-in that lives as long as the example.

The stand-in needs ``pip install 'otel-kvpolicy[demo]'``.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from otel_kvpolicy.standin import StandIn


@contextmanager
def base_url() -> Iterator[str]:
    """The base URL to give an OpenAI client."""
    if given := os.environ.get("OPENAI_BASE_URL"):
        yield given
        return
    with StandIn() as server:
        yield server.base_url
