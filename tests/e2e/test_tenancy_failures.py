"""A server with keys from which everything is taken that it stands on: whatever then fails says what it is in
a sentence, and nothing of the machine."""

import re
import resource
import time

import psycopg
import pytest

from tests.support.databases import PASSWORD, running
from tests.support.oidc_issuer import Issuer
from tests.support.redis_server import running as redis_running
from tests.support.server import serving
from tests.support.waiting import wait_until

ROOT = "/admin/v1"
CHAT = {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
TELLING = re.compile(
    r"Traceback|File \"|\.py\b|line \d+|0x[0-9a-f]{5}"
    r"|\b(SELECT|INSERT|UPDATE|DELETE|BEGIN|COMMIT)\b|relation |sqlalchemy|psycopg|sqlite|postgres"
    r"|Errno|Error:|Exception|redis://|unix:|https?://|127\.0\.0\.1|localhost"
    r"|/(?:tmp|home|run|var)/|\.sock|\.seg|\.db|antiphon-",
    re.IGNORECASE,
)
"""What no answer of a failure may hold."""
PATIENCE = 50.0
SLEEPS_S = 20.0
"""Less than what the statements would sleep."""
LIMIT = {
    "subject": "project",
    "target": "default",
    "measure": "requests",
    "window": "minute",
    "amount": 10**6,
}
CHANGES: dict[str, dict[str, object]] = {
    "projects": {"name": "P"},
    "users": {"name": "U"},
    "keys": {"kind": "service", "project": "default"},
    "limits": LIMIT | {"measure": "tokens"},
    "prices": {"models": "m", "currency": "USD", "input": "1", "output": "1"},
}
READS = ("audit", "usage", "usage?by=model", "usage/entries", "usage/entries?format=csv", "requests/gen_x",
         "requests?project=default")  # fmt: skip


STATEMENTS = (
    "a%00b",
    "'%20OR%20(SELECT%20pg_sleep(30))%20IS%20NOT%20NULL%20--",
    "%ff%fe",
    "'%3B%20DROP%20TABLE%20keys%20--",
)
"""Ids and filters that PostgreSQL must not get as anything but text; it takes no NUL at all."""
ASKED_BY_ID = (
    *("keys/", "users/", "projects/", "limits/", "prices/", "requests/", "audit?target=", "usage?project="),
    *("usage/entries?model=", "usage/entries?tag:a=", "usage/entries?after=1.", "limits?target="),
    "requests?project=default&after=",
)


class Failures:
    """Answers of a server; those of failures are kept."""

    def __init__(self, client, admin):
        self._client = client
        self._admin = {"authorization": f"Bearer {admin}"}
        self.codes: set[str] = set()
        self.slowest = 0.0
        """Seconds of the slowest answer."""

    def ask(self, method, path, body=None, headers=None):
        """The code of a failure; "" of what is none."""
        began = time.monotonic()
        answer = self._client.request(method, path, json=body, headers=headers or self._admin)
        self.slowest = max(self.slowest, time.monotonic() - began)
        if answer.status_code < 500:
            return ""
        assert not (found := TELLING.search(answer.text)), (found, answer.text)
        assert not TELLING.search(str({**answer.headers, "date": ""}).replace("antiphon", ""))
        assert answer.status_code == 503, answer.text
        code = str(answer.json()["error"]["code"])
        self.codes.add(code)
        return code

    def until(self, code, *asked):
        """Asks until it fails so."""
        wait_until(lambda: self.ask(*asked) == code, PATIENCE, code)

    def statements(self):
        """Nothing that is asked for makes a statement of its own, or fails."""
        self.slowest = 0.0
        for text in STATEMENTS:
            for path in ASKED_BY_ID:
                assert self.ask("GET", f"{ROOT}/{path}{text}") == "", (path, text)
            assert self.ask("PUT", f"{ROOT}/projects/default/members/{text}", {"role": "owner"}) == ""
        for path, body in CHANGES.items():
            assert self.ask("POST", f"{ROOT}/{path}", body | {"note": "a\0b"}) == "", path
        assert self.slowest < SLEEPS_S
        assert self._client.get(f"{ROOT}/keys", headers=self._admin).status_code == 200

    def store(self):
        """Whatever needs the database."""
        for path, body in CHANGES.items():
            assert self.ask("POST", f"{ROOT}/{path}", body) == "store_unavailable", path
        assert self.ask("PATCH", f"{ROOT}/projects/default", {"note": "n"}) == "store_unavailable"
        assert self.ask("PUT", f"{ROOT}/projects/default/recording", {"days": 1}) == "store_unavailable"
        assert self.ask("DELETE", f"{ROOT}/requests?project=default") == "store_unavailable"
        for path in READS:
            assert self.ask("GET", f"{ROOT}/{path}") == "store_unavailable", path


@pytest.fixture
def redis():
    yield from redis_running()


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_no_failure_tells_anything_of_the_machine(tmp_path, redis):
    home = tmp_path / "home"
    with running() as cluster:
        store = cluster.database()
        env = {
            "ANTIPHON_KEYS": "true",
            "ANTIPHON_HOME": str(home),
            "ANTIPHON_STORE": store,
            "ANTIPHON_LIMITS_URL": redis.url,
            "ANTIPHON_OIDC_ISSUER": "http://127.0.0.1:9",
            "ANTIPHON_OIDC_AUDIENCE": "antiphon",
        }
        with serving(env=env) as server, server.client() as client:
            failures = Failures(client, (home / "admin.key").read_text().strip())
            assert failures.ask("POST", f"{ROOT}/limits", LIMIT) == ""
            wait_until(
                lambda: failures.ask("POST", "/v1/chat/completions", CHAT) == "", PATIENCE, "an answer"
            )
            failures.statements()
            token = Issuer(address="http://127.0.0.1:9").token(time.time())
            failures.until("issuer_unavailable", "GET", "/v1/models", None, {"x-api-key": token})
            redis.stop()
            failures.until("limits_unavailable", "POST", "/v1/chat/completions", CHAT)
            redis.start()
            wait_until(
                lambda: failures.ask("POST", "/v1/chat/completions", CHAT) == "", PATIENCE, "an answer"
            )
            with psycopg.connect(store, autocommit=True) as connection:
                connection.execute("ALTER TABLE audit RENAME TO elsewhere")
            assert failures.ask("GET", f"{ROOT}/audit") == "store_unavailable"
            assert failures.ask("POST", f"{ROOT}/projects", CHANGES["projects"]) == "store_unavailable"
            cluster.stop()
            failures.store()
            for process in server.children("antiphon.assembly"):
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            failures.until("ledger_full", "POST", "/v1/chat/completions", CHAT)
            failures.ask("GET", "/health/ready")
            host, supervisor = server.host(), server.supervisor
            supervisor.suspend()  # so that no other host takes its place before anybody asks
            try:
                host.kill()
                failures.until("engine_unavailable", "POST", "/tokenize", {"model": "cantor", "prompt": "Hi"})
            finally:
                supervisor.resume()
            said = "\n".join(server.lines)
    assert PASSWORD not in said
    assert failures.codes >= {"issuer_unavailable", "limits_unavailable", "store_unavailable", "ledger_full"}
    assert "Traceback" not in said
