"""Measures the cost of a row in a ledger that already has many, with ids in order and with random ids.

python benchmarks/ledger_rows.py [--rows 200000] [--batches 20] [--keys 1] [--without user,model]

Each database of SQLite is filled first. Then the store adds batches of 300 rows, as the drain does four times
a second at 1,200 requests/s. Prints the median CPU time of the thread and the bytes that the process wrote
and read for one row. `--keys` spreads the rows over so many keys, a quarter as many users and a twentieth as
many projects. `--without` drops the indexes by these columns first.
"""

import argparse
import os
import secrets
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.domain.ledger import Entry, build_entry_id
from antiphon.domain.values import replace
from antiphon.store.database import Database
from antiphon.store.ledger import SqlEntries
from benchmarks.spool import build_completion, build_intent

FILL_BATCH = 5_000
BATCH = 300


def build_entries(begin: int, count: int, keys: int, in_order: bool) -> list[Entry]:
    """Builds entries of random keys that begin one millisecond after the other."""
    entries = []
    for number in range(begin, begin + count):
        entry, unique, key = (
            build_completion(build_intent(number)),
            secrets.token_hex(16),
            secrets.randbelow(keys),
        )
        entry = replace(
            entry,
            id=build_entry_id(entry.at, unique) if in_order else unique,
            key=f"key_{key:016x}",
            user=f"usr_{key // 4:016x}",
            project=f"prj_{key // 20:016x}",
        )
        entries.append(entry)
    return entries


def read_io() -> tuple[int, int]:
    """Returns the bytes that this process has written and read."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    values = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return values["wchar"], values["rchar"]


def main(rows: int, batches: int, keys: int, without: list[str]) -> None:
    print(f"{rows:,} rows of {keys} keys, indexes without {without or 'none'},")
    print(f"Python {sys.version.split()[0]}, load average {os.getloadavg()[0]:.1f}")
    for in_order in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            database = Database(f"sqlite:///{directory}/ledger.db")
            database.prepare()
            with database.writing() as connection:
                for column in without:
                    connection.exec_driver_sql(f"DROP INDEX ix_ledger_{column}_ledger_at")
            store = SqlEntries(database)
            for begin in range(0, rows, FILL_BATCH):
                store.add(build_entries(begin, FILL_BATCH, keys, in_order))
            times, written, read = [], 0, 0
            for number in range(batches):
                entries = build_entries(rows + number * BATCH, BATCH, keys, in_order)
                io_before, began = read_io(), time.thread_time()
                store.add(entries)
                times.append((time.thread_time() - began) / BATCH * 1e6)
                io_after = read_io()
                written, read = written + io_after[0] - io_before[0], read + io_after[1] - io_before[1]
            count = batches * BATCH
            name = "in order" if in_order else "random"
            print(
                f"{name:10}{statistics.median(times):7.1f} us a row (fastest batch {min(times):.1f}), "
                f"{written / count:8,.0f} bytes written, {read / count:7,.0f} read"
            )
            database.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000, help="rows before the measurement")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--keys", type=int, default=1)
    parser.add_argument("--without", default="", help="of key, user, project, model")
    options = parser.parse_args()
    main(options.rows, options.batches, options.keys, options.without.split(",") if options.without else [])
