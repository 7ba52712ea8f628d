"""``otel-kvpolicy demo``: real calls through the real client, a stand-in for the servers, and what the caches made of it."""
