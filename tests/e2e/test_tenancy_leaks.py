"""What nobody may find: keys, tokens, passwords, the pepper, prompts and addresses, looked for wherever a
server of several processes writes; and errors that are provoked, which say nothing of the machine."""

import json
import stat
import time
from collections.abc import Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
import psycopg
import pytest

from tests.support.databases import PASSWORD, Cluster
from tests.support.oidc_issuer import Issuer, listening
from tests.support.redis_server import running as redis_running
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

ROOT = "/admin/v1"
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
PROMPT = "canary-prompt-7c1e0b"
EMAIL = "canary-ann@example.org"
STARTUP = {
    "the pepper": "c4" * 20 + "5eed" * 10,
    "the key of the settings": "canary-settings-key-90817263",
    "the token of the hub": "hf_canaryTokenOfTheHub000",
    "the password of Redis": "canary-redis-31337",
    "the store's password": PASSWORD,
}
"""What the operator says in the environment."""
PIECE = 8
"""Characters of a secret that must not be anywhere either."""
KEPT = "kept-words-55"
OFTEN = 3
"""Requests of one kind, so that each HTTP process gets some."""
APART = httpx2.Limits(max_keepalive_connections=0)
"""Each request on a connection of its own: some process takes it."""
KNOWN = {("the address", "the database"), ("the address", "lists")}
"""Who signs on stands in the users and in the audit."""
PRESENT = {
    "the metrics": "antiphon_http_requests_total",
    "errors": "invalid_api_key",
    "commands": "antiphon.processes.coordinator",
    "environments": "XDG_RUNTIME_DIR",
    "lists": "key_",
    "the database": KEPT,
    "the log": '"event": "refused"',
}
"""What shows that the places were looked into."""
SOON = 10.0
"""Seconds in which what is written behind an answer is there."""


@dataclass
class World:
    """A running server, and all that was sent to it and that it answered."""

    server: Server
    client: httpx2.Client
    home: Path
    runtime: Path
    cluster: Cluster
    store: str
    issuer: Issuer
    admin: str = ""
    secrets: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    """Bodies of errors."""

    def ask(self, path: str, body: object = None, key: str | None = None, **how: Any) -> httpx2.Response:
        """One request; what it is refused with is remembered."""
        headers = {"authorization": f"Bearer {key or self.admin}"} | how.pop("headers", {})
        method = str(how.pop("method", "GET" if body is None else "POST"))
        said = {"content": body} if isinstance(body, bytes) else {} if body is None else {"json": body}
        if isinstance(body, bytes):
            headers["content-type"] = "application/json"
        answer = self.client.request(method, path, headers=headers, **said)
        if answer.status_code >= 400:
            self.refused.append(f"{answer.headers} {answer.text}")
        return answer

    def made(self, path: str, body: object, key: str | None = None) -> dict[str, str]:
        answer = self.ask(ROOT + path, body, key)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def parts(self) -> dict[str, str]:
        """Each secret, and the pieces of it that are as secret: not a key's public name, nor the head that
        all tokens have."""
        found: dict[str, str] = {}
        for name, secret in self.secrets.items():
            hidden = secret[16:] if secret.startswith("ak_") else secret.partition(".")[2] or secret
            found |= {
                name: secret,
                f"the begin of {name}": hidden[:PIECE],
                f"the end of {name}": secret[-PIECE:],
            }
        return found | {"the prompt": PROMPT, "the address": EMAIL}


