"""What a server says beside what it did is shown to whoever asked for it, and does not get into what a
program reads."""

import pytest

from tests.cli.conftest import Run
from tests.cli.scripted import *  # noqa: F403 - a fixture is found by its name; `__all__` lists it
from tests.cli.scripted import Scripted, page

SAID = "nothing here is served by the name nope now"
CARD: dict[str, object] = {"id": "id_1", "secret": "s", "warnings": [SAID, "and another"]}
COMMANDS: dict[str, list[tuple[int, object]]] = {
    "limits set project default tokens 5 --per day --models nope": [page(), (201, CARD)],
    "prices add nope --input 1 --output 2 --currency USD": [page(), (201, CARD)],
    "prices end price_0000000000000000001": [(200, CARD)],
    "prices end price_0000000000000000001 --at 2040-01-01": [(200, CARD)],
    "keys create service --project default --model nope": [(201, CARD)],
    "keys update key_000000000001 --model nope": [(200, CARD)],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_warnings_are_lines_on_standard_error(antiphon: Run, server: Scripted, command: str) -> None:
    server.answers = list(COMMANDS[command])
    ended = antiphon(*command.split(), "--url", server.url)
    assert ended.returncode == 0
    assert ended.stderr.splitlines()[-2:] == [f"antiphon: {SAID}", "antiphon: and another"]
    assert SAID not in ended.stdout
