"""The command line. Each subcommand is a package beside this file, imported only when called."""

from __future__ import annotations

import importlib
import sys
from typing import Final

_COMMANDS: Final = {
    "dashboards": "Build, export and check the Grafana dashboards and Prometheus rules.",
    "demo": "Run conversations against an embedded vLLM and LMCache stand-in and compare with "
    "storing everything.",
    "doctor": "Test on a live vLLM and LMCache whether the hint is honored.",
    "explain": "Explain why a call's KV cache was or was not stored.",
    "replay": "Replay a trace against simulated cache tiers and compare rules.",
    "warm": "Send known prefixes to a fresh server, so that it stores them before callers ask.",
}
"""Summary of each command; its code is ``otel_kvpolicy.cli.<name>.command:command``."""

_EXTRAS: Final = ("demo", "replay")
"""Commands with an extra of the same name. All others need the ``cli`` extra."""

try:
    import click
except ModuleNotFoundError:

    def main() -> None:
        """Exit and say what to install; applications need only the instrumentation."""
        sys.exit(
            "otel-kvpolicy: the command line is not installed; "
            "run: pip install 'otel-kvpolicy[cli]'"
        )

else:

    class _LazyGroup(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return sorted(_COMMANDS)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in _COMMANDS:
                return None
            try:
                command: click.Command = importlib.import_module(
                    f"otel_kvpolicy.cli.{cmd_name}.command"
                ).command
            except ModuleNotFoundError as missing:
                if (missing.name or "").startswith("otel_kvpolicy"):
                    raise
                extra = cmd_name if cmd_name in _EXTRAS else "cli"
                raise click.ClickException(
                    f"{cmd_name} needs {missing.name}: pip install 'otel-kvpolicy[{extra}]'"
                ) from missing
            return command

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            with formatter.section("Commands"):
                formatter.write_dl(sorted(_COMMANDS.items()))

    @click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(package_name="otel-kvpolicy")
    def main() -> None:
        """Inspect and test which calls store their KV cache, and why."""
