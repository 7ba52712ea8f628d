"""An application that uses the OpenAI client only.

It reads calls as JSON from standard input, makes them, and prints the usage of each answer.
"""

import json
import sys
from typing import Any

from openai import OpenAI


def usage_of(client: Any, call: dict[str, Any]) -> Any:
    """Make a call and return the usage of its answer."""
    request = {**call["request"], "stream": call["stream"]}
    if call["endpoint"] == "chat":
        if not call["stream"]:
            return client.chat.completions.create(**request).usage
        options = {"include_usage": True}
        return list(client.chat.completions.create(**request, stream_options=options))[-1].usage
    answer = client.responses.create(**request)
    return list(answer)[-1].response.usage if call["stream"] else answer.usage


def main() -> None:
    """Make the calls on standard input, one after the other."""
    client = OpenAI(max_retries=0, timeout=120)
    for call in json.load(sys.stdin):
        print(json.dumps(usage_of(client, call).model_dump()), flush=True)


if __name__ == "__main__":
    main()
