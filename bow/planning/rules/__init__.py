"""The rules of the operators that bow knows how to split."""

from bow.planning.rules import images, products, views
from bow.planning.rules.rule import Rule, Rules


def shipped_rules() -> list[Rule]:
    """One rule for each kind of operator that bow can split by itself."""
    return [
        *(images.ConvolutionRule(f"conv{n}d") for n in (1, 2, 3)),
        *(images.PoolingRule(f"{what}_pool{n}d") for what in ("max", "avg") for n in (1, 2, 3)),
        *(images.AdaptivePoolingRule(f"adaptive_{what}_pool{n}d") for what in ("max", "avg") for n in (1, 2, 3)),
        products.LinearRule("linear"),
        products.MatmulRule("matmul"),
        products.AttentionRule("attention"),
        products.EmbeddingRule("embedding"),
        products.LSTMCellRule("lstm_cell"),
        images.BatchNormRule("batch_norm"),
        images.FrozenBatchNormRule("frozen_batch_norm"),
        images.LayerNormRule("layer_norm"),
        products.SoftmaxRule("softmax"),
        products.SoftmaxRule("log_softmax"),
        products.CrossEntropyRule("cross_entropy"),
        products.CountedMeanRule("counted_mean"),
        views.PointwiseRule("pointwise"),
        views.PointwiseRule("dropout"),
        views.ConcatRule("concat"),
        views.StackRule("stack"),
        images.PadRule("pad"),
        views.ReductionRule("reduction"),
        views.ReshapeRule(),
        views.PermuteRule("permute"),
        views.ExpandRule("expand"),
        views.SliceRule("slice"),
        views.SelectRule("select"),
    ]


RULES = Rules()  # the rules that capture, planner and runtime go by; `bow.planning.tiles.register_rule` adds to them

for _rule in shipped_rules():
    RULES.register(_rule)
