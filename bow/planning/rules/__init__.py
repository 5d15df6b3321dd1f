"""The rules of the operators that bow knows how to split."""

from bow.planning.rules.images import (
    AdaptivePoolingRule,
    BatchNormRule,
    ConvolutionRule,
    FrozenBatchNormRule,
    LayerNormRule,
    PadRule,
    PoolingRule,
)
from bow.planning.rules.products import (
    AttentionRule,
    CountedMeanRule,
    CrossEntropyRule,
    EmbeddingRule,
    LinearRule,
    LSTMCellRule,
    MatmulRule,
    SoftmaxRule,
)
from bow.planning.rules.rule import Rule, Rules
from bow.planning.rules.views import (
    ConcatRule,
    ExpandRule,
    PermuteRule,
    PointwiseRule,
    ReductionRule,
    ReshapeRule,
    SelectRule,
    SliceRule,
    StackRule,
)


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


RULES = Rules()  # the rules that capture, planner and runtime go by; `bow.planning.tiles.register_rule` adds to them

for _rule in shipped_rules():
    RULES.register(_rule)
