"""``python -m otel_kvpolicy.cli``: the command line without its installed script."""

from . import main

main()
