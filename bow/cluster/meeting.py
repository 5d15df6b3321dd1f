"""Who trains together finds each other, although those of an earlier attempt may have left traces where they meet."""

import json
import time
import uuid
from collections.abc import Callable

from torch.distributed import Store  # type: ignore[attr-defined]

from bow.errors import ClusterError

POLL_S = 0.05


def meet(store: Store, rank: int, size: int, within_s: float, failure: Callable[[], str | None] = lambda: None) -> str:
    """Wait until all have come, and agree on a prefix for keys that nobody has used before.

    torchrun keeps its store when it starts processes again, and so do several trainings of one script: what lies there
    may be of those before. Rank 0 calls the roll of the tokens that it finds, and calls it anew when one has changed;
    the others answer only to a roll with their own token.
    """
    token, give_up = uuid.uuid4().hex, time.monotonic() + within_s
    store.set(_hello(rank), token)
    called, name = [""] * size, ""
    while True:
        if rank == 0:
            tokens = [token, *(_read(store, _hello(other)) for other in range(1, size))]
            if tokens != called and all(tokens):
                called, name = tokens, uuid.uuid4().hex
                store.set("bow/roll", json.dumps({"name": name, "tokens": tokens}))
            if name and all(_read(store, f"bow/{name}/here/{other}") for other in range(1, size)):
                store.set(f"bow/{name}/go", "1")
                break
        else:
            roll = json.loads(_read(store, "bow/roll") or "{}")
            if roll and len(roll["tokens"]) == size and roll["tokens"][rank] == token:
                name = roll["name"]
                store.set(f"bow/{name}/here/{rank}", "1")
                if _read(store, f"bow/{name}/go"):
                    break
        if (why := failure()) is not None:
            raise ClusterError(why)
        if time.monotonic() > give_up:
            absent = [other for other in range(size) if rank == 0 and not _read(store, _hello(other))]
            who = f"rank {absent[0]}" if absent else "one of the other processes" if rank == 0 else "rank 0"
            raise ClusterError(f"{who} did not come within {within_s:.0f} s; look at its output")
        time.sleep(POLL_S)
    return f"bow/{name}"


def _hello(rank: int) -> str:
    return f"bow/hello/{rank}"


def _read(store: Store, key: str) -> str:
    """What lies there; empty where nothing does."""
    return store.get(key).decode() if store.check([key]) else ""
