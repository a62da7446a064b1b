"""The cheapest gateway in Python: a relay that checks nothing and does not change the bytes.

    python -m benchmarks.gateway_sides.floor PORT UPSTREAM_PORT

A bare ASGI function under uvicorn with uvloop and httptools, and one aiohttp session for all requests.
"""

import sys

import aiohttp
import uvicorn
from starlette.types import Receive, Scope, Send

FORWARDED = {"content-type": "application/json", "authorization": "Bearer upstream-key"}


class Relay:
    """The application."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        url = self._base + scope["path"]
        async with self._session.post(url, data=body, headers=FORWARDED) as response:
            kind = response.headers["content-type"]
            headers = [(b"content-type", kind.encode())]
            if not kind.startswith("text/event-stream"):
                whole = await response.read()
                headers.append((b"content-length", str(len(whole)).encode()))
                await send({"type": "http.response.start", "status": response.status, "headers": headers})
                await send({"type": "http.response.body", "body": whole})
                return
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            async for part in response.content.iter_any():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def main(port: int, upstream: int) -> None:
    uvicorn.run(
        Relay(f"http://127.0.0.1:{upstream}"),
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
