"""The rules of the operators that bow knows how to split."""

from bow.planner.rule import Rule, Rules
from bow.planner.rules.attention import AttentionRule
from bow.planner.rules.convolution import ConvolutionRule
from bow.planner.rules.embedding import EmbeddingRule
from bow.planner.rules.joining import ConcatRule, StackRule
from bow.planner.rules.normalisation import BatchNormRule, FrozenBatchNormRule, LayerNormRule
from bow.planner.rules.padding import PadRule
from bow.planner.rules.pointwise import PointwiseRule
from bow.planner.rules.pooling import AdaptivePoolingRule, PoolingRule
from bow.planner.rules.products import LinearRule, MatmulRule
from bow.planner.rules.recurrent import LSTMCellRule
from bow.planner.rules.reduction import ReductionRule
from bow.planner.rules.reshape import ReshapeRule
from bow.planner.rules.softmax import CountedMeanRule, CrossEntropyRule, SoftmaxRule
from bow.planner.rules.viewing import ExpandRule, PermuteRule, SelectRule, SliceRule


def shipped_rules() -> list[Rule]:
    """One rule for each kind of operator that bow can split by itself."""
    return [
        *(ConvolutionRule(f"conv{n}d") for n in (1, 2, 3)),
        *(PoolingRule(f"{what}_pool{n}d") for what in ("max", "avg") for n in (1, 2, 3)),
        *(AdaptivePoolingRule(f"adaptive_{what}_pool{n}d") for what in ("max", "avg") for n in (1, 2, 3)),
        LinearRule("linear"),
        MatmulRule("matmul"),
        AttentionRule("attention"),
        EmbeddingRule("embedding"),
        LSTMCellRule("lstm_cell"),
        BatchNormRule("batch_norm"),
        FrozenBatchNormRule("frozen_batch_norm"),
        LayerNormRule("layer_norm"),
        SoftmaxRule("softmax"),
        SoftmaxRule("log_softmax"),
        CrossEntropyRule("cross_entropy"),
        CountedMeanRule("counted_mean"),
        PointwiseRule("pointwise"),
        PointwiseRule("dropout"),
        ConcatRule("concat"),
        StackRule("stack"),
        PadRule("pad"),
        ReductionRule("reduction"),
        ReshapeRule(),
        PermuteRule("permute"),
        ExpandRule("expand"),
        SliceRule("slice"),
        SelectRule("select"),
    ]


RULES = Rules()
"""The rules that capture, planner and runtime go by; `bow.tiles.register_rule` adds to them."""

for _rule in shipped_rules():
    RULES.register(_rule)
