"""Photographs each page of the console into docs/console, wide and as on a phone, light and dark.

python -m scripts.console_shots

It starts a server of its own with keys, talks to its model, and needs Chromium. The pictures are for people:
nothing compares them.
"""

import asyncio
import base64
import json
import tempfile
from pathlib import Path

import httpx2

from tests.support.browser import Browser, open_browser
from tests.support.server import serving

FOLDER = Path(__file__).parents[1] / "docs" / "console"
MOST_BYTES = 2_000_000
QUALITY = 60

PAGES = {
    "chat": ".message.assistant footer small",
    "complete": "article[aria-busy=false] .token",
    "compare": ".column [aria-busy=false]",
    "models/cantor": ".facts",
    "requests": ".waterfall",
    "usage": ".chart canvas",
    "knowledge/handbook": ".results",
    "access/keys": "tbody",
    "reference": ".operation",
}
"""Pages, and what is there when they are whole."""

LOOKS = {"light": (1280, 800), "dark": (1280, 800), "light-phone": (390, 800), "dark-phone": (390, 800)}


def prepare(url: str, key: str) -> None:
    """Makes what the pages show: a limited key, a project and a table."""
    with httpx2.Client(base_url=url, headers={"x-api-key": key}, timeout=60) as client:
        made = [client.post("/admin/v1/projects", json={"name": "harbour", "note": "the office at the quay"})]
        limit = {"measure": "requests", "amount": 60, "window": "minute"}
        new = {"kind": "service", "project": "default", "note": "translation bot", "limits": [limit]}
        made.append(client.post("/admin/v1/keys", json=new))
        table = {"name": "handbook", "embedding_model": None}
        made.append(client.post("/v1/knowledge/tables", json=table))
        text = b"# Harbour rules\n\nEverybody has 28 days of leave in a year.\n"
        files = {"file": ("rules.md", text, "text/markdown")}
        path = "/v1/knowledge/tables/handbook/documents"
        made.append(client.post(path, files=files, data={"wait": "true"}))
    for answer in made:
        answer.raise_for_status()


async def act(browser: Browser, selector: str, value: str, form: str) -> None:
    """Types into a field and sends its form."""
    await browser.wait_for(f"document.querySelector({json.dumps(selector)})")
    await browser.run(
        f"(() => {{ const field = document.querySelector({json.dumps(selector)});"
        f"field.value = {json.dumps(value)}; field.dispatchEvent(new Event('input', {{ bubbles: true }}));"
        f"document.querySelector({json.dumps(form)}).requestSubmit(); }})()"
    )


async def fill(browser: Browser, page: str) -> None:
    """Does on a page what is to be seen."""
    if page == "chat":
        await browser.wait_for("document.querySelector('[name=seed]')")
        await browser.run("document.querySelector('.settings .check input').click()")
        await act(browser, "textarea.draft", "What is Antiphon?", ".composer")
    elif page == "complete":
        await browser.wait_for("document.querySelector('complete-page [name=seed]')")
        await browser.run("document.querySelector('complete-page .settings .check input').click()")
        await act(browser, "complete-page textarea.code", "Once upon a time", "complete-page form")
    elif page == "compare":
        await browser.wait_for("document.querySelectorAll('.column').length === 2")
        await act(browser, "compare-page textarea.draft", "Who are you?", "compare-page .composer")
    elif page == "knowledge/handbook":
        await act(browser, "knowledge-page [name=query]", "days of leave", "knowledge-page .card form")
    elif page == "requests":
        await browser.wait_for("document.querySelector('requests-page tbody a')")
        await browser.run("location.hash = document.querySelector('requests-page tbody a').hash")


async def take(browser: Browser, name: str) -> None:
    """Takes one picture."""
    await asyncio.sleep(0.4)  # the page draws
    shot = await browser.call("Page.captureScreenshot", format="webp", quality=QUALITY)
    (FOLDER / f"{name}.webp").write_bytes(base64.b64decode(shot["data"]))


async def photograph(url: str, key: str) -> None:
    """Opens each page once, and shows it in every look."""
    async with open_browser() as browser:
        await browser.open(f"{url}/console/")
        await act(browser, "dialog.key [name=key]", key, "dialog.key form")
        for page, whole in PAGES.items():
            await browser.run(f"location.hash = '#/{page}'")
            await fill(browser, page)
            await browser.wait_for(f"document.querySelector('{page.split('/')[0]}-page {whole}')")
            for look, (width, height) in LOOKS.items():
                scheme = [{"name": "prefers-color-scheme", "value": look.removesuffix("-phone")}]
                await browser.call("Emulation.setEmulatedMedia", features=scheme)
                size = {"width": width, "height": height, "deviceScaleFactor": 1}
                await browser.call("Emulation.setDeviceMetricsOverride", mobile=width < 500, **size)
                await take(browser, f"{page.split('/')[0]}-{look}")


def main() -> None:
    """Takes all pictures, and says how large they are."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": home, "ANTIPHON_KNOWLEDGE_STORAGE": "files"}
        with serving(env=env) as server:
            key = (Path(home) / "admin.key").read_text().strip()
            prepare(server.url, key)
            asyncio.run(photograph(server.url, key))
    size = sum(path.stat().st_size for path in FOLDER.glob("*.webp"))
    print(f"{size} bytes in {FOLDER}")
    if size > MOST_BYTES:
        raise SystemExit("too large: lower QUALITY")


if __name__ == "__main__":
    main()
