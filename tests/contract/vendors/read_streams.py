"""Reads streams of the Messages API with Anthropic's own client, and prints what it makes of them.

Each line of standard input: {"base_url", "runs": [[client, number], ...]}; below base_url/number is a server
that answers with one stream. A line of standard output: what was shown and the message, or the error, of each
run.
"""

import json
import sys
from collections import defaultdict
from typing import Any

import anthropic


def main() -> None:
    for line in sys.stdin:
        told = json.loads(line)
        results = [read(f"{told['base_url']}/{number}") for _, number in told["runs"]]
        sys.stdout.write(f"\nRESULT {json.dumps(results)}\n")
        sys.stdout.flush()


def read(url: str) -> dict[str, Any]:
    shown: dict[str, str] = defaultdict(str)
    blocks: list[Any] = []
    try:
        with (
            anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client,
            client.messages.stream(
                model="m", max_tokens=100, messages=[{"role": "user", "content": "Hi"}]
            ) as stream,
        ):
            for event in stream:
                if event.type == "text":
                    shown["text"] += event.text
                elif event.type == "thinking":
                    shown["thinking"] += event.thinking
                elif event.type == "input_json":
                    shown["input"] += event.partial_json
                elif event.type == "content_block_stop":
                    blocks.append(event.content_block.model_dump(mode="json"))
                elif event.type == "message_stop":
                    blocks.append(event.message.stop_reason)
            answer = stream.get_final_message().model_dump(mode="json")
            return {"shown": shown, "blocks": blocks, "answer": answer}
    except Exception as error:  # noqa: BLE001 - any error is what the client makes of the stream
        return {"shown": shown, "blocks": blocks, "error": repr(error)}


main()
