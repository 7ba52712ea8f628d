"""The command line. Thin: each subcommand lives beside what it runs and is imported only when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Final

_COMMANDS: Final = {
    "dashboards": "Build, export and check the Grafana dashboards and Prometheus rules.",
    "demo": "Run real conversations through an embedded vLLM and LMCache stand-in and compare with storing everything.",
    "doctor": "Prove on a live vLLM and LMCache whether the hint is honoured.",
    "explain": "Say why a call of a trace was or was not stored.",
    "replay": "Replay a trace against simulated cache tiers and compare rules.",
}
"""Each command is ``otel_kvpolicy.cli.<name>.command:command``."""

_EXTRAS: Final = ("demo", "replay")
"""Commands with an extra of their own; for the others ``cli`` does."""

try:
    import click
except ModuleNotFoundError:

    def main() -> None:
        """Tells what to install: the command line is an extra, since applications need only the instrumentation."""
        sys.exit(
            "otel-kvpolicy: the command line needs its extra: pip install 'otel-kvpolicy[cli]'"
        )

else:

    class _Lazy(click.Group):
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

    @click.command(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
    @click.version_option(package_name="otel-kvpolicy")
    def main() -> None:
        """Decides per chat call whether its KV cache is worth storing, and says why."""


if __name__ == "__main__":
    main()
