"""/metrics and `antiphon top --json` of a real server, and of one whose engine has stopped."""

import json
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.commands import run_command
from tests.support.server import Server
from tests.support.waiting import wait_until

BODY = {"model": "cantor", "prompt": "Antiphon is", "max_tokens": 8}


def numbers(server: Server) -> dict[tuple[str, ...], float]:
    with server.client() as client:
        page = client.get("/metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def numbers_of_all(server: Server) -> dict[tuple[str, ...], float]:
    """With those of the engine, which are left out if it does not answer within a second; and of no request
    that an earlier test left."""
    found: dict[tuple[str, ...], float] = {}

    def is_whole() -> bool:
        found.clear()
        found.update(numbers(server))
        running = found.get(("antiphon_generations_running", "cantor"), 0)
        return (found["antiphon_engine_up", "cantor"], running) == (1, 0)

    wait_until(is_whole, what="the engine is up, and nothing runs")
    return found


def test_a_generation_is_counted_by_the_server_and_the_engine(server: Server, tmp_path: Path) -> None:
    before = numbers_of_all(server)
    with server.client() as client:
        usage = client.post("/v1/completions", json=BODY).json()["usage"]
    after = numbers_of_all(server)

    def grown(*key: str) -> float:
        return after[key] - before.get(key, 0.0)

    made, load = usage["completion_tokens"], server.load()
    assert grown("antiphon_tokens_total", "cantor", "output") == made
    assert grown("antiphon_engine_decoded_tokens_total", "cantor") >= made
    assert grown("antiphon_engine_first_token_seconds_count", "cantor") >= 1
    assert grown("antiphon_engine_inter_token_seconds_count", "cantor") >= made - 1
    assert grown("antiphon_engine_step_gap_seconds_count", "cantor") >= made - 1
    assert after["antiphon_engine_cells", "cantor"] == load.cells > 0
    command = ("top", "--url", server.url, "--json", "--interval", "0.2")

    def is_shown() -> bool:
        shown = json.loads(run_command(*command, cwd=tmp_path).stdout)
        assert shown["models"][0]["model"] == "cantor"
        return bool(shown["models"][0]["up"])

    wait_until(is_shown, what="the engine is up")


def test_a_stopped_engine_is_told_as_not_up_within_a_second(server: Server) -> None:
    numbers_of_all(server)
    host = server.host()
    host.suspend()
    try:
        began = time.monotonic()
        found = numbers(server)
        took = time.monotonic() - began
    finally:
        host.resume()
    assert took < 10, "stated: one second"
    assert found["antiphon_engine_up", "cantor"] == 0
    assert ("antiphon_engine_cells", "cantor") not in found
    wait_until(lambda: numbers(server)["antiphon_engine_up", "cantor"] == 1, what="it is up again")
