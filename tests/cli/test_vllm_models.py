"""A model that vLLM cannot serve is refused with one line, before a process is started."""

import sys

import pytest

import antiphon
from antiphon.cli.commands.serve import prepare_settings, size_model
from antiphon.cli.serve_options import ServeOptions
from antiphon.engines.vllm import environment
from antiphon.engines.vllm.environment import require_environment
from antiphon.errors import ModelFileError, SettingsError
from antiphon.settings.loading import build_model
from tests.support.vllm_folders import write_facts, write_few_weights


def serve(tmp_path, interpreter, path="."):
    file = tmp_path / "antiphon.toml"
    file.write_text(
        f'[[models]]\nname = "m"\nengine = "vllm"\npath = "{path}"\ninterpreter = "{interpreter}"\n'
    )
    prepare_settings(ServeOptions(config=file))


@pytest.mark.parametrize(
    ("interpreter", "reason"),
    [
        (sys.executable, "it has no vLLM"),
        ("/nowhere/python", "No such file or directory"),
        ("/bin/true", "it did not work as a Python"),
        ("/bin/false", "it did not work as a Python"),
    ],
)
def test_an_interpreter_without_vllm_is_refused(tmp_path, interpreter, reason):
    with pytest.raises(SettingsError) as refused:
        serve(tmp_path, interpreter)
    assert reason in refused.value.message and "run `make cluster`" in refused.value.message
    assert interpreter in refused.value.message and "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('{"vllm": "0.33.0", "missing": [], "antiphon": "0.1.0"}', "it has vLLM 0.33.0"),
        ('{"vllm": "0.32.0", "missing": ["torch"], "antiphon": "0.1.0"}', "it lacks torch"),
        ('{"vllm": "0.32.0", "missing": [], "antiphon": null}', "it has no Antiphon"),
        ('{"vllm": "0.32.0", "missing": [], "antiphon": "0.0.1"}', "it has Antiphon 0.0.1"),
    ],
)
def test_an_environment_of_another_version_is_refused(tmp_path, answer, reason):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(0o755)
    with pytest.raises(SettingsError, match=f"{reason}.*run `make cluster`"):
        require_environment("m", str(python))


@pytest.fixture
def with_vllm(tmp_path):
    """An interpreter that says that it has all."""
    python = tmp_path / "python"
    version = environment.VLLM_VERSION + "0"
    answer = f'{{"vllm": "{version}", "missing": [], "antiphon": "{antiphon.__version__}"}}'
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(0o755)
    return str(python)


def test_a_file_of_the_embedded_engine_is_refused(tmp_path, with_vllm):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match="is no folder"):
        serve(tmp_path, with_vllm, tmp_path / "model.gguf")


def test_a_folder_gets_its_own_context_length(tmp_path, with_vllm):
    folder = write_facts(tmp_path / "cantor")
    write_few_weights(folder)
    table = {"name": "m", "path": str(folder), "engine": "vllm", "interpreter": with_vllm}
    sized = size_model(build_model(table))
    assert (sized.context_length, sized.path) == (2048, str(folder))
    assert size_model(build_model(table | {"context_length": 64})).context_length == 64
    with pytest.raises(SettingsError, match="context length 4096 of m is more than the 2048"):
        size_model(build_model(table | {"context_length": 4096}))
