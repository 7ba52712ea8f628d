"""pydantic-ai is patched when the application imports it, and not after ``uninstrument()``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

from otel_kvpolicy import KVPolicyInstrumentor
from tests.conftest import Telemetry

pytestmark = pytest.mark.slow

PATCHED = (
    "print(hasattr(OpenAIChatModel._completions_create, '__wrapped__'),"
    " hasattr(OpenAIResponsesModel._responses_create, '__wrapped__'))"
)
IMPORT = "from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel"
ON = "from otel_kvpolicy import KVPolicyInstrumentor; KVPolicyInstrumentor().instrument()"


def python(*lines: str, command: tuple[str, ...] = (), **environment: str) -> str:
    """Return what a new interpreter prints for these lines."""
    code = "\n".join(textwrap.dedent(line) for line in lines)
    done = subprocess.run(
        [*command, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_application_without_pydantic_ai_does_not_import_it() -> None:
    assert (
        python(
            ON,
            "import sys; print([name for name in sys.modules if name.startswith('pydantic_ai')])",
        )
        == "[]"
    )


@pytest.mark.parametrize(
    "lines", [(ON, IMPORT), (IMPORT, ON)], ids=["imported-after", "imported-before"]
)
def test_pydantic_ai_is_patched_before_or_after_its_import(lines: tuple[str, ...]) -> None:
    assert python(*lines, PATCHED) == "True True"


def test_an_import_after_uninstrument_is_not_patched() -> None:
    assert python(ON, "KVPolicyInstrumentor().uninstrument()", IMPORT, PATCHED) == "False False"


def test_an_import_after_instrumenting_again_is_patched_once() -> None:
    on_again = "KVPolicyInstrumentor().uninstrument(); KVPolicyInstrumentor().instrument()"
    once = "print(hasattr(OpenAIChatModel._completions_create.__wrapped__, '__wrapped__'))"
    assert python(ON, on_again, IMPORT, PATCHED, once) == "True True\nFalse"


@pytest.mark.parametrize(("disabled", "expected"), [("", "True True"), ("kvpolicy", "False False")])
def test_opentelemetry_instrument_patches_pydantic_ai_unless_disabled(
    disabled: str, expected: str
) -> None:
    printed = python(
        IMPORT,
        PATCHED,
        command=(str(Path(sys.executable).with_name("opentelemetry-instrument")),),
        OTEL_TRACES_EXPORTER="none",
        OTEL_METRICS_EXPORTER="none",
        OTEL_LOGS_EXPORTER="none",
        OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=disabled,
    )
    assert printed == expected


def test_uninstrument_restores_the_original_functions(telemetry: Telemetry) -> None:
    from pydantic_ai.capabilities.instrumentation import Instrumentation

    seams = [
        (OpenAIChatModel, "_completions_create"),
        (OpenAIResponsesModel, "_responses_create"),
        (Instrumentation, "wrap_model_request"),
    ]
    before = [owner.__dict__[name] for owner, name in seams]
    instrumentor = KVPolicyInstrumentor()
    for _ in range(2):
        instrumentor.instrument(tracer_provider=telemetry.tracer_provider)
        assert all(
            owner.__dict__[name] is not original
            for (owner, name), original in zip(seams, before, strict=True)
        )
        instrumentor.uninstrument()
        assert [owner.__dict__[name] for owner, name in seams] == before


def test_an_unsupported_pydantic_ai_can_still_be_imported(tmp_path: Path) -> None:
    package = tmp_path / "pydantic_ai" / "models"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "openai.py").write_text("OpenAIChatModel = None\n")
    assert (
        python(
            ON,
            "import pydantic_ai.models.openai as module; print(module.OpenAIChatModel)",
            PYTHONPATH=str(tmp_path),
        )
        == "None"
    )
