"""Threads by affinity, cores and quota; the environment of native code."""

import os
import sys
import threading
from pathlib import Path

import pytest

from antiphon.engines.llama.machine import (
    BoundThreads,
    choose_binding,
    choose_thread_count,
    count_cores,
    list_usable_cpus,
    prepare_environment,
)


@pytest.fixture
def machine(tmp_path: Path):
    """Two packages of two cores with two processors each, and no quota."""
    cpus, group = tmp_path / "cpu", tmp_path / "group"
    group.mkdir()
    for index in range(8):
        topology = cpus / f"cpu{index}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{index // 4}\n")
        (topology / "core_id").write_text(f"{index // 2 % 2}\n")
    return cpus, group


def test_threads_are_physical_cores(machine):
    cpus, group = machine
    assert choose_thread_count(cpus, group, allowed=range(8)) == 4
    assert choose_thread_count(cpus, group, allowed=[0, 1]) == 1
    assert choose_thread_count(cpus, group, allowed=[1, 2, 5]) == 3


def test_processors_of_unknown_topology_are_cores(tmp_path):
    assert choose_thread_count(tmp_path, tmp_path, allowed=range(3)) == 3


@pytest.mark.parametrize(
    ("limit", "threads"), [("max 100000", 4), ("150000 100000", 2), ("5000 100000", 1), ("x", 4)]
)
def test_a_control_groups_quota_is_kept(machine, limit, threads):
    cpus, group = machine
    (group / "cpu.max").write_text(limit)
    assert choose_thread_count(cpus, group, allowed=range(8)) == threads


@pytest.mark.parametrize(("quota", "threads"), [("-1", 4), ("300000", 3)])
def test_an_old_control_groups_quota_is_kept(machine, quota, threads):
    cpus, group = machine
    (group / "cpu").mkdir()
    (group / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (group / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert choose_thread_count(cpus, group, allowed=range(8)) == threads


def test_this_machine_has_at_least_one():
    assert 1 <= choose_thread_count() <= len(list_usable_cpus())


def test_waiting_threads_spin_shortly_unless_configured():
    said: list[dict[str, str]] = [{}, {"OMP_WAIT_POLICY": "passive"}]
    for environment in said:
        prepare_environment(environment)
        assert environment == {
            "OMP_WAIT_POLICY": "passive",
            "GOMP_SPINCOUNT": "1000",
            "GGML_NO_BACKTRACE": "1",
        }
    chosen = {"OMP_WAIT_POLICY": "active"}
    prepare_environment(chosen)
    assert chosen == {"OMP_WAIT_POLICY": "active", "GGML_NO_BACKTRACE": "1"}
    longer = {"GOMP_SPINCOUNT": "5"}
    prepare_environment(longer)
    assert longer["GOMP_SPINCOUNT"] == "5"


def test_threads_that_use_all_cores_are_bound(machine):
    cpus, group = machine
    bound = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
    assert choose_binding({}, None, cpus, group, range(8)) == bound
    assert choose_binding({"OMP_WAIT_POLICY": "active"}, 4, cpus, group, range(8)) == bound


def test_threads_that_leave_a_core_free_are_not_bound(machine):
    cpus, group = machine
    assert choose_binding({}, 3, cpus, group, range(8)) == {}
    assert choose_binding({}, 1, cpus, group, [0, 1]) == {}, "there is nothing to choose from"
    (group / "cpu.max").write_text("200000 100000")
    assert choose_binding({}, None, cpus, group, range(8)) == {}, "a quota names no cores"


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"])
def test_an_operators_binding_is_kept(machine, name):
    cpus, group = machine
    assert choose_binding({name: "false"}, None, cpus, group, range(8)) == {}


@pytest.mark.skipif(sys.platform != "linux" or count_cores() < 2, reason="needs two cores and Linux")
def test_bound_threads_may_move_while_they_compute_many_rows():
    usable, running, places = os.sched_getaffinity(0), threading.Event(), BoundThreads()
    ended = threading.Event()

    def compute() -> None:
        os.sched_setaffinity(0, {min(usable)})
        running.set()
        ended.wait(60)

    thread = threading.Thread(target=compute)
    thread.start()
    assert running.wait(60) and thread.native_id is not None
    try:
        places.place(1)
        assert os.sched_getaffinity(thread.native_id) == {min(usable)}
        for rows, cores in ((32, usable), (9, usable), (8, {min(usable)}), (1, {min(usable)}), (9, usable)):
            places.place(rows)
            assert os.sched_getaffinity(thread.native_id) == cores
    finally:
        ended.set()
        thread.join()
    places.place(1)  # a thread that has ended is no error


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_cores_that_are_taken_away_leave_a_thread_where_it_is():
    """As when the manager of a container gives its processors to another one."""
    usable, places = os.sched_getaffinity(0), BoundThreads()
    places._cores[threading.get_native_id()] = {4000}
    places.place(1)
    assert os.sched_getaffinity(0) == usable
