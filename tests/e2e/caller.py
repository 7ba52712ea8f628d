"""An application that knows only the OpenAI client: makes the calls given as JSON on its input and prints each answer's usage."""

import json
import sys

from openai import OpenAI


def usage_of(client: OpenAI, call: dict) -> dict:
    request = {**call["request"], "stream": True} if call["stream"] else call["request"]
    if call["endpoint"] == "chat":
        if not call["stream"]:
            return client.chat.completions.create(**request).usage.model_dump()
        chunks = list(
            client.chat.completions.create(**request, stream_options={"include_usage": True})
        )
        return chunks[-1].usage.model_dump()
    if not call["stream"]:
        return client.responses.create(**request).usage.model_dump()
    events = list(client.responses.create(**request))
    return events[-1].response.usage.model_dump()


def main() -> None:
    client = OpenAI(max_retries=0, timeout=120)
    for call in json.load(sys.stdin):
        print(json.dumps(usage_of(client, call)), flush=True)


if __name__ == "__main__":
    main()
