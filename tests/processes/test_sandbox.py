"""The killable helper: hostile data costs a small process and two seconds; the function's words come back."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from antiphon.errors import ServerBusy, TemplateRefused
from antiphon.processes.sandbox import INTERPRETER_VARIABLES, ONE_THREAD, JobStopped, Limits, Stop, run_job
from antiphon.rendering.template.chat_template import SpecialTokens, build_proof
from tests.support.docs import ROOT
from tests.support.processes import descendants
from tests.support.waiting import await_until

PATIENCE = 40.0
"""Seconds for what may take the start of an interpreter and two seconds."""

SHORT = Limits(seconds=0.5, patience=1.0)
DEFAULT = Limits()
JOBS = "tests.processes.sandbox_jobs"


@pytest.fixture(autouse=True)
def find_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the helper process import the jobs, which are a module of the tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


async def stopped(target: str, limits: Limits = SHORT, **payload: object) -> Stop:
    """Why the job was stopped."""
    with pytest.raises(JobStopped) as raised:
        async with asyncio.timeout(PATIENCE):
            await run_job(f"{JOBS}:{target}", payload, limits)
    return raised.value.stop


def helpers() -> list[int]:
    """Helpers that live under this process."""
    return descendants(os.getpid(), "antiphon.processes.sandbox", recursive=False)


async def test_what_the_function_returns_comes_back() -> None:
    payload = {"text": "Grüße 😀 \ud83d\x00", "numbers": [1, 2.5, None, True], "nested": {"a": []}}
    assert await run_job(f"{JOBS}:return_payload", payload) == payload


async def test_what_the_function_refuses_comes_back_as_its_own_error() -> None:
    with pytest.raises(TemplateRefused, match="not these messages") as raised:
        await run_job(f"{JOBS}:refuse", {})
    assert raised.value.param == "messages"


@pytest.mark.parametrize(
    ("target", "why"), [("spin", Stop.TIME), ("spin_in_native_code", Stop.TIME), ("sleep", Stop.WAIT)]
)
async def test_a_job_that_never_ends_is_ended(target: str, why: Stop) -> None:
    begun = time.monotonic()
    assert await stopped(target, Limits(0.5, 1.0 if why is Stop.WAIT else PATIENCE)) is why
    assert time.monotonic() - begun >= SHORT.seconds
    assert helpers() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_helper_that_somebody_ends_says_nothing_of_its_data(number: signal.Signals) -> None:
    async with asyncio.TaskGroup() as group:
        stop = group.create_task(stopped("sleep", Limits(seconds=60, patience=60)))
        async with asyncio.timeout(PATIENCE):
            await await_until(helpers)
        os.kill(helpers()[0], number)
    assert stop.result() is Stop.WAIT


def test_only_a_job_that_waited_is_reported_as_a_busy_server() -> None:
    with pytest.raises(ServerBusy) as raised:
        JobStopped(Stop.WAIT, "it was not done after 20 s").raise_if_machine_was_busy()
    assert raised.value.retry_after and "20 s" in (raised.value.cause or "")
    for stop in set(Stop) - {Stop.WAIT}:
        JobStopped(stop, "the data's own fault").raise_if_machine_was_busy()


async def test_a_helper_that_cannot_start_does_not_blame_its_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", os.devnull)
    with pytest.raises(JobStopped, match="cannot be started") as raised:
        await run_job(f"{JOBS}:return_payload", {})
    assert raised.value.stop is Stop.WAIT


async def test_a_job_that_waits_for_the_machine_is_not_too_slow() -> None:
    assert await run_job(f"{JOBS}:sleep_briefly", {"seconds": 0.5}, Limits(seconds=0.2)) == "awake"


async def test_a_job_that_works_too_long_is_not_waited_for() -> None:
    begun = time.monotonic()
    assert await stopped("spin", Limits(seconds=0.5, patience=PATIENCE)) is Stop.TIME
    assert time.monotonic() - begun < PATIENCE


async def test_a_job_that_takes_all_memory_gets_none() -> None:
    assert await stopped("allocate_memory", DEFAULT) is Stop.MEMORY


async def test_a_job_that_says_too_much_is_not_heard_out() -> None:
    assert await stopped("return_large_result", Limits(output=1000)) is Stop.OUTPUT


@pytest.mark.parametrize("target", ["crash", "fail"])
async def test_a_job_that_dies_is_told_from_one_that_refuses(target: str) -> None:
    assert await stopped(target, DEFAULT) is Stop.CRASH


async def test_a_job_that_is_to_write_may(tmp_path: Path) -> None:
    path = tmp_path / "file"
    await run_job(f"{JOBS}:write_file", {"path": str(path)}, Limits(writes=1))
    assert path.stat().st_size == 1


async def test_a_job_cannot_write_files(tmp_path: Path) -> None:
    assert await stopped("write_file", DEFAULT, path=str(tmp_path / "file")) is Stop.CRASH
    assert not (tmp_path / "file").exists() or (tmp_path / "file").stat().st_size == 0


async def test_a_job_sees_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_API_KEY", "a canary that must not be seen")
    monkeypatch.setenv("VENDOR_API_KEY", "another")
    seen = await run_job(f"{JOBS}:list_environment", {})
    assert isinstance(seen, list)
    assert set(seen) <= INTERPRETER_VARIABLES | {"LC_CTYPE", *ONE_THREAD}
    more = await run_job(f"{JOBS}:list_environment", {}, variables={"HTTPS_PROXY": "http://proxy.example"})
    assert isinstance(more, list) and set(more) - set(seen) == {"HTTPS_PROXY"}, "but for what it is given"


async def test_a_caller_that_leaves_takes_the_helper_with_it() -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run_job(f"{JOBS}:sleep", {}, Limits(seconds=60)))
        async with asyncio.timeout(PATIENCE):
            await await_until(helpers)
        task.cancel()
    async with asyncio.timeout(PATIENCE):
        await await_until(lambda: not helpers())


@pytest.mark.parametrize(
    "steps", [pytest.param(at, marks=[] if at in (0, 2, 5) else pytest.mark.soak) for at in range(8)]
)
async def test_a_caller_that_leaves_at_the_start_leaves_no_helper(steps: int) -> None:
    """At each step of the event loop until the process runs, and a little later."""
    before = psutil.Process().children()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(run_job(f"{JOBS}:sleep", {}, Limits(seconds=60)))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
    assert set(psutil.Process().children()) <= set(before)


async def test_jobs_do_not_hold_up_the_event_loop() -> None:
    """The job lasts until it is cancelled."""
    async with asyncio.TaskGroup() as group:
        job = group.create_task(run_job(f"{JOBS}:sleep", {}, Limits(seconds=60, patience=60)))
        for _ in range(50):
            await asyncio.sleep(0.01)
            assert not job.done()
        job.cancel()


HONEST = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
HOSTILE = (
    "{{ ''.__class__.__mro__ }}",
    "{% for i in range(10**9) %}a{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10**9 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% set x = namespace(a='aaaa') %}{% for i in range(99999) %}{% set x.a = x.a ~ x.a %}{% endfor %}",
    "{{ messages.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "{% if %}",
)


async def proved(template: str, limits: Limits = DEFAULT) -> None:
    special = SpecialTokens(("<s>", "</s>"), "<s>", "</s>")
    async with asyncio.timeout(PATIENCE):
        await run_job(
            "antiphon.rendering.template.chat_template:prove", build_proof(template, special), limits
        )


async def test_an_honest_template_is_proved() -> None:
    await proved(HONEST)


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(template, id=str(at), marks=[] if at in (0, 1, 3) else pytest.mark.soak)
        for at, template in enumerate(HOSTILE)
    ],
)
async def test_a_hostile_template_is_refused_or_killed_in_time(template: str) -> None:
    with pytest.raises((TemplateRefused, JobStopped)) as raised:
        await proved(template, Limits(seconds=0.5))
    assert "0x7f" not in str(raised.value)
    assert os.sep + "usr" not in str(raised.value)
