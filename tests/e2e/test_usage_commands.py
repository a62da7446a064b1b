"""From a price to a bill, against a real server: what was generated is in the ledger at its price, and the
commands show it; in SQLite, and in PostgreSQL."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.commands import run_command
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

CHAT = {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
LATER = {"constraint": {"start_date": "2040-01-01"}, "prices": {"input_mtok": 0.15, "output_mtok": 0.6}}
PUBLISHED = [{"id": "openai", "models": [{"id": "later", "match": {"equals": "later"}, "prices": [LATER]}]}]
"""Published prices, in the format of genai-prices."""
SOON = 20.0
"""Seconds within which a generation is in the ledger; stated: about one."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def env(request: pytest.FixtureRequest, tmp_path) -> dict[str, str]:
    kept = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(tmp_path / "home")}
    if request.param == "postgresql":
        kept["ANTIPHON_STORE"] = request.getfixturevalue("postgresql")
    return kept


@pytest.fixture
def server(env: dict[str, str]) -> Iterator[Server]:
    with serving(env=env) as running:
        yield running


def usage_of(server: Server, key: str) -> dict[str, int]:
    """Generates once; what the answer says that it took."""
    with server.client() as client:
        answer = client.post("/v1/chat/completions", json=CHAT, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200
        said: dict[str, int] = answer.json()["usage"]
        return said


def import_later(ran: Callable[..., str], directory: Path) -> None:
    """Imports a price that never holds, so that the server has no currency yet."""
    (directory / "data.json").write_text(json.dumps(PUBLISHED))
    words = ("prices", "import", "--provider", "openai", "--file", "data.json", "--json")
    [imported] = json.loads(ran(*words))["prices"]
    assert (imported["models"], imported["since"]) == ("openai/later", 2_208_988_800)
    assert json.loads(ran(*words))["prices"] == []
    ran("prices", "end", imported["id"])


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_from_a_price_to_a_bill(server: Server, env: dict[str, str], tmp_path) -> None:
    def ran(*words: str, key: str = "") -> str:
        """What a command prints where the server's home is, with a key or with none said."""
        variables = {"ANTIPHON_HOME": env["ANTIPHON_HOME"]} | ({"ANTIPHON_API_KEY": key} if key else {})
        done = run_command(*words, "--url", server.url, cwd=tmp_path, env=variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    keys = [ran("keys", "create", "service", "--project", "default").strip() for _ in range(2)]
    free = usage_of(server, keys[0])
    import_later(ran, tmp_path)
    price = ran(
        "prices", "add", "can*", "--input", "0.3", "--output", "1.000000001", "--currency", "EUR"
    ).strip()
    assert price in ran("prices", "list", "--wide")
    paid = [usage_of(server, keys[0]), usage_of(server, keys[1])]
    ran("prices", "end", price)

    def report(*words: str, key: str = "") -> dict[str, object]:
        said: dict[str, object] = json.loads(ran("usage", "--format", "json", *words, key=key))
        return said

    def total(*words: str, key: str = "") -> dict[str, object]:
        found = report(*words, key=key)["total"]
        assert isinstance(found, dict)
        return found

    wait_until(lambda: total()["requests"] == 3, SOON, "every generation is in the ledger")
    whole = total()
    nano = sum(
        (2 * (each["prompt_tokens"] * 300_000_000 + each["completion_tokens"] * 1_000_000_001) + 10**6)
        // (2 * 10**6)
        for each in paid
    )
    every = [free, *paid]
    assert (whole["ok"], whole["unpriced"], whole["cost_nano"]) == (3, 1, nano)
    assert whole["prompt_tokens"] == sum(each["prompt_tokens"] for each in every)
    assert whole["output_tokens"] == sum(each["completion_tokens"] for each in every)
    assert report()["currency"] == "EUR"
    assert [total(key=key)["requests"] for key in keys] == [2, 1]

    table = ran("usage", "--by", "key,status", "--since", "1h")
    assert "█" in table and "COST EUR" in table and table.count("\n") >= 5
    rows = list(csv.DictReader(io.StringIO(ran("usage", "--entries", "--format", "csv"))))
    assert [row["price"] for row in rows] == ["", price, price]
    assert sum(int(row["cost_nano"]) for row in rows) == nano
    assert {row["model"] for row in rows} == {"cantor"} and {row["source"] for row in rows} == {"engine"}
    assert {row["project"] for row in rows} == {"default"}
    lines = ran("usage", "--entries", "--format", "json", "--only", f"price={price}").splitlines()
    assert [json.loads(line)["id"] for line in lines] == [row["id"] for row in rows[1:]]
    actions = [each["action"] for each in json.loads(ran("audit", "--target", price, "--json"))["audit"]]
    assert actions == ["price.change", "price.create"]
