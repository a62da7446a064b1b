"""Chromium without a window, driven by the DevTools protocol. It tells what a page shows, sends and
writes to the console."""

import asyncio
import itertools
import json
import os
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.programs import require_program

PATIENCE = 120.0
"""Seconds for a start, a page or a script; each takes tenths of one."""

STEP = 0.02

LEFT = "Inspected target navigated or closed"

FLAGS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-gpu",
    "--in-process-gpu",
    "--disable-features=SpareRendererForSitePerProcess,SitePerProcess",
    "--renderer-process-limit=1",
    "--disable-dev-shm-usage",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
"""A browser that reaches loopback alone, with few processes."""


class Browser:
    """A running Chromium with one page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.problems: list[str] = []
        """Errors of the console and uncaught exceptions."""
        self.requests: list[dict[str, Any]] = []
        """What the page asked for: `method`, `url`, `headers`."""
        self._trace: list[dict[str, Any]] = []
        self._traced = asyncio.Event()
        self._document = ""
        self._running_requests: dict[str, str] = {}
        """The document of each unanswered request. A document that is left leaves some behind."""

    async def read(self) -> None:
        """Takes what the browser reports until it ends."""
        async for message in self._socket:
            report = json.loads(message.data)
            params = report.get("params", {})
            if (call := self._calls.pop(report.get("id", 0), None)) is not None:
                call.set_result(report)
                continue
            match report["method"]:
                case "Page.loadEventFired":
                    self._loaded.set()
                case "Tracing.dataCollected":
                    self._trace += params["value"]
                case "Tracing.tracingComplete":
                    self._traced.set()
                case "Network.requestWillBeSent":
                    self.requests.append(params["request"])
                    self._running_requests[params["requestId"]] = params["loaderId"]
                case "Network.loadingFinished" | "Network.loadingFailed":
                    self._running_requests.pop(params["requestId"], None)
                case "Runtime.exceptionThrown":
                    details = params["exceptionDetails"]
                    self.problems.append(details.get("exception", {}).get("description") or details["text"])
                case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                    self.problems.append(str([part.get("value") for part in params["args"]]))
                case "Log.entryAdded" if params["entry"]["level"] == "error":
                    url = params["entry"].get("url", "")
                    if not url.endswith("/favicon.ico"):  # which no page asks for, but the browser itself
                        self.problems.append(f"{params['entry']['text']} {url}")

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result."""
        number = next(self._numbers)
        self._calls[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(PATIENCE):
            report = await self._calls[number]
        assert "error" not in report, (method, report)
        result: dict[str, Any] = report["result"]
        return result

    async def open(self, url: str) -> None:
        """Opens a page and waits until it is loaded, and has what its scripts ask for."""
        self._loaded.clear()
        opened = await self.call("Page.navigate", url=url)
        assert "errorText" not in opened, (url, opened)
        async with asyncio.timeout(PATIENCE):
            await self._loaded.wait()
        self._document = opened["loaderId"]
        await self._wait_for_answers()

    async def _wait_for_answers(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while self._document in self._running_requests.values():
                await asyncio.sleep(STEP)
        # What waits for an answer runs before the browser is idle.
        await self.run("new Promise((done) => requestIdleCallback(done))")

    async def expect_problems(self, text: str) -> None:
        """Forgets the problems after the page's last answer; each must contain the text."""
        await self._wait_for_answers()
        assert all(text in problem for problem in self.problems), self.problems
        self.problems.clear()

    async def run(self, script: str) -> Any:
        """Returns the value of a JavaScript expression; it can be a promise."""
        done = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, (script, done["exceptionDetails"])
        return done["result"].get("value")

    async def wait_for(self, script: str) -> None:
        """Waits until an expression is true."""
        async with asyncio.timeout(PATIENCE):
            while not await self._is_true(script):
                await asyncio.sleep(STEP)

    async def _is_true(self, script: str) -> bool:
        """False if the page is left meanwhile."""
        try:
            return bool(await self.run(f"Boolean({script})"))
        except AssertionError as error:
            if LEFT not in str(error):
                raise
            return False

    async def start_trace(self, *categories: str) -> None:
        """Records what the browser's threads do."""
        self._trace.clear()
        self._traced.clear()
        await self.call("Tracing.start", traceConfig={"includedCategories": [*categories]})

    async def end_trace(self) -> list[dict[str, Any]]:
        """Ends the record and returns its events."""
        await self.call("Tracing.end")
        async with asyncio.timeout(PATIENCE):
            await self._traced.wait()
        return self._trace

    async def wait_for_only_page(self) -> None:
        """Waits until every window that the page opened is closed."""
        async with asyncio.timeout(PATIENCE):
            while True:
                targets = (await self.call("Target.getTargets"))["targetInfos"]
                if sum(target["type"] == "page" for target in targets) == 1:
                    return
                await asyncio.sleep(STEP)

    async def choose_file(self, selector: str, file: Path) -> None:
        """Chooses the file of an input, as a user does."""
        found = await self.call(
            "Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})"
        )
        await self.call("DOM.setFileInputFiles", files=[str(file)], objectId=found["result"]["objectId"])


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Starts Chromium with a profile of its own. Skips the test where there is none."""
    program = require_program("chromium")
    # Root has no sandbox, and the pages are the project's own.
    flags = (*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else []))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *flags, f"--user-data-dir={profile}", "about:blank"]
        process = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL)
        try:
            async with asyncio.timeout(PATIENCE):
                while not (port := _read_port(Path(profile))):
                    assert process.returncode is None, "Chromium ended"
                    await asyncio.sleep(STEP)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                targets = await (await session.get("/json/list")).json()
                address = next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page")
                async with (
                    session.ws_connect(address, max_msg_size=0) as socket,
                    asyncio.TaskGroup() as group,
                ):
                    browser = Browser(socket)
                    reading = group.create_task(browser.read())
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await browser.call(f"{domain}.enable")
                    yield browser
                    reading.cancel()
        finally:
            process.terminate()
            try:
                async with asyncio.timeout(PATIENCE):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


def _read_port(profile: Path) -> str:
    """The port that Chromium chose; nothing as long as it starts."""
    try:
        return (profile / "DevToolsActivePort").read_text().partition("\n")[0]
    except FileNotFoundError:
        return ""
