"""``otel-kvpolicy doctor``: find out on a live vLLM and LMCache whether the hint has an effect.

Needs the extra ``[cli]``.
"""