@contextmanager
def world(folder: Path, cluster: Cluster, **more: str):
    """Two HTTP processes and their coordinator on PostgreSQL, with an issuer of tokens, at level debug."""
    home, runtime = folder / "home", folder / "run"
    runtime.mkdir(parents=True)
    with listening(Issuer()) as issuer:
        store = cluster.database()
        env = {
            "ANTIPHON_KEYS": "true",
            "ANTIPHON_HOME": str(home),
            "ANTIPHON_STORE": store,
            "ANTIPHON_PEPPER": STARTUP["the pepper"],
            "ANTIPHON_API_KEY": STARTUP["the key of the settings"],
            "HF_TOKEN": STARTUP["the token of the hub"],
            "ANTIPHON_LOG_LEVEL": "debug",
            "ANTIPHON_OIDC_ISSUER": issuer.address,
            "ANTIPHON_OIDC_AUDIENCE": "antiphon",
            "ANTIPHON_OIDC_ADD_USERS": "true",
            "ANTIPHON_OIDC_GROUPS": "ml-team=default:member",
            "XDG_RUNTIME_DIR": str(runtime),
        } | more
        with serving("--workers", "2", env=env) as server, server.client(limits=APART) as client:
            made = World(server, client, home, runtime, cluster, store, issuer)
            made.admin = (home / "admin.key").read_text().strip()
            made.secrets = {**STARTUP, "the operator's key": made.admin}
            yield made


def keys_of(world: World) -> dict[str, str]:
    """One of each kind; each is remembered as a secret."""
    user = world.made("/users", {"name": "Ann", "email": EMAIL})["id"]
    path = f"{ROOT}/projects/default/members/{user}"
    assert world.ask(path, {"role": "owner"}, method="PUT").status_code == 200
    service = world.made("/keys", {"kind": "service", "project": "default"})
    made = {
        "service": service["secret"],
        "owner": world.made("/keys", {"kind": "access_token", "user": user})["secret"],
        "rotated": world.made(f"/keys/{service['id']}/rotate", {"overlap": 600})["secret"],
        "sign-on": world.issuer.token(time.time(), email=f"o-{EMAIL}", groups=["ml-team"]),
        "bad sign-on": world.issuer.token(time.time(), email=f"o-{EMAIL}", aud="others"),
    }
    world.secrets |= made
    return made


def use(world: World, keys: dict[str, str]) -> None:
    """Everything that callers do with keys and prompts, well and badly, often enough for both processes."""
    fine = {"model": "cantor", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
    bad: list[object] = [
        fine | {"n": 0},
        fine | {"temperature": "hot"},
        fine | {"no_such_field": PROMPT},
        fine | {"model": "nobody"},
        fine | {"messages": [{"role": "user", "content": {"text": PROMPT}}]},
        fine | {"messages": [{"role": "user", "content": f"{PROMPT} " * 4000}]},
        fine | {"guided_regex": "("},
        fine | {"tools": [{"type": "function", "function": {"name": "a b", "description": PROMPT}}]},
        json.dumps(fine).encode()[:-1],
        json.dumps(fine).encode().replace(b'"user"', b'"us\xffer"'),
        json.dumps([PROMPT]).encode(),
    ]
    for name in ("service", "owner", "rotated", "sign-on"):
        for carrier in ("authorization", "x-api-key", "api-key"):
            carried = {carrier: f"Bearer {keys[name]}" if carrier == "authorization" else keys[name]}
            assert world.client.post(CHAT, json=fine, headers=carried).status_code == 200
        assert world.ask("/metrics", key=keys[name]).status_code == 403
    for _ in range(OFTEN):
        assert world.ask(CHAT, fine | {"stream": True, "n": 2}, keys["owner"]).status_code == 200
        assert world.ask("/tokenize", {"model": "cantor", "prompt": PROMPT}, keys["owner"]).status_code == 200
        assert {world.ask(CHAT, each, keys["sign-on"]).status_code for each in bad} <= {400, 404}
        for wrong in (f"{keys['service']}x", keys["bad sign-on"], keys["sign-on"][:-4] + "AAAA"):
            assert world.ask(CHAT, fine, wrong).status_code == 401
        assert world.client.get(f"/v1/models?api_key={keys['service']}").status_code == 401
        two = {"x-api-key": keys["owner"]}
        assert world.ask(CHAT, fine, keys["service"], headers=two).status_code == 400
        assert world.ask(f"{ROOT}/keys", {"kind": "service", "secret": keys["owner"]}).status_code == 400


def rows_of(store: str) -> str:
    """Every row of every table, bytes as hexadecimal and as they are."""
    said = []
    with psycopg.connect(store) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in found:
            rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
            said += [
                f"{table} {row!r} {[bytes(v).hex() for v in row if isinstance(v, bytes)]}" for row in rows
            ]
    return "\n".join(said)


def files_of(folder: Path, *but: str) -> str:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in but]
    found = []
    for path in paths:
        with suppress(FileNotFoundError):  # a file of the spool that was drained
            found.append(f"{path} {path.read_bytes().decode('latin-1')}")
    return "\n".join(found)


