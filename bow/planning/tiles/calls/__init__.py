"""What computes the tiles of each kind of operator."""

from bow.planning.tiles.calls.layers import (
    BATCH_NORM,
    attention,
    call_by_name,
    counted_mean,
    cross_entropy,
    dropout,
    embedding,
    frozen_batch_norm,
    layer_norm,
    linear,
    log_softmax,
    lstm_cell,
    matmul,
    softmax,
)
from bow.planning.tiles.calls.shapes import concat, cut, expand, pad, permute, reshape, select, stack
from bow.planning.tiles.calls.tile import Call as Call
from bow.planning.tiles.calls.tile import LocalCall as LocalCall
from bow.planning.tiles.calls.tile import Operands as Operands
from bow.planning.tiles.calls.tile import Outputs as Outputs
from bow.planning.tiles.calls.tile import SummedCall as SummedCall
from bow.planning.tiles.calls.windows import adaptive_avg_pool, adaptive_max_pool, avg_pool, convolution, max_pool

CALLS: dict[str, Call] = {
    **{f"conv{n}d": convolution for n in (1, 2, 3)},
    **{f"max_pool{n}d": max_pool for n in (1, 2, 3)},
    **{f"avg_pool{n}d": avg_pool for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": adaptive_max_pool for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": adaptive_avg_pool for n in (1, 2, 3)},
    "linear": linear,
    "matmul": matmul,
    "attention": attention,
    "embedding": embedding,
    "lstm_cell": lstm_cell,
    "batch_norm": BATCH_NORM,
    "frozen_batch_norm": frozen_batch_norm,
    "layer_norm": layer_norm,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "cross_entropy": cross_entropy,
    "counted_mean": counted_mean,
    "pointwise": call_by_name,
    "reduction": call_by_name,
    "dropout": dropout,
    "concat": concat,
    "stack": stack,
    "pad": pad,
    "reshape": reshape,
    "permute": permute,
    "expand": expand,
    "slice": cut,
    "select": select,
}
"""By kind; operators of other kinds are whole, and called by their name."""


def call_of(kind: str) -> Call:
    """What computes tiles of a kind."""
    return CALLS.get(kind, call_by_name)
