"""Makes decisions observable: names, the span writer, the metric instruments, the decision log."""
