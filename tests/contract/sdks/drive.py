"""Runs scenarios with clients, unchanged, in an environment of theirs, and prints what they give back.

Each line of standard input:
{"base_url", "model", "runs": [[client, scenario], ...], "code": {client: text}}. A client is
a module here, perhaps with its API, as in `langchain@responses`. A scenario is a function of it; `print_code`
runs the client's code and gives what it prints. The line of standard output that begins with RESULT: a list
with the `result` or the `error` of each run.
"""

import importlib
import json
import sys
import traceback
from dataclasses import replace
from typing import Any

from tests.contract.sdk_calls import print_code
from tests.contract.sdks.scenario import Endpoint


def main() -> None:
    """Reads what to run, and runs it. Clients are imported when their first run comes."""
    for line in sys.stdin:
        told = json.loads(line)
        endpoint = Endpoint(told["base_url"], told["model"])
        results = [run(endpoint, client, scenario, told["code"]) for client, scenario in told["runs"]]
        sys.stdout.write(f"\nRESULT {json.dumps(results)}\n")
        sys.stdout.flush()


def run(endpoint: Endpoint, client: str, scenario: str, code: dict[str, str]) -> dict[str, Any]:
    """What one scenario gives, or the end of the traceback of an error that it did not expect."""
    try:
        if scenario == "print_code":
            return {"result": print_code(code[client])}
        name, _, api = client.partition("@")
        module = importlib.import_module(f"tests.contract.sdks.{name}_client")
        return {"result": getattr(module, scenario)(replace(endpoint, api=api or endpoint.api))}
    except Exception:  # noqa: BLE001 - the test of this scenario shows it, and the others go on
        return {"error": traceback.format_exc(limit=-8, chain=False)}


if __name__ == "__main__":
    main()
