"""Makes calls with a product's own client, in the client's environment, and prints what it gives back.

Each line of standard input is an object with `calls`, a list of {"call", "with": {...}, "leave_after"?}; the
rest of it says how to make the clients. The line of standard output that begins with RESULT is a list with
the `answer`, the `chunks` or the `error` of each call.
"""

import asyncio
import contextlib
import inspect
import io
import json
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any

Owners = dict[str, Any]
"""What can be called, by the first word of `call`: `Completion` of `Completion.create`."""


def serve_calls(
    make_owners: Callable[[dict[str, Any]], Owners],
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> None:
    """Makes the calls of each line, until standard input ends. `prepare`: the arguments of a call,
    made of what JSON can say."""
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            told = json.loads(line)
            results = runner.run(make_calls(make_owners(told), told["calls"], prepare))
            sys.stdout.write(f"\nRESULT {json.dumps(results)}\n")
            sys.stdout.flush()


def print_code(code: str) -> str:
    """What a page's code prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "page", "exec"), {"__name__": "page"})
    return printed.getvalue()


async def make_calls(
    owners: Owners, calls: list[dict[str, Any]], prepare: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Makes one call after the other."""
    return [await make_call(owners, call | {"with": prepare(call["with"])}) for call in calls]


async def make_call(owners: Owners, told: dict[str, Any]) -> dict[str, Any]:
    """What one call gives: its chunks as far as they came, and its answer or its error."""
    owner, *path = told["call"].split(".")
    function = reduce(getattr, path, owners[owner])
    chunks: list[Any] = []
    try:
        answer = await _call(function, told["with"], chunks, told.get("leave_after"))
    except Exception as error:  # noqa: BLE001 - the client's own are what is asked for; all are told by their class
        return {"chunks": chunks, "error": _error(error)}
    return {"chunks": chunks} if answer is None else {"answer": answer}


async def _call(function: Any, given: dict[str, Any], chunks: list[Any], most: int | None) -> Any:
    made = function(**given)
    if inspect.isawaitable(made):
        made = await made
    if hasattr(made, "http_response"):
        return await _raw(made)
    if hasattr(made, "__aiter__"):
        async for chunk in made:
            chunks.append(_plain(chunk))
            if len(chunks) == most:
                break
        return await _left(made)
    if hasattr(made, "__next__") or hasattr(made, "has_next_page"):
        for chunk in made:
            chunks.append(_plain(chunk))
            if len(chunks) == most:
                break
        return made.close() if hasattr(made, "close") else None
    return _plain(made)


async def _raw(response: Any) -> dict[str, Any]:
    """A raw response: its status, its headers, and what the client makes of its body."""
    parsed = response.parse()
    if inspect.isawaitable(parsed):
        parsed = await parsed
    return {"status": response.status_code, "headers": dict(response.headers), "parsed": _plain(parsed)}


async def _left(stream: Any) -> None:
    """Closes it, in the way that its class has."""
    for name in ("aclose", "close"):
        if hasattr(stream, name):
            await getattr(stream, name)()
            return


def _plain(value: Any) -> Any:
    if isinstance(value, dict | list):
        return value
    return value.model_dump(mode="json", exclude_unset=True)


def _error(error: Exception) -> dict[str, Any]:
    """The class the client raises, and the body it keeps, as an attribute or as its argument."""
    argument = error.args[0] if error.args else ""
    body = getattr(error, "body", argument)
    return {
        "class": type(error).__name__,
        "status": getattr(error, "status_code", None),
        "body": body if isinstance(body, dict) else str(body),
        "numbers": {name: value for name, value in vars(error).items() if isinstance(value, int)},
    }
