"""``telemetry/names.py`` agrees with the semantic conventions and with what is written.

The tables in the documentation are checked in ``tests/docs``.
"""

from __future__ import annotations

import re

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, server_attributes

from otel_kvpolicy.telemetry import names

from .conftest import Telemetry
from .instrumentation import surfaces


def test_genai_names_follow_the_semantic_conventions() -> None:
    ours = {
        value
        for key, value in vars(names).items()
        if isinstance(value, str) and value.startswith("gen_ai.")
    }
    theirs = {value for key, value in vars(gen_ai_attributes).items() if isinstance(value, str)}
    newer_than_the_oldest_dependency = {
        names.PROVIDER_NAME,
        names.USAGE_CACHE_READ_INPUT_TOKENS,
        names.REQUEST_STREAM,
    }
    assert ours - theirs <= newer_than_the_oldest_dependency
    assert error_attributes.ERROR_TYPE == names.ERROR_TYPE
    assert (server_attributes.SERVER_ADDRESS, server_attributes.SERVER_PORT) == (
        names.SERVER_ADDRESS,
        names.SERVER_PORT,
    )


def test_written_attributes_and_registered_names_agree(
    server: object, instrumented: Telemetry
) -> None:
    surfaces.run(surfaces.create, server.base_url)  # type: ignore[attr-defined]
    [span] = instrumented.decided
    written = {name for name in span.attributes or {} if name.startswith("kvpolicy.")}
    always = {attribute.name for attribute in names.ATTRIBUTES if attribute.always}
    assert always <= written <= {attribute.name for attribute in names.ATTRIBUTES}
    for metric in names.METRICS:
        for attributes, _ in instrumented.points(metric.name):
            assert set(attributes) <= set(metric.attributes)


def test_metric_names_buckets_and_kinds_are_consistent() -> None:
    for metric in names.METRICS:
        assert re.fullmatch(r"kvpolicy(\.[a-z_]+)+", metric.name)
        assert bool(metric.buckets) is (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.prometheus.endswith("_total") is (metric.kind == "counter")
