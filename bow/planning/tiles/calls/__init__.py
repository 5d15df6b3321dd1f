"""What computes the tiles of each kind of operator."""

import torch
import torch.nn.functional as F

from bow.planning.tiles.calls import layers, windows
from bow.planning.tiles.calls.tile import Call as Call
from bow.planning.tiles.calls.tile import LocalCall as LocalCall
from bow.planning.tiles.calls.tile import Operands as Operands
from bow.planning.tiles.calls.tile import Outputs as Outputs
from bow.planning.tiles.calls.tile import SummedCall as SummedCall

CALLS: dict[str, Call] = {
    **{f"conv{n}d": windows.convolution for n in (1, 2, 3)},
    **{f"max_pool{n}d": windows.max_pool for n in (1, 2, 3)},
    **{f"avg_pool{n}d": windows.avg_pool for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": windows.adaptive_max_pool for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": windows.adaptive_avg_pool for n in (1, 2, 3)},
    "linear": layers.plain(F.linear),
    "matmul": layers.plain(torch.matmul),
    "attention": layers.attention,
    "embedding": layers.plain(F.embedding, "padding_idx"),
    "lstm_cell": layers.lstm_cell,
    "batch_norm": layers.BATCH_NORM,
    "frozen_batch_norm": layers.frozen_batch_norm,
    "layer_norm": layers.layer_norm,
    "softmax": layers.plain(torch.softmax, "dim"),
    "log_softmax": layers.plain(torch.log_softmax, "dim"),
    "cross_entropy": layers.cross_entropy,
    "counted_mean": layers.counted_mean,
    "pointwise": layers.call_by_name,
    "reduction": layers.call_by_name,
    "dropout": layers.dropout,
    "concat": layers.joined(torch.cat),
    "stack": layers.joined(torch.stack),
    "pad": layers.pad,
    "reshape": layers.reshape,
    "permute": layers.plain(torch.permute, "dims"),
    "expand": layers.expand,
    "slice": layers.cut,
    "select": layers.select,
}
"""By kind; operators of other kinds are whole, and called by their name."""


def call_of(kind: str) -> Call:
    return CALLS.get(kind, layers.call_by_name)
