"""The demo's application. It uses the OpenAI client and knows nothing of this package.

``opentelemetry-instrument`` runs it. It reads the workload from the file named by its only argument
and prints a dot for each answered call.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from openai import OpenAI


def main() -> None:
    """Send every call of the workload, one after the other."""
    workload = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    client = OpenAI(max_retries=0, timeout=60)
    for index, length in workload["steps"]:
        conversation = workload["conversations"][index]
        messages = conversation["messages"][:length]
        request = {
            "model": workload["model"],
            "messages": messages,
            "max_tokens": workload["max_tokens"],
        }
        if conversation["tools"]:
            request["tools"] = conversation["tools"]
        if conversation["stream"]:
            request |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = client.chat.completions.create(**request)
        if conversation["stream"]:
            for _ in answer:
                pass
        sys.stdout.write(".")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
