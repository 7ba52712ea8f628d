"""PromQL for panels and rules: selectors, rates and ratios over the named metrics.

Two conventions hold for every query:

- A ratio is a ratio of sums, and its denominator is filtered with ``> 0``. Without traffic there is
  no data, never NaN.
- A counter that its server creates on first use is completed with ``or 0 * <a series that the
  server always exposes>``. It reads zero while the server is up, and has no data when it is down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_kvpolicy import series
from otel_kvpolicy.series import Series
from otel_kvpolicy.telemetry import names
from otel_kvpolicy.telemetry.names import Metric

SENT: Final = "applied|caller"
"""Pattern of the hint outcomes that mean that the server received a hint."""


def label(attribute: str) -> str:
    """Return the Prometheus label of an OpenTelemetry attribute."""
    return attribute.replace(".", "_")


def legend(attribute: str) -> str:
    """Return a legend that reads the value of an attribute: ``{{label}}``."""
    return f"{{{{{label(attribute)}}}}}"


def equals(attribute: str, value: str) -> str:
    """Return a matcher for one value of an attribute."""
    return f'{label(attribute)}="{value}"'


def matches(attribute: str, pattern: str) -> str:
    """Return a matcher for a regular expression over an attribute."""
    return f'{label(attribute)}=~"{pattern}"'


def or_zero(part: str, whole: str) -> str:
    """Return ``part``, or zero if only ``whole`` has data."""
    return f"{part} or 0 * {whole}"


def quotient(dividend: str, divisor: str) -> str:
    """Return a division that has no data where the divisor is zero."""
    return f"{dividend} / ({divisor} > 0)"


def ratio(part: str, whole: str) -> str:
    """Return the share of ``whole`` that is ``part``.

    The share is zero if ``part`` has no series, and has no data if ``whole`` is zero.
    """
    return quotient(f"({or_zero(part, whole)})", whole)


SKIPPED: Final = equals(names.DECISION, names.SKIP)
SHADOWED: Final = f'{label(names.SHADOW_DECISION)}!=""'
SHADOW_SKIPPED: Final = equals(names.SHADOW_DECISION, names.SKIP)
SKIP_SENT: Final = (SKIPPED, matches(names.HINT_OUTCOME, SENT))
TO_OWN_SERVERS: Final = f'{label(names.HINT_OUTCOME)}!="excluded_target"'
"""Leaves out calls to hosted vendors, which never reach the cache."""


@dataclass(frozen=True)
class Scope:
    """The series that queries select, and the window of their rates.

    Attributes:
        window: range of ``rate``, such as ``5m``.
        client: pattern by label for this package's metrics. A label that a metric does not have is
            left out of its selector.
        instance: pattern of ``instance`` for the servers' metrics; empty selects all of them.
    """

    window: str
    client: Mapping[str, str] = field(default_factory=dict)
    instance: str = ""

    # --- building blocks ----------------------------------------------------------------------
    def select(self, what: Metric | Series, *matchers: str, suffix: str = "") -> str:
        """Return a selector of the scope's series.

        Args:
            what: a metric of this package or of a server.
            matchers: further label matchers.
            suffix: appended to the name, for the parts of a histogram.
        """
        name = what.prometheus if isinstance(what, Metric) else what.name
        inside = ", ".join([*self._matchers(what), *matchers])
        return f"{name}{suffix}{{{inside}}}" if inside else f"{name}{suffix}"

    def _matchers(self, what: Metric | Series) -> list[str]:
        if isinstance(what, Metric):
            labels = {"job", *map(label, what.attributes)}
        elif what in series.SPAN_METRICS:
            labels = {"job", *what.labels}
        else:
            return [f'instance=~"{self.instance}"'] if self.instance else []
        return [f'{key}=~"{pattern}"' for key, pattern in self.client.items() if key in labels]

    def rate(
        self,
        what: Metric | Series,
        *matchers: str,
        by: Sequence[str] = (),
        suffix: str = "",
        window: str = "",
    ) -> str:
        """Return the sum of the rates of a counter."""
        selected = self.select(what, *matchers, suffix=suffix)
        return f"sum{_by(by)}(rate({selected}[{window or self.window}]))"

    def growth(
        self, what: Metric | Series, *matchers: str, window: str, by: Sequence[str] = ()
    ) -> str:
        """Return how much a counter grew in ``window``.

        A series that was created within the window counts with its first value, which ``increase``
        alone would miss.
        """
        selected = self.select(what, *matchers)
        created = f"(last_over_time({selected}[{window}]) unless {selected} offset {window})"
        return f"sum{_by(by)}({created} or increase({selected}[{window}]))"

    def quantile(
        self, q: float, what: Metric | Series, *matchers: str, by: Sequence[str] = ()
    ) -> str:
        """Return a quantile of a histogram; without observations it has no data instead of NaN."""
        buckets = self.rate(what, *matchers, by=(*by, "le"), suffix="_bucket")
        return f"histogram_quantile({q}, {buckets}) >= 0"

    def mean(self, what: Metric | Series) -> str:
        """Return the mean of a histogram's observations."""
        return quotient(self.rate(what, suffix="_sum"), self.rate(what, suffix="_count"))

    # --- the policy ---------------------------------------------------------------------------
    def share(
        self, what: Metric, *part: str, of: Sequence[str] = (), by: Sequence[str] = ()
    ) -> str:
        """Return the share of a counter that the matchers in ``part`` select.

        Args:
            what: the counter.
            part: matchers of the dividend, in addition to ``of``.
            of: matchers of the divisor.
            by: labels to group by.
        """
        return ratio(self.rate(what, *of, *part, by=by), self.rate(what, *of, by=by))

    def skip_ratio_calls(self) -> str:
        """Return the share of calls that the policy decided to skip."""
        return self.share(names.DECISIONS, SKIPPED)

    def skip_ratio_tokens(self) -> str:
        """Return the share of prompt tokens in calls that the policy decided to skip."""
        return self.share(names.PROMPT_TOKENS, SKIPPED)

    def skip_ratio_sent(self) -> str:
        """Return the share of prompt tokens in calls whose server received a skip hint.

        Calls to hosted vendors, which never get a hint, are left out of both sums.
        """
        return self.share(names.PROMPT_TOKENS, *SKIP_SENT, of=(TO_OWN_SERVERS,))

    def cached_share(self) -> str:
        """Return the share of prompt tokens read from a cache, by decision.

        Only calls whose server reported its token usage count.
        """
        by = (label(names.DECISION),)
        reported = equals(names.TOKEN_SOURCE, names.FROM_USAGE)
        return ratio(
            self.rate(names.CACHED_TOKENS, by=by),
            self.rate(names.PROMPT_TOKENS, reported, by=by),
        )

    def avoided_chunks(self, chunk: str) -> str:
        """Return the chunks per second that skipping may have avoided.

        Args:
            chunk: tokens per chunk. Whole prompts are divided by it, so this is an upper bound.
        """
        return f"{self.rate(names.PROMPT_TOKENS, *SKIP_SENT)} / {chunk}"

    # --- LMCache ------------------------------------------------------------------------------
    def zero_per_lmcache_server(self) -> str:
        """Return zero for each LMCache server that is scraped."""
        return f"0 * max by (instance) ({self.select(series.EVENT_QUEUE)})"

    def per_server(self, what: Series) -> str:
        """Return the rate, by instance, of a counter that LMCache's server creates on first use.

        It is zero only if the counter does not exist yet. A counter with fewer than two samples in
        the window exists but has no rate, so it has no data.
        """
        absent = f"({self.zero_per_lmcache_server()} unless on (instance) {self.select(what)})"
        return f"({self.rate(what, by=('instance',))} or {absent})"

    def lookup_tokens(self) -> str:
        """Return the tokens looked up per second, in both modes of LMCache."""
        return self._either_mode(series.LOOKUP_REQUESTED, series.IN_LOOKUP_TOKENS)

    def hit_tokens(self) -> str:
        """Return the looked-up tokens found per second, in both modes of LMCache."""
        return self._either_mode(series.LOOKUP_HIT, series.IN_LOOKUP_HITS)

    def _either_mode(self, server: Series, in_process: Series) -> str:
        by = ("instance",)
        return f"sum({self.rate(server, by=by)} or {self.rate(in_process, by=by)})"

    def hit_rate(self) -> str:
        """Return the share of looked-up tokens found in L1 or L2."""
        return quotient(self.hit_tokens(), self.lookup_tokens())

    def tier_hit_rate(self, tier: Series) -> str:
        """Return the share of looked-up tokens found in one tier.

        Only servers that report their tiers separately (LMCache 0.5.5 and later) count.
        """
        by = ("instance",)
        lookups = f"sum({self.rate(series.LOOKUP_REQUESTED, by=by)} and {self.rate(tier, by=by)})"
        return quotient(self.rate(tier), lookups)

    def stored_chunks(self) -> str:
        """Return the chunks per second that requests stored, by instance.

        Writes to L1 include loads from L2, which are subtracted.
        """
        written, loaded = self.per_server(series.L1_WRITE), self.per_server(series.L2_LOADED)
        return f"clamp_min({written} - {loaded}, 0)"

    def l1_capacity(self) -> str:
        """Return the size of L1 in bytes, which LMCache does not expose: usage / usage ratio."""
        return quotient(self.select(series.L1_BYTES), self.select(series.L1_RATIO))

    def l1_free(self) -> str:
        """Return the unused bytes of L1, by instance."""
        return f"sum by (instance) ({self.l1_capacity()} - {self.select(series.L1_BYTES)})"

    def stored_of_missed(self, window: str) -> str:
        """Return tokens stored over tokens missed.

        It is about 1 if LMCache stores all misses, and lower by the share whose skip hint LMCache
        honors. LMCache's server counts stored objects, so they are converted to tokens with the
        tokens per object that its own hits show.
        """
        keys = " + ".join(
            f"sum(increase({self.select(hits)}[6h]))"
            for hits in (series.LOOKUP_HIT_L1_KEYS, series.LOOKUP_HIT_L2_KEYS)
        )
        tokens = f"sum(increase({self.select(series.LOOKUP_HIT)}[6h]))"

        def rate(what: Series) -> str:
            return self.rate(what, window=window)

        written = rate(series.L1_WRITE)
        objects = f"({written} - ({or_zero(rate(series.L2_LOADED), written)}))"
        stored = quotient(f"{objects} * {tokens}", keys)
        missed = f"{rate(series.LOOKUP_REQUESTED)} - {rate(series.LOOKUP_HIT)}"
        in_missed = f"{rate(series.IN_LOOKUP_TOKENS)} - {rate(series.IN_LOOKUP_HITS)}"
        server = quotient(f"({stored})", missed)
        in_process = quotient(rate(series.IN_STORED_TOKENS), in_missed)
        return f"{server} or {in_process}"

    def lmcache_names(self) -> str:
        """Return, for each instance, a number for the metric names that LMCache exposes.

        `NAMES_STATES` has the meaning of each number.
        """
        group = "group by (instance)"
        old = f"{self.select(series.OLD_L1_WRITE)} or {self.select(series.OLDER_L1_WRITE)}"
        up = self.select(series.UP, LMCACHE_JOB)
        return " or ".join(
            (
                f"1 * {group} ({self.select(series.LOOKUP_HIT_L1)})",
                f"2 * {group} ({self.select(series.LOOKUP_HIT)})",
                f"3 * {group} ({old})",
                f"4 * {group} ({self.select(series.IN_LOOKUP_TOKENS)})",
                f"5 * {group} ({self.select(series.EVENT_QUEUE)})",
                f"6 * {group} ({up} == 1)",
                f"0 * {group} ({up} == 0)",
            )
        )


LMCACHE_JOB: Final = 'job=~".*lmcache.*"'
"""Matches the scrapes of LMCache's server, by the job name that the configurations in
``collector/`` give them."""

NAMES_STATES: Final[Mapping[int, tuple[str, str]]] = {
    0: ("Down: the scrape fails", "red"),
    1: ("Server 0.5.5 or later: L1 and L2 separate", "green"),
    2: ("Server 0.4.7 to 0.5.4: hits, not by tier", "yellow"),
    3: ("Server before 0.4.7: too old for these panels", "red"),
    4: ("In-process connector: hits, not by tier", "blue"),
    5: ("Server is up, no lookups yet", "blue"),
    6: (
        "No lmcache_mp series on the page: sent by --otlp-endpoint, or switched off",
        "orange",
    ),
}
"""Text and color for each number that `Scope.lmcache_names` returns."""

SELECTED: Final = Scope(
    window="$__rate_interval",
    client={
        "job": "$service",
        label(names.REQUEST_MODEL): "$model",
        label(names.AGENT_NAME): "$agent",
    },
    instance="$host(:.*)?",
)
"""The series that a dashboard's variables select."""

FLEET: Final = Scope(window="5m")
"""All series, for the rules."""


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)}) " if labels else ""
