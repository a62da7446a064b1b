"""Engines of another user than the server's, as an operator sets them up."""

import os

from tests.support.host_process import AS_ROOT, REACHABLE
from tests.support.server import serving, start
from tests.support.waiting import wait_until

AS_NOBODY = {"ANTIPHON_ENGINE_USER": "nobody"}
BODY = {"model": "cantor", "prompt": "Antiphon is", "max_tokens": 4}


def test_engines_run_as_the_named_user_also_after_a_death() -> None:
    if not (AS_ROOT and REACHABLE):
        server = start(env=AS_NOBODY)
        assert server.process.wait(60) == 1
        wait_until(lambda: any("nobody" in line for line in server.lines), what="the reason is said")
        return
    with serving(env=AS_NOBODY) as server, server.client() as client:
        first = server.host()
        assert first.username() == "nobody" and server.children("assembly")[0].uids().real == os.getuid()
        assert client.post("/v1/completions", json=BODY).status_code == 200
        first.kill()
        wait_until(lambda: client.post("/v1/completions", json=BODY).status_code == 200, what="it is back")
        assert server.host().pid != first.pid and server.host().username() == "nobody"
