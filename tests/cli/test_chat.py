"""`antiphon chat` as it is used: in a terminal and in a pipe, with a server and without one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from antiphon.cli.commands.chat import ChatHistory, Turn
from tests.cli.conftest import Run
from tests.cli.standin import ALIAS, ENCODER, MODELS, Standin, standin
from tests.support.processes import bare_environment
from tests.support.programs import find_free_port
from tests.support.pty_screen import CTRL_C, CTRL_D, PATIENCE, UP, open_screen
from tests.support.server import provide_store


@pytest.fixture(scope="module")
def server() -> Iterator[Standin]:
    with standin() as running:
        yield running


def asked(server: Standin) -> list[dict[str, str]]:
    messages = server.asked[-1]["messages"]
    assert isinstance(messages, list)
    return messages


def test_a_pipe_gets_answers_and_nothing_else(antiphon: Run, server: Standin):
    done = antiphon("chat", "--url", server.url, "--system", "Be brief.", stdin="Hello?\n\nAnd?\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one two three\n" * 2, "")
    assert [message["content"] for message in asked(server)] == [
        "Be brief.",
        "Hello?",
        "one two three",
        "And?",
    ]


def test_commands_change_what_is_asked(antiphon: Run, server: Standin, tmp_path: Path):
    lines = [
        "/system Rhyme.",
        "//first",
        "/save chat.json",
        "/new",
        "/model uncounted",
        "second",
        "/quit",
        "third",
    ]
    done = antiphon("chat", "--url", server.url, stdin="\n".join(lines))
    assert done.returncode == 0
    assert json.loads((tmp_path / "chat.json").read_text())["messages"][1]["content"] == "/first"
    assert server.asked[-1]["model"] == "uncounted"
    assert [message["content"] for message in asked(server)] == ["Rhyme.", "second"]


def test_commands_that_cannot_be_done_say_why_and_fail_a_pipe(antiphon: Run, server: Standin):
    lines = ["/wat", "/save", "/save missing/chat.md", "/model wat", "Hello?"]
    done = antiphon("chat", "--url", server.url, stdin="\n".join(lines))
    assert done.returncode == 1
    assert [line.removeprefix("antiphon: ") for line in done.stderr.splitlines()] == [
        "there is no such command; there are: /system /model /image /audio /new /save /help /quit",
        "name the file: /save chat.md",
        "cannot write missing/chat.md: No such file or directory",
        f"there is no model 'wat'; the server has: {', '.join(MODELS)}",
    ]
    assert done.stdout == "one two three\n", "the chat goes on"


def test_files_go_with_the_next_question_and_stay_in_the_conversation(
    antiphon: Run, server: Standin, tmp_path: Path
):
    (tmp_path / "Owl.PNG").write_bytes(b"picture")
    (tmp_path / "hoot.mp3").write_bytes(b"sound")
    lines = ["/image Owl.PNG", "/audio hoot.mp3", "What is it?", "Really?", "/save chat.md"]
    done = antiphon("chat", "--url", server.url, stdin="\n".join(lines))
    assert (done.returncode, done.stderr) == (0, "")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,cGljdHVyZQ=="}}
    sound = {"type": "input_audio", "input_audio": {"data": "c291bmQ=", "format": "mp3"}}
    assert [message["content"] for message in asked(server)] == [
        [image, sound, {"type": "text", "text": "What is it?"}],
        "one two three",
        "Really?",
    ]
    assert "**user**\n\n[Owl.PNG]\n\n[hoot.mp3]\n\nWhat is it?" in (tmp_path / "chat.md").read_text()


def test_files_that_are_no_pictures_are_not_sent(antiphon: Run, server: Standin, tmp_path: Path):
    (tmp_path / "owl.bmp").write_bytes(b"picture")
    lines = ["/image", "/image owl.bmp", "/audio missing.wav", "/image hoot.wav", "Hello?"]
    done = antiphon("chat", "--url", server.url, stdin="\n".join(lines))
    assert done.returncode == 1
    assert [line.removeprefix("antiphon: ") for line in done.stderr.splitlines()] == [
        "name the file: /image FILE",
        "owl.bmp must end with .png, .jpg, .jpeg, .webp, .gif",
        "cannot read missing.wav: No such file or directory",
        "hoot.wav must end with .png, .jpg, .jpeg, .webp, .gif",
    ]
    assert [message["content"] for message in asked(server)] == ["Hello?"]


def test_an_alias_is_asked_for_though_it_is_not_listed(antiphon: Run, server: Standin):
    done = antiphon("chat", "--url", server.url, "--model", ALIAS, stdin="Hello?\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one two three\n", "")
    assert server.asked[-1]["model"] == ALIAS
    done = antiphon("chat", "--url", server.url, stdin=f"/model {ALIAS}\nHello?\n")
    assert done.returncode == 0 and f"{ALIAS} (current)" in done.stdout
    assert server.asked[-1]["model"] == ALIAS


def test_the_first_model_that_generates_is_asked(antiphon: Run):
    with standin() as server:
        server.models = (ENCODER, "good")
        assert antiphon("chat", "--url", server.url, stdin="Hello?\n").stdout == "one two three\n"
        refused = antiphon("chat", "--url", server.url, "--model", ENCODER, stdin="Hello?\n")
        assert refused.returncode == 1 and "encoder makes vectors or ranks documents" in refused.stderr
        server.models = (ENCODER,)
        none = antiphon("chat", "--url", server.url, stdin="Hello?\n")
        assert none.returncode == 1 and "has no model for chats: encoder" in none.stderr


def test_a_server_that_describes_no_model_is_asked_anyway(antiphon: Run):
    with standin() as server:
        server.cards = False
        for chosen in ((), ("--model", "good")):
            done = antiphon("chat", "--url", server.url, *chosen, stdin="Hello?\n")
            assert (done.stdout, done.stderr) == ("one two three\n", "")


def test_failed_answers_are_told_and_not_remembered(antiphon: Run, server: Standin):
    lines = ["Hello?", "/model cut", "Hello?", "/model long", "Hello?", "/model good", "Again?"]
    done = antiphon("chat", "--url", server.url, "--model", "error", stdin="\n".join(lines))
    assert done.returncode == 1
    assert [line.removeprefix("antiphon: ") for line in done.stderr.splitlines()] == [
        "the engine died",
        "the stream broke off before its end",
        "the prompt is too long. /new starts over.",
    ]
    assert [message["content"] for message in asked(server)] == ["Again?"]


@pytest.mark.parametrize("locale", ["C", pytest.param("C.UTF-8", marks=pytest.mark.soak)])
def test_what_is_no_utf_8_is_told_and_not_sent(tmp_path: Path, server: Standin, locale: str):
    before = len(server.asked)
    done = subprocess.run(
        [sys.executable, "-m", "antiphon", "chat", "--url", server.url],
        env=bare_environment() | {"LC_ALL": locale},
        cwd=tmp_path,
        input=b"caf\xe9\n/model \xe9\ncaf\xc3\xa9\n",
        capture_output=True,
        check=False,
        timeout=180,
    )
    assert (done.returncode, done.stdout) == (1, b"one two three\n")
    assert done.stderr.startswith(b"antiphon: this is not UTF-8, and was not sent: caf")
    assert asked(server)[-1]["content"] == "caf\u00e9"
    assert len(server.asked) == before + 1


@pytest.mark.parametrize("option", ["--model", "--system"])
def test_an_option_that_is_no_utf_8_is_told(antiphon: Run, server: Standin, option: str):
    done = antiphon("chat", "--url", server.url, option, os.fsdecode(b"caf\xe9"), stdin="Hello?\n")
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr


def test_an_answer_may_be_bounded(antiphon: Run, server: Standin):
    antiphon("chat", "--url", server.url, "--max-tokens", "7", stdin="Hello?\n")
    assert server.asked[-1]["max_tokens"] == 7
    antiphon("chat", "--url", server.url, stdin="Hello?\n")
    assert "max_tokens" not in server.asked[-1], "the rest of the context is the server's to say"


def test_an_answer_cannot_command_the_terminal(antiphon: Run, server: Standin):
    done = antiphon("chat", "--url", server.url, "--model", "escape", stdin="Hello?\n")
    assert done.stdout == "a\ufffd]52;c;ZXZpbA==\ufffdb\n\tc\n"


def test_where_the_operators_key_lies_is_said(antiphon: Run, tmp_path: Path):
    (tmp_path / "admin.key").write_text("ak-of-another-server")
    with standin(key="sesame sesame sesame") as server:
        done = antiphon("chat", "--url", server.url, stdin="", env={"ANTIPHON_HOME": str(tmp_path)})
    assert f"; the operator's is in {tmp_path / 'admin.key'}." in done.stderr
    assert "ak-of-another-server" not in done.stderr


@pytest.mark.timeout(480)
def test_chat_asks_its_own_server_with_the_operators_key(antiphon: Run, tmp_path: Path):
    """Of the demo model, by its name."""
    home = tmp_path / "home"
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home), "ANTIPHON_PORT": str(find_free_port())}
    provide_store(env)
    done = antiphon("chat", "--model", "cantor", "--max-tokens", "24", stdin="Who are you?\n", env=env)
    assert (done.returncode, done.stderr) == (0, "") and len(done.stdout.split()) > 2
    assert "cantor" in done.stdout
    key = (home / "admin.key").read_text().strip()
    assert key and key not in done.stdout


def test_a_key_that_is_missing_is_named(antiphon: Run):
    key = "sesame sesame sesame"
    with standin(key=key) as server:
        done = antiphon("chat", "--url", server.url, stdin="Hello?\n")
        assert done.returncode == 1
        assert done.stderr == "antiphon: no such key. Set ANTIPHON_API_KEY to a key of the server.\n"
        done = antiphon("chat", "--url", server.url, stdin="Hello?\n", env={"ANTIPHON_API_KEY": key})
        assert done.stdout == "one two three\n"


def test_the_server_of_the_settings_is_the_one_that_is_asked(antiphon: Run, server: Standin, tmp_path: Path):
    port = server.url.rpartition(":")[2]
    (tmp_path / "antiphon.toml").write_text(f"[server]\nport = {port}\n")
    assert antiphon("chat", stdin="Hello?\n").stdout == "one two three\n"


def test_in_a_terminal_ctrl_c_stops_the_answer_and_then_leaves(server: Standin, tmp_path: Path):
    server.left.clear()
    with open_screen("chat", "--url", server.url, cwd=tmp_path) as shown:
        shown.expect("good at http://127.0.0.1")
        shown.type("Helo?\x02\x02l\r")
        shown.expect("one two three")
        shown.expect("3 tokens")
        assert asked(server)[-1]["content"] == "Hello?"
        shown.type(UP + "\r")
        shown.expect("one two three")
        shown.type("/model endless\r")
        shown.expect("endless (current)")
        shown.type("Count.\r")
        shown.expect("on on on ")
        shown.type(CTRL_C)
        shown.expect("Ctrl-C again or Ctrl-D leaves")
        assert server.left.wait(PATIENCE), "the connection stays open, and the server computes on"
        shown.type("/model good\rWhat was that?\r")
        shown.expect("3 tokens")
        assert asked(server)[-2]["content"].startswith("on on on "), "what was said of it is remembered"
        shown.expect_prompt()
        shown.type(CTRL_C)
        shown.expect("Ctrl-C again or Ctrl-D leaves")
        shown.expect_prompt()
        shown.type(CTRL_C)
        assert shown.end() == 130


def test_ctrl_d_leaves(server: Standin, tmp_path: Path):
    with open_screen("chat", "--url", server.url, "--model", "thinks", cwd=tmp_path) as shown:
        shown.expect_prompt()
        shown.type("Why?\r")
        shown.expect("hmyes")
        shown.expect_prompt()
        shown.type(CTRL_D)
        assert shown.end() == 0


@pytest.mark.timeout(480)
def test_without_a_server_one_is_started_and_a_chat_that_is_killed_takes_it_along(tmp_path: Path):
    """tests/cli/test_models.py has the server of a chat that ends."""
    env = {"ANTIPHON_PORT": str(find_free_port())}
    with open_screen("chat", "--max-tokens", "8", cwd=tmp_path, env=env) as shown:
        shown.expect("starting a server for this chat")
        shown.expect("cantor at http://127.0.0.1")
        shown.type("Hello!\r")
        shown.expect("first after")
        tree = psutil.Process(shown.process.pid).children(recursive=True)
        assert len(tree) >= 3, "supervisor, HTTP process and engine host"
        os.kill(shown.process.pid, signal.SIGKILL)
        assert not psutil.wait_procs(tree, timeout=PATIENCE)[1]


def test_a_server_that_cannot_start_says_why(antiphon: Run):
    done = antiphon("chat", "--model", "missing.gguf", env={"ANTIPHON_PORT": str(find_free_port())})
    assert done.returncode == 1
    assert "no server could be started" in done.stderr and "missing.gguf" in done.stderr


def test_an_address_where_nobody_is_starts_no_server(antiphon: Run):
    done = antiphon("chat", "--url", f"http://127.0.0.1:{find_free_port()}", stdin="Hello?\n")
    assert done.returncode == 1 and "nothing answers at" in done.stderr and done.stdout == ""


def spoken() -> ChatHistory:
    chat = ChatHistory("cantor", system="Be brief.")
    chat.add_turn(Turn("user", "Hello?"), "Grüß Gott.")
    return chat


def test_a_question_comes_after_the_system_text_and_the_turns():
    assert spoken().build_request(Turn("user", "And?")) == {
        "model": "cantor",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello?"},
            {"role": "assistant", "content": "Grüß Gott."},
            {"role": "user", "content": "And?"},
        ],
    }
    assert ChatHistory("cantor").build_request(Turn("user", "Hi"))["messages"] == [
        {"role": "user", "content": "Hi"}
    ]


def test_a_chat_is_written_as_json_or_markdown_and_over_nothing(tmp_path: Path):
    spoken().save(tmp_path / "chat.json")
    spoken().save(tmp_path / "chat.md")
    messages = json.loads((tmp_path / "chat.json").read_text("utf-8"))["messages"]
    assert [*messages, {"role": "user", "content": "And?"}] == spoken().build_request(Turn("user", "And?"))[
        "messages"
    ]
    assert "**assistant**\n\nGrüß Gott." in (tmp_path / "chat.md").read_text("utf-8")
    with pytest.raises(FileExistsError):
        spoken().save(tmp_path / "chat.md")
