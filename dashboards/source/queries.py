"""What is asked of Prometheus, said once for panels and rules.

Conventions: a ratio is a ratio of sums whose denominator is filtered with ``> 0``, so that no traffic is no data and never NaN.
A counter that its server creates with the first increment is completed with ``or 0 * <something the server always exposes>``: zero while
the server is there, no data when it is silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_kvpolicy import series as servers
from otel_kvpolicy.series import Series
from otel_kvpolicy.telemetry import names
from otel_kvpolicy.telemetry.names import Metric

SENT: Final = "applied|caller"
"""Hint outcomes with which the server has been told."""


def label(attribute: str) -> str:
    """The Prometheus label of an OpenTelemetry attribute."""
    return attribute.replace(".", "_")


def equals(attribute: str, value: str) -> str:
    """A matcher for one value of an attribute."""
    return f'{label(attribute)}="{value}"'


def matches(attribute: str, pattern: str) -> str:
    """A matcher for a pattern of an attribute."""
    return f'{label(attribute)}=~"{pattern}"'


SKIPPED: Final = equals(names.DECISION, names.SKIP)
SHADOWED: Final = f'{label(names.SHADOW_DECISION)}!=""'
SHADOW_SKIPPED: Final = equals(names.SHADOW_DECISION, names.SKIP)
SKIP_SENT: Final = (SKIPPED, matches(names.HINT_OUTCOME, SENT))
TO_OWN_SERVERS: Final = f'{label(names.HINT_OUTCOME)}!="excluded_target"'
"""Calls to hosted vendors never reach the cache whose hits are compared."""


@dataclass(frozen=True)
class Scope:
    """Which series are meant, and over which window: those that a dashboard's variables select, or all of them for a rule.

    Attributes:
        window: range of ``rate``.
        client: pattern by label for the metrics of this package; labels that a metric has not are left out.
        instance: pattern of ``instance`` for the metrics of servers.
    """

    window: str
    client: Mapping[str, str] = field(default_factory=dict)
    instance: str = ""

    # --- building blocks -----------------------------------------------------------------------------------------------------------
    def select(self, what: Metric | Series, *matchers: str, suffix: str = "") -> str:
        """A selector of the scope's series."""
        if isinstance(what, Metric):
            own = {"job", *map(label, what.attributes)}
            scope = [f'{key}=~"{pattern}"' for key, pattern in self.client.items() if key in own]
            name = what.prometheus
        else:
            name = what.name
            if what in servers.SPAN_METRICS:
                scope = [
                    f'{key}=~"{pattern}"'
                    for key, pattern in self.client.items()
                    if key in {"job", *what.labels}
                ]
            else:
                scope = [f'instance=~"{self.instance}"'] if self.instance else []
        inside = ", ".join([*scope, *matchers])
        return f"{name}{suffix}{{{inside}}}" if inside else f"{name}{suffix}"

    def rate(
        self,
        what: Metric | Series,
        *matchers: str,
        by: Sequence[str] = (),
        suffix: str = "",
        window: str = "",
    ) -> str:
        """Sum of the rates of a counter."""
        return f"sum{_by(by)}(rate({self.select(what, *matchers, suffix=suffix)}[{window or self.window}]))"

    def counted(
        self, what: Metric | Series, *matchers: str, window: str, by: Sequence[str] = ()
    ) -> str:
        """How much a counter grew, with what a series born in the window brought along, which ``increase`` alone loses."""
        series = self.select(what, *matchers)
        return f"sum{_by(by)}((last_over_time({series}[{window}]) unless {series} offset {window}) or increase({series}[{window}]))"

    def quantile(
        self, q: float, what: Metric | Series, *matchers: str, by: Sequence[str] = ()
    ) -> str:
        """A quantile of a histogram; the comparison drops the NaN of a window without observations."""
        return f"histogram_quantile({q}, {self.rate(what, *matchers, by=(*by, 'le'), suffix='_bucket')}) >= 0"

    # --- the policy ----------------------------------------------------------------------------------------------------------------
    def share(
        self, what: Metric, *part: str, of: Sequence[str] = (), by: Sequence[str] = ()
    ) -> str:
        """Share of a counter that the matchers ``part`` select: zero where there is some, but none of that."""
        whole = self.rate(what, *of, by=by)
        return f"({self.rate(what, *of, *part, by=by)} or 0 * {whole}) / ({whole} > 0)"

    def skip_ratio_calls(self) -> str:
        """Share of calls decided to be skipped."""
        return self.share(names.DECISIONS, SKIPPED)

    def skip_ratio_tokens(self) -> str:
        """Share of prompt tokens in calls decided to be skipped."""
        return self.share(names.PROMPT_TOKENS, SKIPPED)

    def skip_ratio_sent(self) -> str:
        """Share of prompt tokens in calls for which the server has been told to skip; of the calls to servers that take hints."""
        return self.share(names.PROMPT_TOKENS, *SKIP_SENT, of=(TO_OWN_SERVERS,))

    def cached_share(self) -> str:
        """Share of the prompt tokens that came from a cache, by decision; of the calls whose server counted them."""
        by = (label(names.DECISION),)
        whole = self.rate(names.PROMPT_TOKENS, equals(names.TOKEN_SOURCE, names.FROM_USAGE), by=by)
        return f"({self.rate(names.CACHED_TOKENS, by=by)} or 0 * {whole}) / ({whole} > 0)"

    def avoided_chunks(self, chunk: str) -> str:
        """Chunks per second that skipping may have avoided: whole prompts over the chunk size, so an upper bound."""
        return f"{self.rate(names.PROMPT_TOKENS, *SKIP_SENT)} / {chunk}"

    # --- LMCache -------------------------------------------------------------------------------------------------------------------
    def lmcache_there(self) -> str:
        """Zero for each LMCache server that can be read."""
        return f"0 * max by (instance) ({self.select(servers.EVENT_QUEUE)})"

    def per_server(self, what: Series) -> str:
        """Rate of a lazily created counter of LMCache's server, by instance.

        Zero only where the counter is not there yet: one that is there, but not twice in the window, has no rate.
        """
        absent = f"({self.lmcache_there()} unless on (instance) {self.select(what)})"
        return f"({self.rate(what, by=('instance',))} or {absent})"

    def looked_up(self) -> str:
        """Tokens per second looked up, in either mode of LMCache."""
        return f"sum({self.rate(servers.LOOKUP_REQUESTED, by=('instance',))} or {self.rate(servers.IN_LOOKUP_TOKENS, by=('instance',))})"

    def found(self) -> str:
        """Tokens per second found, in either mode of LMCache."""
        return f"sum({self.rate(servers.LOOKUP_HIT, by=('instance',))} or {self.rate(servers.IN_LOOKUP_HITS, by=('instance',))})"

    def hit_rate(self) -> str:
        """Share of the looked-up tokens found in L1 or L2."""
        return f"{self.found()} / ({self.looked_up()} > 0)"

    def tier_hit_rate(self, tier: Series) -> str:
        """Share of the looked-up tokens found in one tier; only of servers that tell the tiers apart (0.5.5 and later)."""
        instance = ("instance",)
        whole = f"sum({self.rate(servers.LOOKUP_REQUESTED, by=instance)} and {self.rate(tier, by=instance)})"
        return f"{self.rate(tier)} / ({whole} > 0)"

    def stored_chunks(self) -> str:
        """Chunks per second stored by requests, by instance: writes to L1 less those that were loads from L2."""
        return f"clamp_min({self.per_server(servers.L1_WRITE)} - {self.per_server(servers.L2_LOADED)}, 0)"

    def l1_capacity(self) -> str:
        """Size of L1, which LMCache does not expose: usage over usage ratio."""
        return f"{self.select(servers.L1_BYTES)} / ({self.select(servers.L1_RATIO)} > 0)"

    def l1_free(self) -> str:
        """What is left of L1."""
        return f"sum by (instance) ({self.l1_capacity()} - {self.select(servers.L1_BYTES)})"

    def stored_of_missed(self, window: str) -> str:
        """Tokens stored over tokens missed: about 1 where all misses are stored, and as much less as skipping is honoured.

        LMCache's server counts objects, so its stores are turned into tokens by what its own hits say of tokens per object.
        """
        keys = " + ".join(
            f"sum(increase({self.select(series)}[6h]))"
            for series in (servers.LOOKUP_HIT_L1_KEYS, servers.LOOKUP_HIT_L2_KEYS)
        )
        tokens = f"sum(increase({self.select(servers.LOOKUP_HIT)}[6h]))"
        written = self.rate(servers.L1_WRITE, window=window)
        loaded = self.rate(servers.L2_LOADED, window=window)
        stored = f"({written} - ({loaded} or 0 * {written})) * {tokens} / ({keys} > 0)"
        missed = f"{self.rate(servers.LOOKUP_REQUESTED, window=window)} - {self.rate(servers.LOOKUP_HIT, window=window)}"
        in_missed = f"{self.rate(servers.IN_LOOKUP_TOKENS, window=window)} - {self.rate(servers.IN_LOOKUP_HITS, window=window)}"
        in_stored = self.rate(servers.IN_STORED_TOKENS, window=window)
        return f"({stored}) / ({missed} > 0) or {in_stored} / ({in_missed} > 0)"

    def lmcache_names(self) -> str:
        """Which names an LMCache server speaks, as a number for each instance: see ``NAMES_STATES``."""
        group = "group by (instance)"
        return " or ".join(
            (
                f"1 * {group} ({self.select(servers.LOOKUP_HIT_L1)})",
                f"2 * {group} ({self.select(servers.LOOKUP_HIT)})",
                f"3 * {group} ({self.select(servers.OLD_L1_WRITE)} or {self.select(servers.OLDER_L1_WRITE)})",
                f"4 * {group} ({self.select(servers.IN_LOOKUP_TOKENS)})",
                f"5 * {group} ({self.select(servers.EVENT_QUEUE)})",
                f"6 * {group} ({self.select(servers.UP, LMCACHE_JOB)} == 1)",
                f"0 * {group} ({self.select(servers.UP, LMCACHE_JOB)} == 0)",
            )
        )


LMCACHE_JOB: Final = 'job=~".*lmcache.*"'
"""How scrapes of LMCache's server are told apart: the configs under collector/ name the job so."""

NAMES_STATES: Final[Mapping[int, tuple[str, str]]] = {
    0: ("Silent: the scrape fails", "red"),
    1: ("Server 0.5.5+: L1 and L2 told apart", "green"),
    2: ("Server 0.4.7 to 0.5.4: hits, but not by tier", "yellow"),
    3: ("Server before 0.4.7: too old for these panels", "red"),
    4: ("In-process connector: hits, but not by tier", "blue"),
    5: ("Server is up, nothing looked up yet", "blue"),
    6: (
        "Page without lmcache_mp series: sent by --otlp-endpoint instead, or switched off",
        "orange",
    ),
}

DASHBOARD: Final = Scope(
    window="$__rate_interval",
    client={
        "job": "$service",
        label(names.REQUEST_MODEL): "$model",
        label(names.AGENT_NAME): "$agent",
    },
    instance="$host(:.*)?",
)
RULES: Final = Scope(window="5m")


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)}) " if labels else ""
