"""Two chat calls with the plain OpenAI client. Nothing here refers to otel-kvpolicy.

    opentelemetry-instrument --traces_exporter console --metrics_exporter console \\
        python examples/plain_openai.py

Uses the server at ``OPENAI_BASE_URL``. If that is not set, uses an embedded stand-in for vLLM with
LMCache (``pip install 'otel-kvpolicy[demo]'``).
"""

from openai import OpenAI
from server import base_url

RULES = "You are the help desk of a library. Answer from the rules, in one sentence.\n" + "\n".join(
    f"Rule {number}: a reader may keep {number} books for {number % 5 + 2} weeks,"
    f" and renew them {number % 3} times."
    for number in range(1, 60)
)

with base_url() as url, OpenAI(base_url=url, api_key="none") as client:
    model = client.models.list().data[0].id
    for title, messages in {
        "one-off": [{"role": "user", "content": "Name a color."}],
        "long system prompt": [
            {"role": "system", "content": RULES},
            {"role": "user", "content": "How long may I keep three books?"},
        ],
    }.items():
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=32)
        print(f"{title}: {answer.usage}")