def list_open(paths: Iterable[Path]) -> list[Path]:
    """Those that others than their owner can use."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):
            found += [path] if stat.S_IMODE(path.stat().st_mode) & 0o077 else []
    return found


def processes_of(world: World) -> list[psutil.Process]:
    """All but the supervisor, which the operator started."""
    return world.server.supervisor.children(recursive=True)


def keep_one(world: World, keys: dict[str, str]) -> None:
    """A request in a project that has its own kept, in which the caller says a key and an address."""
    kept = world.made("/projects", {"name": "Kept"})["id"]
    wanted = {"days": 1, "redact": ["key", "email"]}
    assert world.ask(f"{ROOT}/projects/{kept}/recording", wanted, method="PUT").status_code == 200
    said = f"{KEPT}: {keys['service']}, {keys['sign-on']}, {EMAIL}"
    body = {"model": "cantor", "messages": [{"role": "user", "content": said}], "max_tokens": 2}
    listed = f"{ROOT}/requests?project={kept}"

    def is_kept() -> bool:
        """The other process may not know yet that it shall keep this one."""
        assert world.ask(CHAT, body, headers={"x-project-id": kept}).status_code == 200
        return bool(world.ask(listed).json()["data"])

    wait_until(is_kept, SOON, "the kept request")


@pytest.fixture
def redis():
    yield from redis_running()


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_no_secret_no_prompt_and_no_address_is_found_anywhere(tmp_path, cluster, redis):
    url = f"unix://default:{STARTUP['the password of Redis']}@{redis.path}"
    with world(tmp_path, cluster, ANTIPHON_LIMITS_URL=url) as made:
        keys = keys_of(made)
        for subject, target in (("project", "default"), ("model", "cantor")):
            limit = {"subject": subject, "target": target, "measure": "requests", "window": "minute"}
            made.made("/limits", limit | {"amount": 100_000})
        use(made, keys)
        keep_one(made, keys)
        wait_until(lambda: made.ask(f"{ROOT}/usage/entries").json()["data"], SOON, "the ledger's rows")
        children = processes_of(made)
        lists = ("/keys", "/audit?limit=1000", "/usage/entries?limit=1000", "/limits")
        places = {
            "the metrics": "".join(made.ask("/metrics").text for _ in range(OFTEN)),
            "errors": "\n".join(made.refused),
            "commands": "\n".join(" ".join(p.cmdline()) for p in [made.server.supervisor, *children]),
            "environments": "\n".join(str(p.environ()) for p in children),
            "the home and the spool": files_of(made.home, "admin.key"),
            "the runtime directory": files_of(made.runtime),
            "lists": "\n".join(made.ask(ROOT + path).text for path in lists),
            "the database": rows_of(made.store),
            "the database's log": (made.cluster.folder / "log").read_text(),
        }
        kept = [made.home, *made.home.rglob("*")]
        assert list_open(kept) == []
        assert made.server.stop() == 0
        places["the log"] = "\n".join(made.server.lines)
        places["the home and the spool, afterwards"] = files_of(made.home, "admin.key")
        said = made.parts()
    assert len(children) >= 4  # two HTTP processes, the coordinator, the engine's host
    for where, what in PRESENT.items():
        assert what in places[where]
    found = {
        (what, where) for what, secret in said.items() for where, text in places.items() if secret in text
    }
    assert found <= KNOWN
