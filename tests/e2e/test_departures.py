"""A client that leaves frees its sequence within a second, wherever its request stands."""

import secrets
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.departures import LONG_PROMPT, MOST, posted
from tests.support.pty_screen import CTRL_C, open_screen
from tests.support.server import Server
from tests.support.waiting import wait_until

DEADLINE = 10.0
REST = 4000
"""Tokens of an answer in a chat that nobody stops: the random model hardly ever ends by itself, and it has
room for more."""
LONG_PROMPTS = [[200 + number, *LONG_PROMPT] for number in range(16)]
"""As many as take half a minute: they have no prefix in common."""


def idle(server: Server) -> bool:
    load = server.load()
    return load.running == 0 and load.queued == 0 and load.free_sequences == 2 and load.cells_used == 0


def test_in_prefill(busy: Server) -> None:
    before = busy.load().prefill_tokens
    with closing(posted(busy, prompt=LONG_PROMPTS, max_tokens=8)):
        wait_until(lambda: busy.load().running > 0, DEADLINE, "a prompt is admitted")
    wait_until(lambda: idle(busy), DEADLINE, "the sequence is free again")
    assert busy.load().prefill_tokens - before < sum(map(len, LONG_PROMPTS)), "the prefill was cut short"


@pytest.mark.parametrize("stream", [True, False])
def test_while_tokens_are_made(busy: Server, stream: bool) -> None:
    before = busy.load().decoded_tokens
    with closing(posted(busy, stream=stream)):
        wait_until(lambda: busy.load().decoded_tokens > before + 3, DEADLINE, "tokens are made")
    wait_until(lambda: idle(busy), DEADLINE, "the sequence is free again")
    assert busy.load().decoded_tokens - before < MOST, "the generation was cut short"


def test_while_queued(busy: Server) -> None:
    with ExitStack() as running:
        for _ in range(2):
            running.enter_context(closing(posted(busy, stream=True)))
        wait_until(lambda: busy.load().running == 2, DEADLINE, "both sequences are taken")
        with closing(posted(busy)):
            wait_until(lambda: busy.load().queued == 1, DEADLINE, "the third request waits")
        wait_until(lambda: busy.load().queued == 0, DEADLINE, "it left the queue")
        assert busy.load().running == 2, "the others go on"
    wait_until(lambda: idle(busy), DEADLINE, "all sequences are free again")


def test_with_several_choices(busy: Server) -> None:
    with closing(posted(busy, n=2)):
        wait_until(lambda: busy.load().running == 2, DEADLINE, "both choices run")
    wait_until(lambda: idle(busy), DEADLINE, "both sequences are free again")


def test_each_is_logged_as_cancelled_with_its_tokens(busy: Server) -> None:
    """Found by its id: the record of an earlier test's request may come later than the engine is idle."""
    id_ = secrets.token_hex(8)

    def find() -> list[dict[str, object]]:
        return [line for line in busy.records("generation") if line["request_id"] == id_]

    with closing(posted(busy, id_, stream=True)) as connection:
        while b"data:" not in connection.recv(65536):
            pass
    wait_until(find, DEADLINE, "the generation is logged")
    (line,) = find()
    assert line["status"] == "cancelled" and line["completion_tokens"], line


def test_ctrl_c_in_a_chat_frees_the_sequence(busy: Server, tmp_path: Path) -> None:
    busy.wait_until_idle()
    before = busy.load().decoded_tokens
    with open_screen("chat", "--url", busy.url, cwd=tmp_path) as shown:
        shown.expect_prompt()
        shown.type("Go on!\r")
        wait_until(lambda: busy.load().decoded_tokens > before + 3, what="tokens are made")
        shown.type(CTRL_C)
        shown.expect("Ctrl-C again or Ctrl-D leaves")
        wait_until(lambda: busy.load().running == 0, what="the sequence is free again")
        assert busy.load().decoded_tokens - before < REST, "the generation was cut short"
