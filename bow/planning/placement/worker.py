"""What a worker runs: `python -m bow.planning.placement.worker`, with its job and then placements on standard input."""

import os
import pickle
import select
import signal
import sys
import threading


def end_with_starter() -> None:
    """End this process as soon as the one that started it is gone, whatever it is doing then.

    The other end of the standard input is in that process; it is closed when it dies, of whatever.
    """
    hung_up = select.poll()
    hung_up.register(sys.stdin.fileno(), 0)  # that nobody writes any more is told in any case

    def wait() -> None:
        hung_up.poll()
        os._exit(0)

    threading.Thread(target=wait, name="bow-end-with-starter", daemon=True).start()


def main() -> None:
    """Say that it is ready, then answer every placement with its time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; who started this one ends it
    end_with_starter()
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anybody prints is no message
        sys.path[:] = pickle.load(sys.stdin.buffer)
        evaluate = pickle.load(sys.stdin.buffer)
        message: float | bool | None = True
        while True:
            pickle.dump(message, out)
            out.flush()
            try:
                placement = pickle.load(sys.stdin.buffer)
            except EOFError:  # nobody needs it any more, or who did is gone
                return
            (message,) = evaluate([placement])


if __name__ == "__main__":
    main()
