"""Makes calls with fireworks-ai, unchanged, in an environment of its own, and prints what it gives back.

Each line of standard input:
{"base_url", "line", "calls": [{"call", "with": {...}, "leave_after"?}]}, and the line is

- `client`, which has fireworks.client: `Completion.create`, `ChatCompletion.acreate`, `Model.list`,
  `Fireworks.completions.create`;
- `sdk`: `Fireworks.completions.create`, `AsyncFireworks.chat.completions.create`.

The line of standard output that begins with RESULT:
a list with the `answer`, the `chunks` or the `error` of each call.
"""

import asyncio
import inspect
import json
import sys
from functools import cache, reduce
from typing import Any

KEY = "none"


def main() -> None:
    """Reads what to call, and calls it."""
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            results = runner.run(results_of(json.loads(line)))
            sys.stdout.write(f"\nRESULT {json.dumps(results)}\n")
            sys.stdout.flush()


async def results_of(told: dict[str, Any]) -> list[dict[str, Any]]:
    names = {"client": client_line, "sdk": sdk_line}[told["line"]](told["base_url"])
    return [await result_of(names, call) for call in told["calls"]]


def client_line(base_url: str) -> dict[str, Any]:
    """What fireworks-ai 0.15 offers to call, by its names there."""
    from fireworks import client

    client.api_key, client.base_url = KEY, base_url
    names = {name: getattr(client, name) for name in ("Completion", "ChatCompletion", "Model")}
    return names | make_clients(client, base_url)


def sdk_line(base_url: str) -> dict[str, Any]:
    """The two clients of the current fireworks-ai; answers that are not of its types are errors."""
    import fireworks

    return make_clients(fireworks, base_url, max_retries=0, timeout=50, _strict_response_validation=True)


@cache
def make_clients(module: Any, base_url: str, **options: Any) -> dict[str, Any]:
    """Clients that keep their connections."""
    names = ("Fireworks", "AsyncFireworks")
    return {name: getattr(module, name)(api_key=KEY, base_url=base_url, **options) for name in names}


async def result_of(names: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """What one call gives: its chunks as far as they came, and its answer or its error."""
    owner, *path = told["call"].split(".")
    function = reduce(getattr, path, names[owner])
    chunks: list[Any] = []
    try:
        answer = await _made(function, told["with"], chunks, told.get("leave_after"))
    except Exception as error:  # noqa: BLE001 - the client's own are what is asked for; all are told by their class
        return {"chunks": chunks, "error": _error(error)}
    return {"chunks": chunks} if answer is None else {"answer": answer}


async def _made(function: Any, given: dict[str, Any], chunks: list[Any], most: int | None) -> Any:
    made = function(**given)
    if inspect.isawaitable(made):
        made = await made
    if hasattr(made, "__aiter__"):
        async for chunk in made:
            chunks.append(_plain(chunk))
            if len(chunks) == most:
                break
        return await _left(made)
    if hasattr(made, "__next__"):
        for chunk in made:
            chunks.append(_plain(chunk))
            if len(chunks) == most:
                break
        return made.close()
    return _plain(made)


async def _left(stream: Any) -> None:
    """Closes it, in the way that its class has."""
    await (stream.aclose() if hasattr(stream, "aclose") else stream.close())


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_unset=True)


def _error(error: Exception) -> dict[str, Any]:
    """The class the client raises, and the body it keeps: of 0.15 the argument, of the SDK the attribute."""
    (argument,) = error.args or ("",)
    body = getattr(error, "body", argument)
    return {
        "class": type(error).__name__,
        "status": getattr(error, "status_code", None),
        "body": body if isinstance(body, dict) else str(body),
    }


if __name__ == "__main__":
    main()
