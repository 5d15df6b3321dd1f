"""Rules of the operators that bow can split."""

from bow.planning.rules import layers, views
from bow.planning.rules.rule import Rule, Rules, WholeRule


def shipped_rules() -> list[Rule]:
    return [
        *(layers.ConvolutionRule(f"conv{n}d") for n in (1, 2, 3)),
        *(layers.PoolingRule(f"{what}_pool{n}d") for what in ("max", "avg") for n in (1, 2, 3)),
        *(layers.AdaptivePoolingRule(f"adaptive_{what}_pool{n}d") for what in ("max", "avg") for n in (1, 2, 3)),
        layers.LinearRule("linear"),
        layers.MatmulRule("matmul"),
        layers.AttentionRule("attention"),
        layers.EmbeddingRule("embedding"),
        layers.LSTMCellRule("lstm_cell"),
        layers.BatchNormRule("batch_norm"),
        layers.FrozenBatchNormRule("frozen_batch_norm"),
        layers.LayerNormRule("layer_norm"),
        layers.SoftmaxRule("softmax"),
        layers.SoftmaxRule("log_softmax"),
        layers.CrossEntropyRule("cross_entropy"),
        WholeRule("counted_mean"),
        views.PointwiseRule("pointwise"),
        views.PointwiseRule("dropout"),
        views.ConcatRule("concat"),
        views.StackRule("stack"),
        layers.PadRule("pad"),
        views.ReductionRule("reduction"),
        views.ReshapeRule(),
        views.PermuteRule("permute"),
        views.ExpandRule("expand"),
        views.SliceRule("slice"),
        views.SelectRule("select"),
    ]


RULES = Rules()  # default rules of capture, planner and runtime; extended by `bow.planning.tiles.register_rule`

for _rule in shipped_rules():
    RULES.register(_rule)
