"""A writer that is killed at any moment: whatever it was told is written comes into the database, once."""

import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from antiphon.ledger.drain import Drain
from antiphon.ledger.segments import list_segments
from tests.support.ledger_doubles import StoreDouble
from tests.support.waiting import PATIENCE

WRITER = """
import os, sys, time
from pathlib import Path
from antiphon.ledger.spool import Spool
from tests.support.ledger_doubles import build_completion, build_intent
from tests.support.waiting import wait_until
spool = Spool(Path(sys.argv[1]), 1024 * 1024 * 1024, 0.02)
spool.start()
first = int(sys.argv[2])
for number in range(first, first + 10_000_000):
    begun = build_intent(number, tags={"t": "x" * (number % 5000)})
    spool.begin(begun)
    os.write(1, b"+%d\\n" % number)
    spool.complete(build_completion(begun))
    os.write(1, b"=%d\\n" % number)
    wait_until(lambda: spool._spares)
"""


@pytest.mark.parametrize("beside", [True, False], ids=["read as it grows", "read afterwards"])
def test_a_killed_writer_loses_nothing_it_confirmed(tmp_path, beside):
    kept = StoreDouble()
    said: dict[str, str] = {}
    drain = Drain(tmp_path / "spool", kept)
    if beside:
        drain.start()
    for round_ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "spool"), str(round_ * 10_000_000)],
            stdout=subprocess.PIPE,
        )
        lines: list[bytes] = []
        reading = threading.Thread(target=lambda pipe=writer.stdout, into=lines: into.extend(pipe))
        reading.start()
        while len(lines) < 100:
            time.sleep(0.005)
            assert writer.poll() is None
        time.sleep(random.random() / 5)
        assert writer.poll() is None
        writer.send_signal(signal.SIGKILL)
        writer.wait(PATIENCE)
        reading.join()
        assert writer.stdout is not None
        writer.stdout.close()
        for line in lines:
            if line.endswith(b"\n"):
                said[f"{int(line[1:]):032x}"] = "ok" if line.startswith(b"=") else "begun"
    if not beside:
        drain.start()
    assert drain.drain_now(PATIENCE)
    assert drain.stop(PATIENCE)
    assert list_segments(tmp_path / "spool") == []
    for id_, how in said.items():
        assert kept.rows[id_].status in (("ok",) if how == "ok" else ("ok", "aborted"))
    ids = [id_ for batch in kept.added for id_ in batch]
    assert len(ids) == len(set(ids)) == len(kept.rows)
    assert len(kept.rows) - len(said) <= 4  # written, and killed before it could say so
