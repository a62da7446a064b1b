"""Makes calls with fireworks-ai, unchanged, in an environment of its own, and prints what it gives back.

Standard input: {"base_url", "line", "calls": [{"call", "with": {...}, "leave_after"?}]}, and the line is

- `client`, which has fireworks.client: `Completion.create`, `ChatCompletion.acreate`, `Model.list`,
  `Fireworks.completions.create`;
- `sdk`: `Fireworks.completions.create`, `AsyncFireworks.chat.completions.create`.

Standard output: a list with the `answer`, the `chunks` or the `error` of each call.
"""

import asyncio
import inspect
import json
import sys
from functools import reduce
from typing import Any

KEY = "none"


async def main() -> None:
    """Reads what to call, and calls it, in one loop: the clients keep their connections."""
    told = json.load(sys.stdin)
    names = {"client": client_line, "sdk": sdk_line}[told["line"]](told["base_url"])
    results = [await result_of(names, call) for call in told["calls"]]
    json.dump(results, sys.stdout)


def client_line(base_url: str) -> dict[str, Any]:
    """What fireworks-ai 0.15 offers to call, by its names there."""
    from fireworks import client

    client.api_key, client.base_url = KEY, base_url
    made = client.Fireworks(api_key=KEY, base_url=base_url)
    return {name: getattr(client, name) for name in ("Completion", "ChatCompletion", "Model")} | {
        "Fireworks": made,
        "AsyncFireworks": client.AsyncFireworks(api_key=KEY, base_url=base_url),
    }


def sdk_line(base_url: str) -> dict[str, Any]:
    """The two clients of the current fireworks-ai; answers that are not of its types are errors."""
    import fireworks

    options: dict[str, Any] = {"base_url": base_url, "api_key": KEY, "max_retries": 0, "timeout": 50}
    options["_strict_response_validation"] = True
    return {name: getattr(fireworks, name)(**options) for name in ("Fireworks", "AsyncFireworks")}


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
    asyncio.run(main())
