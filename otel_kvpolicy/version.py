"""The version of the distribution. The build reads this file."""

__version__ = "0.1.0"
