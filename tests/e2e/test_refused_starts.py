"""What cannot be served is refused at start: one line with the reason, a non-zero status."""

import os
import socket
import struct
from pathlib import Path

import pytest

from benchmarks.make_media_model import VisionShape, write_projector, write_text_model
from tests.e2e.refused_starts import refused, refused_process
from tests.support.commands import run_command
from tests.support.model_files import CANTOR


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (CANTOR.read_bytes()[:1_000_000] if CANTOR.exists() else b"", "ends before"),
        (CANTOR.read_bytes()[:40] if CANTOR.exists() else b"", ""),
        (b"PK\x03\x04" + bytes(1000), "not a GGUF"),
        (b"", ""),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60), ""),
        (b"GGUF" + struct.pack("<IQQ", 99, 1, 1) + bytes(100), "version"),
    ],
    ids=[
        "cut in the weights",
        "cut in the header",
        "a zip file",
        "empty",
        "huge counts",
        "a version of tomorrow",
    ],
)
def test_a_file_that_is_no_whole_model(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    line = refused("--model", str(path))
    assert "broken.gguf" in line and words in line


def test_a_model_that_is_not_there() -> None:
    assert "absent.gguf" in refused("--model", "absent.gguf")


def test_a_directory_instead_of_a_model(tmp_path: Path) -> None:
    assert str(tmp_path.name) in refused("--model", str(tmp_path))


@pytest.mark.soak
def test_a_library_that_is_not_there() -> None:
    """tests/engines/llama/test_loading.py loads none in its own process."""
    assert "absent.so" in refused_process(env={"ANTIPHON_ENGINE_LIBRARY": "/nowhere/absent.so"})


def test_a_library_that_is_something_else() -> None:
    import _ctypes

    path = _ctypes.__file__
    assert path in refused_process(env={"ANTIPHON_ENGINE_LIBRARY": path})


def test_a_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused_process("--port", port)
    assert port in line and "--port" in line


def test_an_open_address_without_a_key() -> None:
    assert "ANTIPHON_API_KEY" in refused("--host", "0.0.0.0")


def test_a_context_that_the_weights_were_not_made_for() -> None:
    assert "2048" in refused("--context-length", "4096")


THIRD = '[providers.third]\nkind = "openai"\nbase_url = "http://x/v1"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[hub]\ncache = "~nosuchuser/models"\n', "hub.cache in"),
        ('[lora]\ndirectories = ["/a", "~nosuchuser"]\n', "lora.directories[1] in"),
        ('[[models]]\nname = "a"\npath = "~nosuchuser/a.gguf"\n', "path of the model a begins"),
        (f'{THIRD}key = "file:~nosuchuser/key"\n', "key of providers.third begins"),
        ('[[models]]\nname = "a"\npath = "a\\u0000"\n', "path of the model a has a NUL"),
        (
            '[[models]]\nname = "a"\npath = "a"\ncells = 99999999999999999999\n',
            "cells of the model a is more than",
        ),
        (THIRD.replace("//x", "//a..b"), "providers.third.base_url has no usable host"),
        ('[tracing]\nendpoint = "http://xn--é.example"\n', "tracing.endpoint has no usable host"),
        (f"deep = {'[' * 5000}", "too many levels"),
        (f"long = {'1' * 5000}", "is not valid TOML"),
        (None, "it is not a regular file"),
    ],
)
def test_values_that_no_process_can_use(tmp_path: Path, text: str | None, said: str) -> None:
    """`serve` and `config` refuse them in the same line. None: the settings file is a FIFO."""
    path = tmp_path / "antiphon.toml"
    if text is None:
        os.mkfifo(path)
    else:
        path.write_text(text)
    assert said in refused("--config", str(path))
    shown = run_command("config", "--config", str(path), cwd=tmp_path)
    (line,) = shown.stderr.strip().splitlines()
    assert shown.returncode != 0 and said in line


