"""Traces: the formats that replay reads, and a trace in memory."""

from .readers import BrokenLine, Loaded, TraceError, load, trace_files
from .trace import CHARS_PER_TOKEN, NEVER, Request, Trace, TraceBuilder, build_trace

__all__ = [
    "CHARS_PER_TOKEN",
    "NEVER",
    "BrokenLine",
    "Loaded",
    "Request",
    "Trace",
    "TraceBuilder",
    "TraceError",
    "build_trace",
    "load",
    "trace_files",
]
