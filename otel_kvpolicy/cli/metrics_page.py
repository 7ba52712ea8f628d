"""A Prometheus page: which series are there, and their sums."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Page:
    """A page of metrics at one moment.

    Attributes:
        totals: series name -> sum over its label sets.
        labels: series name -> the labels of one of its label sets.
    """

    totals: dict[str, float]
    labels: dict[str, dict[str, str]]

    @classmethod
    def parse(cls, text: str) -> Page:
        """Reads the text format.

        Raises:
            ValueError: it is not that.
        """
        totals: dict[str, float] = {}
        labels: dict[str, dict[str, str]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
                labels[sample.name] = dict(sample.labels)
        return cls(totals, labels)

    def has(self, name: str) -> bool:
        """Whether a series, or a histogram of that name, is there."""
        return name in self.totals or f"{name}_count" in self.totals

    def total(self, name: str) -> float:
        """Its sum; 0 where it is not there, as a counter that has not been counted yet."""
        return self.totals.get(name, 0.0)
