import torch

from bow.planning.placement.policy import LOG_SCALE, MOST_SIZES, OperationEmbedding, Operations

GRAPH = Operations(
    ("embedding", "linear", "linear"),
    (((7, 3),), ((15,), (1, 31)), ((63,),)),
    ((0, 1), (0, 2), (1, 2)),
    num_devices=2,
)


def test_an_operation_is_its_kind_its_sizes_and_its_neighbours() -> None:
    embedding = OperationEmbedding(GRAPH, kind_size=2)
    vectors = embedding().detach()
    kinds, sizes, inputs, outputs = vectors.split([2, 3, 3, 3], dim=1)
    assert embedding.size == vectors.shape[1]
    torch.testing.assert_close(sizes * LOG_SCALE, torch.tensor([[3.0, 2, 0], [4, 1, 5], [6, 0, 0]]))
    assert inputs.tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    assert outputs.tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]
    assert kinds[1].equal(kinds[2])
    assert not kinds[0].equal(kinds[1])


def test_the_vector_of_a_kind_is_learned_and_the_graph_is_not() -> None:
    embedding = OperationEmbedding(GRAPH, kind_size=2)
    assert [name for name, _ in embedding.named_parameters()] == ["of_kind.weight"]
    assert list(embedding.state_dict()) == ["of_kind.weight"]


def test_long_lists_of_outputs_are_cut() -> None:
    graph = Operations(("split",), (((2,),) * 100,), (), 2)
    assert OperationEmbedding(graph, kind_size=1).size == 1 + MOST_SIZES + 2
