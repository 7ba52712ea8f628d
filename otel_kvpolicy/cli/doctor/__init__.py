"""Proves on a live vLLM and LMCache whether the hint is honoured. Needs the extra ``[cli]``."""
