"""The hint: how it is written, which servers it may go to, and how they reject it."""
