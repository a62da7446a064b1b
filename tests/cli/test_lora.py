"""`antiphon lora` as a user runs it: what it sends, and one line about what is wrong. With a real server it
is tested in tests/e2e/test_adapters.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.cli.commands.lora import UNLOAD_PATH, _parse_deployment, _to_absolute
from antiphon.cli.serve_options import BUNDLED_ADAPTERS, ServeOptions, parse_adapter
from antiphon.errors import SettingsError
from tests.cli.conftest import Run
from tests.cli.standin import Standin, standin

KEY = "canary-key-4f1d0c8e55"


@pytest.fixture
def server() -> Iterator[Standin]:
    with standin(KEY) as running:
        yield running


def test_without_adapters_it_says_how_to_load_one(antiphon: Run, server: Standin) -> None:
    ended = antiphon("lora", "list", "--url", server.url, env={"ANTIPHON_API_KEY": KEY})
    assert (ended.returncode, ended.stdout) == (
        0,
        "no adapter is loaded; antiphon lora add NAME=PATH loads one\n",
    )


@pytest.mark.parametrize("command", [("list",), ("add", "a=b"), ("remove", "a")])
def test_without_the_key_it_says_where_to_put_it(
    antiphon: Run, server: Standin, command: tuple[str, ...]
) -> None:
    ended = antiphon("lora", *command, "--url", server.url)
    assert ended.returncode == 1
    assert ended.stderr == "antiphon: no such key. Set ANTIPHON_API_KEY to the server's key.\n"


def test_what_is_no_adapter_is_told_before_anything_is_sent(antiphon: Run, server: Standin) -> None:
    for text in ("parrot", "parrot=", "=a.gguf"):
        ended = antiphon("lora", "add", text, "--url", server.url)
        assert ended.returncode == 1 and "NAME=PATH" in ended.stderr
    assert server.asked == []


def test_a_bundled_adapter_needs_only_its_name(tmp_path: Path) -> None:
    (tmp_path / "pirate.gguf").touch()
    assert parse_adapter("pirate", tmp_path) == {"name": "pirate", "path": str(tmp_path / "pirate.gguf")}
    assert parse_adapter("pirate=x.gguf", tmp_path) == {"name": "pirate", "path": "x.gguf"}
    with pytest.raises(SettingsError, match=r"NAME=PATH, not 'parrot'; .*: pirate"):
        parse_adapter("parrot", tmp_path)


def test_what_lies_on_the_hub_is_deployed_by_the_server() -> None:
    asked = {"model_name": "ada/pirate", "model_source": "HF_HUB"}
    assert _parse_deployment("hf:ada/pirate") == asked
    assert _parse_deployment("hf:ada/pirate@v2:sub/x.gguf") == asked | {
        "model_name": "ada/pirate:sub/x.gguf",
        "hf_revision": "v2",
    }


def test_without_a_server_it_says_so(antiphon: Run) -> None:
    ended = antiphon("lora", "list", "--url", "http://127.0.0.1:9")
    assert ended.returncode == 1 and "antiphon serve" in ended.stderr


def test_a_path_that_is_here_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.gguf").touch()
    assert _to_absolute("a.gguf") == str(tmp_path / "a.gguf")
    assert _to_absolute("elsewhere/a.gguf") == "elsewhere/a.gguf"


def test_names_say_what_is_unloaded(antiphon: Run, server: Standin) -> None:
    antiphon("lora", "remove", "pirate", "--url", server.url)
    assert server.asked == [{"lora_name": "pirate"}] and UNLOAD_PATH.endswith("unload_lora_adapter")


def test_an_adapter_of_the_settings_file_can_be_a_bundled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("antiphon.toml").write_text('[[adapters]]\nname = "parrot"\npath = "pirate"\n')
    assert [adapter.path for adapter in ServeOptions().load_settings().adapters] == [
        str(BUNDLED_ADAPTERS / "pirate.gguf")
    ]
    Path("pirate").touch()
    assert [adapter.path for adapter in ServeOptions().load_settings().adapters] == ["pirate"]
