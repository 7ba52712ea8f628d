"""The class counts of a fleet in Redis or Valkey: each process adds its own and gets the sum."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from ..policy.adaptive.reuse_table import MAX_CLASSES, CallClass

KEY: Final = "kvpolicy:classes:1"
_SECONDS: Final = 1.0
_TTL_SECONDS: Final = 7 * 24 * 3600
_MAX_COUNT: Final = 16384
"""The counts of a class are halved beyond this many calls, so that they follow the traffic."""

_MAX_FIELD: Final = 1024
"""Longest encoded class, in characters. Each character of a label takes up to twelve."""

# One hash, with a field "calls returned" for each class. A script runs atomically.
_EXCHANGE: Final = """
local most, classes = tonumber(ARGV[1]), tonumber(ARGV[2])
for i = 4, #ARGV, 3 do
  local calls, returned = 0, 0
  local known = redis.call('HGET', KEYS[1], ARGV[i])
  if known then
    local c, r = string.match(known, '^(%S+) (%S+)$')
    calls, returned = tonumber(c) or 0, tonumber(r) or 0
    if not (calls >= 0 and calls < 1e9 and returned >= 0 and returned < 1e9) then
      calls, returned = 0, 0
    end
  end
  if known or redis.call('HLEN', KEYS[1]) < classes then
    calls, returned = calls + tonumber(ARGV[i + 1]), returned + tonumber(ARGV[i + 2])
    if calls > most then calls, returned = calls / 2, returned / 2 end
    redis.call('HSET', KEYS[1], ARGV[i], string.format('%.6f %.6f', calls, returned))
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return redis.call('HGETALL', KEYS[1])
"""


class Fleet:
    """The counts that a fleet shares.

    Args:
        url: URL of the server: ``redis://``, ``rediss://`` or ``unix://``.

    Raises:
        ModuleNotFoundError: the extra ``redis`` is not installed.
        ValueError: ``url`` is not such a URL.
    """

    def __init__(self, url: str) -> None:
        import encodings.idna  # noqa: F401 - looking up the host must not import it during a fork

        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        try:
            client: Any = redis.Redis.from_url(
                url,
                socket_timeout=_SECONDS,
                socket_connect_timeout=_SECONDS,
                # No retry: counts that arrived but were not acknowledged would be added twice.
                retry=Retry(NoBackoff(), 0),
                decode_responses=True,
                encoding_errors="replace",
            )
        except ValueError:  # its message can quote a password that contains "/" or "#"
            raise ValueError("KV_CACHE_REDIS_URL is not the URL of a Redis server") from None
        self._client = client
        self._exchange = client.register_script(_EXCHANGE)

    def exchange(
        self, new: Mapping[CallClass, tuple[float, float]]
    ) -> list[tuple[CallClass, float, float]]:
        """Add the counts of this process and return those of the fleet.

        Args:
            new: (calls, returns) by class since the last exchange.

        Raises:
            redis.RedisError: the server cannot be reached, or reports an error.
        """
        given = [
            part
            for group, counts in new.items()
            for part in (json.dumps(group), *map(repr, counts))
        ]
        answer = self._exchange(keys=[KEY], args=[_MAX_COUNT, MAX_CLASSES, _TTL_SECONDS, *given])
        pairs = zip(answer[::2], answer[1::2], strict=True)
        return [
            counts
            for field, value in islice(pairs, MAX_CLASSES)
            if (counts := _read(field, value)) is not None
        ]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _read(field: str, value: str) -> tuple[CallClass, float, float] | None:
    """Return a class and its counts; None for a field that this package did not write."""
    try:
        label, turns, length, seen = json.loads(field[:_MAX_FIELD])
        buckets = [int(bucket) for bucket in (turns, length, seen)]
        calls, returned = map(float, value.split(" "))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    if not isinstance(label, str) or not all(0 <= bucket <= 16 for bucket in buckets):
        return None
    return CallClass(label, *buckets), calls, returned
