"""A server as a user starts it, with keys, limits, prices, members, and a project whose requests are kept."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.wire import Wire
from tests.support.model_files import CANTOR, write_encoder
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

TEMPLATES = {"ANTIPHON_REQUEST_TEMPLATES": "true"}
PLENTY = 10**14
"""What no load uses up."""
USERS = 8
SCARCE = 2
"""Requests that the limited keys may make in their window."""
RUNNING = ("antiphon_generations_running{", "antiphon_engine_running{", "antiphon_engine_queued{")


@dataclass
class Place:
    """A running server with keys, limits, a price, members, and a project whose requests are kept."""

    server: Server
    home: Path
    embeds: bool
    key: str = ""
    """Of a service, with limits that are never reached."""
    limited: str = ""
    """With a limit of few requests a minute."""
    spent: str = ""
    """With a budget of few requests a month."""
    recorded: str = ""
    """Of a project whose requests are kept."""
    confined: str = ""
    """For another model than there is."""
    users: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    """Of the users, one each."""

    def admin(self, wire: Wire, method: str, path: str, **said: object) -> Any:
        """What the admin API answers, as the operator."""
        key = (self.home / "admin.key").read_text().strip()
        body = json.dumps(said).encode() if said else None
        answer = wire.ask(method, f"/admin/v1/{path}", body, bearer(key))
        assert answer.status < 300, (method, path, answer)
        return json.loads(answer.body) if answer.body else None

    def made(self, wire: Wire, **said: object) -> tuple[str, str]:
        """A new key: its id and itself."""
        card = self.admin(wire, "POST", "keys", **{"kind": "service", "project": "default"} | said)
        return card["id"], card["secret"]

    def furnish(self, window: str) -> None:
        """Makes everything that callers need; `window`: of the limits that are never reached."""
        wire = Wire(self.server.url)
        with closing(wire):
            id_, self.key = self.made(wire)
            for measure in ("requests", "tokens", "cost"):
                self._limit(wire, "key", id_, measure, PLENTY, window)
            self._limit(wire, "project", "default", "cost", PLENTY, "day")
            self._limit(wire, "model", "cantor", "concurrent", 10_000)
            self.admin(wire, "POST", "prices", models="*", currency="USD", input="0.15", output="0.6")
            id_, self.limited = self.made(wire)
            self._limit(wire, "key", id_, "requests", SCARCE, "minute")
            id_, self.spent = self.made(wire)
            self._limit(wire, "key", id_, "requests", SCARCE, "month")
            _, self.confined = self.made(wire, models=["nothing-*"])
            project = self.admin(wire, "POST", "projects", name="kept")["id"]
            self.admin(wire, "PUT", f"projects/{project}/recording", days=1, redact=["email"])
            _, self.recorded = self.made(wire, project=project)
            for number in range(USERS):
                user = self.admin(wire, "POST", "users", name=f"user {number}")["id"]
                self.admin(wire, "PUT", f"projects/default/members/{user}", role="member")
                self.users.append(user)
                self.tokens.append(self.made(wire, kind="access_token", user=user)[1])

    def _limit(
        self, wire: Wire, subject: str, target: str, measure: str, amount: int, window: str | None = None
    ) -> None:
        said = {"subject": subject, "target": target, "measure": measure, "amount": amount}
        self.admin(wire, "POST", "limits", **said | ({} if window is None else {"window": window}))

    def settle(self, within: float = 60) -> None:
        """Waits until nothing runs any more."""
        key = (self.home / "admin.key").read_text().strip()
        with closing(Wire(self.server.url)) as wire:

            def idle() -> bool:
                return _idle(wire.ask("GET", "/metrics", None, bearer(key)).body.decode())

            wait_until(idle, within, "nothing runs")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@contextmanager
def furnished(
    home: Path,
    *arguments: str,
    embeds: bool = True,
    window: str = "minute",
    env: dict[str, str] | None = None,
    threads: int = 1,
) -> Iterator[Place]:
    """A server as a user starts it, with keys and SQLite; with `embeds` it has an embedding model, too."""
    models = [f"--model={CANTOR}", f"--model={write_encoder(home / 'encoder.gguf')}"] if embeds else []
    said = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home / "home")} | TEMPLATES | (env or {})
    with serving(*models, *arguments, threads=threads, env=said, cwd=home) as server:
        place = Place(server, home / "home", embeds)
        place.furnish(window)
        yield place


def _idle(page: str) -> bool:
    """Whether the numbers say that nothing runs."""
    lines = [line for line in page.split("\n") if line.startswith(RUNNING)]
    return bool(lines) and all(float(line.rpartition(" ")[2]) == 0 for line in lines)
