"""Records what clients send on a second turn, into tests/fixtures/second_turns.

Run it when a client's version has changed: `.venv/bin/python -m tests.contract.record_turns`. Each client
runs scenarios of tests/contract/sdks against the product as it ships, through a proxy that keeps the bodies.
A body with an assistant's message is a second turn. test_second_turns.py sends them again.
"""

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

from tests.contract.clients import CHAT_CLIENTS, ROOT, run_scenarios
from tests.support.server import serving

FOLDER = ROOT / "tests" / "fixtures" / "second_turns"
COMMAND = ".venv/bin/python -m tests.contract.record_turns"
TALK_AND_TOOLS = ("talk", "call_tools", "stream_tools")
CHOSEN = dict.fromkeys(CHAT_CLIENTS, (*TALK_AND_TOOLS, "structure_beside_tools")) | {
    "instructor": ("ask_again",),
    "npm_openai": TALK_AND_TOOLS,
    "fireworks": TALK_AND_TOOLS[:2],
    "fireworks_legacy": TALK_AND_TOOLS[:2],
}
PATHS = {"fireworks": "/fireworks/inference", "fireworks_legacy": "/fireworks/inference/v1"}
"""Where each one's base URL ends; of the others it is /v1."""
PACKAGES = {
    "openai": ("test", ["openai"]),
    "litellm": ("sdks", ["litellm", "openai"]),
    "instructor": ("sdks", ["instructor", "openai"]),
    "langchain": ("sdks", ["langchain-openai", "langchain-core", "openai"]),
    "llama_index": ("sdks", ["llama-index-llms-openai-like", "llama-index-core", "openai"]),
    "pydantic_ai": ("pydantic-ai", ["pydantic-ai-slim", "openai"]),
    "fireworks": ("fireworks", ["fireworks-ai"]),
    "fireworks_legacy": ("fireworks-client", ["fireworks-ai"]),
    "npm_openai": ("npm", ["openai"]),
    "ai_sdk_compatible": ("npm", ["ai", "@ai-sdk/openai-compatible"]),
    "ai_sdk_openai": ("npm", ["ai", "@ai-sdk/openai"]),
}
"""The lock that holds each client, and what of it decides what is sent."""


@dataclass
class Recorder:
    """A proxy, and the bodies that went through it with the paths they were sent to."""

    url: str = ""
    sent: list[tuple[str, Any]] = field(default_factory=list)

    def take_turns(self) -> list[tuple[str, Any]]:
        """The second turns since the last call."""
        sent, self.sent = self.sent, []
        return [
            (path, body)
            for path, body in sent
            if any(message["role"] == "assistant" for message in body.get("messages", ()))
        ]


@contextmanager
def recording(upstream: str) -> Iterator[Recorder]:
    """A recorder in front of a server, for as long as the context lasts."""
    recorder = Recorder()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            recorder.sent.append((self.path, json.loads(body)))
            headers = {"content-type": "application/json"}
            answer = httpx2.post(upstream + self.path, content=body, headers=headers, timeout=60)
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        recorder.url = f"http://127.0.0.1:{server.server_port}"
        yield recorder
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def find_versions(client: str) -> dict[str, str]:
    """What the client's lock holds of its packages."""
    lock, names = PACKAGES[client]
    if lock == "npm":
        locked = json.loads((ROOT / "tests" / "contract" / "node" / "package.json").read_text("utf-8"))
        return {name: locked["dependencies"][name] for name in names}
    pins = dict(
        re.findall(r"^(\S+)==(\S+)", (ROOT / "requirements" / f"{lock}.txt").read_text(), re.MULTILINE)
    )
    return {name: pins[name] for name in names}


def record(client: str, recorder: Recorder) -> dict[str, Any]:
    """The client's second turns in each scenario, one process after the other."""
    turns = []
    for scenario in CHOSEN[client]:
        base_url = recorder.url + PATHS.get(client, "/v1")
        ((_, result),) = run_scenarios(base_url, "cantor", [(client, scenario)]).items()
        if "error" in result:
            raise SystemExit(f"{client} {scenario}: {result['error']}")
        turns += [{"scenario": scenario, "path": path, "body": body} for path, body in recorder.take_turns()]
    return {"client": client, "versions": find_versions(client), "command": COMMAND, "turns": turns}


def main() -> None:
    """Records all, or those that are named."""
    FOLDER.mkdir(exist_ok=True)
    with serving() as server, recording(server.url) as recorder:
        for client in sys.argv[1:] or CHOSEN:
            found = record(client, recorder)
            text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
            (FOLDER / f"{client}.json").write_text(text, "utf-8")
            sys.stdout.write(f"{client}: {len(found['turns'])} turns\n")


if __name__ == "__main__":
    main()
