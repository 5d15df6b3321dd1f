"""Many proposals on random graphs and topologies: all algorithms give the same timeline, to the nanosecond.

Usage: python -m tests.planning.many_proposals [PROPOSALS [SEED]]
"""

import random
import sys
import time

from tests.planning.proposal_chains import check_chain

PROPOSALS = 10_000
REPORT_S = 10.0


def main(proposals: int = PROPOSALS, seed: int = 0) -> None:
    start = told = time.monotonic()
    done = chains = 0
    while done < proposals:
        try:
            done += check_chain(random.Random(seed + chains))
        except AssertionError as error:
            raise SystemExit(f"chain {seed + chains} differs: {error}") from error
        chains += 1
        if time.monotonic() - told > REPORT_S:
            told = time.monotonic()
            print(f"{done} proposals, {told - start:.0f} s", flush=True)
    print(f"{done} proposals in {chains} chains agree, {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
