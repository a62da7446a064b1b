"""The share of prompt tokens that the hosts of one model have cached: by affinity, and by chance.

    python benchmarks/prefix_share.py --url http://127.0.0.1:8000 --model NAME

Conversations with beginnings of their own take turns. Affinity is what the server does by itself. For chance,
each request has another `prompt_cache_key`, which sends it anywhere. The first turns are not counted.
"""

import argparse
import secrets
from typing import Any

import httpx2

CONVERSATIONS, TURNS = 12, 6
BEGINNING = 1200
"""Characters. A server compares the first 1,024."""


def begin(number: int, salt: str) -> dict[str, str]:
    """Returns the first message of a conversation, which no other run has."""
    line = f"Conversation {number} of {salt} begins here. "
    return {"role": "user", "content": (line * BEGINNING)[:BEGINNING]}


def measure(client: httpx2.Client, model: str, affinity: bool) -> tuple[float, int]:
    """Returns the share of cached prompt tokens from the second turns on, and the number of routes used."""
    salt, routes = secrets.token_hex(4), set()
    conversations = [[begin(number, salt)] for number in range(CONVERSATIONS)]
    cached = total = 0
    for turn in range(TURNS):
        for messages in conversations:
            body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}
            if not affinity:
                body["prompt_cache_key"] = secrets.token_hex(8)
            reply = client.post("/v1/chat/completions", json=body).raise_for_status()
            routes.add(reply.headers.get("x-antiphon-route"))
            answer = reply.json()
            messages.append(
                {"role": "assistant", "content": answer["choices"][0]["message"]["content"] or "."}
            )
            messages.append({"role": "user", "content": f"Go on with part {turn} of your answer, please."})
            if turn:
                cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                total += answer["usage"]["prompt_tokens"]
    return cached / total, len(routes)


def main() -> None:
    """Measures, and prints the shares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    with httpx2.Client(base_url=options.url, timeout=600) as client:
        for name, affinity in (("affinity", True), ("chance", False)):
            share, routes = measure(client, options.model, affinity)
            print(f"prompt tokens cached by {name}, {routes} routes: {share:.1%}")


if __name__ == "__main__":
    main()
