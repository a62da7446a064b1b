"""The Makefile, asked what it would do."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make(*words: str, **variables: str) -> str:
    """What make prints, without the options of the make that may run these tests."""
    env = {"PATH": os.environ["PATH"], **variables}
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout


def test_help_is_the_default_and_names_every_target():
    text = (ROOT / "Makefile").read_text("utf-8")
    (listed,) = re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    shown = re.findall(r"^  make ([\w-]+) +\S", make(), re.MULTILINE)
    assert sorted(shown) == sorted(set(listed.split()) - {"system", "extras", "installed"})


def test_serve_takes_host_port_and_further_arguments():
    told = make("--dry-run", "serve", "HOST=0.0.0.0", "PORT=8123", "ARGS=--model a.gguf")
    assert re.search(r"antiphon serve --host 0\.0\.0\.0 --port 8123 --model a\.gguf\n", told)


def test_serve_leaves_what_is_not_given_to_the_settings():
    assert make("--dry-run", "serve").split()[-3:] == ["serve", "--model", "demo"]
    assert make("--dry-run", "serve", "MODEL=cantor").split()[-2:] == ["--model", "cantor"]
    assert make("--dry-run", "serve", MODEL="cantor").split()[-2:] == ["--model", "cantor"]
    assert make("--dry-run", "serve", MODEL="gpt-4o").split()[-2:] == ["--model", "demo"], "another program's"


def test_knowledge_serves_minilm_beside_what_is_served_anyway(tmp_path):
    def serve(*words: str) -> str:
        return make("--dry-run", "serve", "EXTRAS=knowledge", *words).splitlines()[-1].partition("serve")[2]

    assert serve().split() == ["--model", "demo", "--model", "minilm"]
    assert serve("MODEL=cantor").split() == ["--model", "cantor", "--model", "minilm"]
    assert serve("ARGS=--model a.gguf").split() == ["--model", "a.gguf", "--model", "minilm"]
    assert serve("ARGS=--model a.gguf --model minilm").split() == ["--model", "a.gguf", "--model", "minilm"]
    assert serve("ARGS=--config a.toml").split() == ["--config", "a.toml"]
    (tmp_path / "antiphon.toml").write_text("")
    assert serve(f"ANTIPHON_HOME={tmp_path}").split() == []
    assert "name minilm there" in make("--dry-run", "serve", "EXTRAS=knowledge", f"ANTIPHON_HOME={tmp_path}")


def test_an_extra_that_is_not_known_is_named():
    command = ["make", "--dry-run", "serve", "EXTRAS=knowledge nonsense"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        "EXTRAS takes knowledge native documents media oidc otlp postgresql prices ray redis, not nonsense"
        in done.stderr
    )


def test_serve_installs_the_chosen_extras_from_their_locks():
    told = make("--dry-run", "--always-make", "serve", "EXTRAS=documents redis")
    locks = re.findall(r"--require-hashes --requirement requirements/(\w+)\.txt\n", told)
    assert locks == ["pip", "serve", "documents", "redis"]
    assert "-m venv --without-pip .venv" in told
    assert "requirements/documents" not in make("--dry-run", "--always-make", "serve")


def test_serve_has_the_library_built_if_you_ask_for_it():
    assert "scripts/build-native .venv" in make("--dry-run", "--always-make", "serve", "EXTRAS=native")


def test_serve_looks_at_the_machine_before_it_installs():
    told = make("--dry-run", "--always-make", "serve")
    steps = [
        told.index(step) for step in ("scripts/check-system", "-m venv", "--require-hashes", "antiphon serve")
    ]
    assert steps == sorted(steps)


def test_tests_get_every_client_from_its_lock_and_serve_none():
    told = make("--dry-run", "--always-make", "test")
    for client in ("fireworks", "fireworks-client", "jamai", "sgp", "sdks", "pydantic-ai", "vendors", "node"):
        environment = f"--python .venvs/{client}/bin/python"
        assert re.search(rf"{environment} install .*--require-hashes .*requirements/{client}\.txt\n", told)
    assert re.search(r"npm-cli\.js.* --ignore-scripts ci\n", told)
    assert ".venvs" not in make("--dry-run", "--always-make", "serve")


def test_what_tests_import_is_compiled_before_the_first_of_them():
    told = make("--dry-run", "--always-make", "test")
    for client in ("fireworks", "fireworks-client", "jamai", "sgp", "sdks", "pydantic-ai", "vendors"):
        made, imported = (
            told.index(f"requirements/{client}.txt\n"),
            f'.venvs/{client}/bin/python -W ignore -c "import ',
        )
        assert made < told.index(imported)
    assert told.index("--collect-only") < told.index("-m pytest -n auto")


def test_quick_needs_no_client_and_names_what_it_leaves_out():
    told = make("--dry-run", "--always-make", "quick")
    assert ".venvs" not in told
    ran = re.findall(r" tests/([\w/]+)", told)
    ignored = re.findall(r" --ignore=tests/(\S+)", told)
    (left_out,) = re.findall(r"Left out: ([\w/. ]+)", told)
    assert ignored and all((ROOT / "tests" / each).is_file() and each in left_out.split() for each in ignored)
    named = {*ran, *left_out.split()}
    assert len(named) == len(ran) + len(left_out.split())
    for file in (ROOT / "tests").rglob("test_*.py"):
        folder = file.parent.relative_to(ROOT / "tests")
        assert folder in (Path(), Path("engines")) or named & {
            folder.as_posix(),
            *(each.as_posix() for each in folder.parents),
        }, file


def test_a_native_build_without_a_compiler_says_what_to_install(tmp_path):
    env = {"PATH": os.environ["PATH"], "CXX": "no-such-compiler"}
    command = [ROOT / "scripts" / "build-native", tmp_path]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and list(tmp_path.iterdir()) == []
    assert "apt-get install --yes g++" in done.stderr


def test_a_native_build_finds_rocm_by_its_variable(tmp_path):
    rocm, environment = tmp_path / "rocm", tmp_path / "environment"
    tools = environment / "native" / "bin"
    (rocm / "bin").mkdir(parents=True)
    tools.mkdir(parents=True)
    for file, lines in (
        (rocm / "bin" / "hipconfig", 'echo "found$1"'),
        (tools / "python", 'echo "$HIPCXX $HIP_PATH"; exit 1'),
    ):
        file.write_text(f"#!/bin/sh\n{lines}\n")
        file.chmod(0o755)
    command = [ROOT / "scripts" / "build-native", environment]
    env = {"PATH": os.environ["PATH"], "BACKEND": "rocm", "CC": "true", "CXX": "true"}
    absent = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert absent.returncode == 1 and "hipconfig is not here" in absent.stderr
    env["ROCM_PATH"] = str(rocm)
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert found.stdout == "found-l/clang found-R\n"


def test_a_native_build_for_cuda_can_be_for_other_machines(tmp_path):
    """The build of the image: a toolkit, no driver, and a processor that is not the server's."""
    environment, toolkit = tmp_path / "environment", tmp_path / "cuda"
    for file, lines in (
        (toolkit / "bin" / "nvcc", ""),
        (environment / "native" / "bin" / "python", 'echo "$CMAKE_ARGS $*"'),
        (environment / "bin" / "python", ""),
    ):
        file.parent.mkdir(parents=True)
        file.write_text(f"#!/bin/sh\n{lines}\n")
        file.chmod(0o755)
    command = [ROOT / "scripts" / "build-native", environment]
    env = {"PATH": os.environ["PATH"], "BACKEND": "cuda", "CC": "true", "CXX": "true"}
    env |= {"CUDA_HOME": str(toolkit), "CMAKE_ARGS": "-DX=Y", "GGML_NATIVE": "OFF"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    (build,) = (line for line in done.stdout.splitlines() if " wheel " in line)
    assert build.startswith("-DGGML_CUDA=ON -DX=Y ")
    assert "cmake.define.GGML_NATIVE=OFF" in build
    del env["GGML_NATIVE"]
    environment.joinpath("native", "bin").mkdir(parents=True)
    environment.joinpath("native", "bin", "python").symlink_to("/bin/echo")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "cmake.define.GGML_NATIVE=ON" in done.stdout


def test_the_gate_runs_check_then_tests_and_forbids_skips():
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert lines[-3:] == ["export ANTIPHON_TEST_REQUIRE=all", "make check", "make test"]


def test_the_tests_that_targets_choose_or_leave_out_exist():
    for target in ("quick", "clients"):
        (told,) = re.findall(r"-m pytest -n auto (.*)", make("--dry-run", target))
        named = re.findall(r"(?<![\w/])tests/[\w/.-]+", told)
        assert len(named) > 4 and [name for name in named if not (ROOT / name).exists()] == [], target