def test_a_misspelt_setting(tmp_path: Path) -> None:
    path = tmp_path / "antiphon.toml"
    path.write_text("[server]\nprot = 1\n")
    assert "did you mean port" in refused("--config", str(path))


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b"GGUF", "cut short"), (b"text, no weights", "not a GGUF")],
    ids=["absent", "cut", "a text"],
)
def test_an_adapter_that_cannot_be_served(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "pirate.gguf"
    if content is not None:
        path.write_bytes(content)
    line = refused("--lora", f"pirate={path}", env={"ANTIPHON_HOME": str(tmp_path / "home")})
    assert "the adapter pirate" in line and words in line and "--lora" in line


def test_a_model_is_no_adapter(tmp_path: Path) -> None:
    line = refused("--lora", f"pirate={CANTOR}", env={"ANTIPHON_HOME": str(tmp_path / "home")})
    assert "not a LoRA adapter" in line


def test_an_adapter_of_the_models_own_name(tmp_path: Path) -> None:
    assert "two models or adapters" in refused("--lora", f"cantor={tmp_path}")


def test_a_registry_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    adapter = tmp_path / "pirate.gguf"
    adapter.touch()
    line = refused("--lora", f"p={adapter}", env={"ANTIPHON_LORA_REGISTRY": str(tmp_path / "file" / "x")})
    assert "ANTIPHON_LORA_REGISTRY" in line


def test_a_directory_of_adapters_that_is_not_there(tmp_path: Path) -> None:
    line = refused(env={"ANTIPHON_LORA_DIRECTORIES": str(tmp_path / "absent")})
    assert "absent" in line and "ANTIPHON_LORA_DIRECTORIES" in line
    assert "the root directory" in refused(env={"ANTIPHON_LORA_DIRECTORIES": "/"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("--host", "0.0.0.0"), "ANTIPHON_API_KEY", id="an open door"),
        pytest.param(("--context-length", "4096"), "2048", marks=pytest.mark.soak, id="too long a context"),
        pytest.param(("--model", __file__), "not a GGUF", marks=pytest.mark.soak, id="no model"),
    ],
)
def test_refusals_do_not_hang_on_assertions(arguments: tuple[str, ...], words: str) -> None:
    assert words in refused_process(*arguments, python=("-O",))


def test_a_projector_that_ends_the_engine_or_is_none(tmp_path: Path) -> None:
    model = write_text_model(tmp_path / "text.gguf", "gemma3")
    projector = write_projector(tmp_path / "killer.gguf", "gemma3", shape=VisionShape(merge=3))
    line = refused_process("--model", str(model), "--mmproj", str(projector))
    assert "ended with signal SIGABRT" in line and "projector killer.gguf" in line
    line = refused_process("--model", str(model), "--mmproj", str(model))
    assert line == "antiphon: text.gguf is no projector: it names no projector type."
    line = refused("--model", str(model), "--mmproj", str(tmp_path / "missing.gguf"))
    assert "there is no file" in line and "missing.gguf" in line


def test_a_spool_that_is_too_small_for_all_http_processes(tmp_path: Path) -> None:
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(tmp_path / "home"), "ANTIPHON_WORKERS": "17"}
    assert "17 workers need a spool of 71,303,168 bytes" in refused(env=env)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("name", "value", "setting"),
    [
        ("ANTIPHON_LIMITS_URL", "redis://127.0.0.1:1/0", "limits.url"),
        ("ANTIPHON_LIMITS_RESERVE_TOKENS", "8", "limits.reserve_tokens"),
        ("ANTIPHON_SPOOL_BYTES", "16777216", "ledger.spool_bytes"),
        ("ANTIPHON_STORE", "sqlite:///antiphon.db", "keys.store"),
        ("ANTIPHON_PEPPER", "ab" * 32, "keys.pepper"),
    ],
)
def test_settings_that_act_on_nothing_without_keys(name: str, value: str, setting: str) -> None:
    line = refused(env={name: value})
    assert f"the settings of {setting.partition('.')[0]} have no effect without keys" in line
    assert line.endswith(f"leave out {setting} ({name})") and value not in line
