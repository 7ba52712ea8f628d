"""A server's ``/metrics`` page at one moment, in Prometheus text format."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from ..series import Series


@dataclass(frozen=True)
class Page:
    """A parsed metrics page.

    Attributes:
        totals: sample name -> sum over its label sets.
        labels: sample name -> its last label set on the page.
    """

    totals: dict[str, float]
    labels: dict[str, dict[str, str]]

    @classmethod
    def parse(cls, text: str) -> Page:
        """Parse the text format.

        Raises:
            ValueError: the text is not in that format.
        """
        totals: dict[str, float] = {}
        labels: dict[str, dict[str, str]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
                labels[sample.name] = dict(sample.labels)
        return cls(totals, labels)

    def has(self, series: Series) -> bool:
        """Return whether the series is on the page."""
        return series.name in self.totals or f"{series.name}_count" in self.totals

    def has_prefix(self, prefix: str) -> bool:
        """Return whether the page has any series whose name starts with ``prefix``."""
        return any(name.startswith(prefix) for name in self.totals)

    def total(self, series: Series) -> float:
        """Return the sum of a counter or gauge over its label sets.

        Returns 0 if the series is missing: some servers write no counter before its first event.
        """
        return self.totals.get(series.name, 0.0)

    def count(self, series: Series) -> int:
        """Return :meth:`total` as an integer."""
        return int(self.total(series))

    def label(self, series: Series, name: str) -> str | None:
        """Return a label of the series, or None if the series or the label is missing."""
        return self.labels.get(series.name, {}).get(name)
