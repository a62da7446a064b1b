"""`python -m antiphon.cli.tied ARGUMENTS`: the `antiphon` command, ended when its standard input ends.

Whoever holds the other end of that pipe takes the server with it, also when it is killed.
"""

import os
import signal
import threading

from antiphon.cli.main import main


def end_with_input() -> None:
    """Waits for the end of standard input, then asks this process to stop."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_with_input, daemon=True).start()
    main()
