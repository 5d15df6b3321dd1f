"""A batch in parts, and parameter groups by name, beside the loop that one writes without bow."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import closing

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import bow
from bow.engines.task import parts_of
from bow.errors import SettingError
from tests.training.blueprints import Behind, Data, Train, dealt

SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def close(one: nn.Module, other: nn.Module, rtol: float = 1e-5) -> None:
    for name, value in other.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name], value, rtol=rtol, atol=1e-7)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


def accumulated(data: Data, parts: int) -> nn.Module:
    """The plain loop over parts of batches of 10, the last of which has 8 samples."""
    model = net()
    optimizer = SGD(model.parameters())
    for inputs, labels in dealt(data, 10, epochs=2):
        for part in torch.arange(len(inputs)).tensor_split(parts):
            (cross_entropy(model(inputs[part]), labels[part]) * len(part) / len(inputs)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize("engine", ["eager", "graph", "streams"])
def test_a_batch_in_parts_is_the_loop_that_accumulates_and_the_whole_batch_to_rounding(
    train: Train, data: Data, engine: str
) -> None:
    settings = {"learners": 1, "batch_size": 10, "epochs": 2, "optimizer": SGD}
    result = train(net(), data, engine=bow.Engine(engine, accumulate=3), **settings)  # type: ignore[arg-type]
    assert result.engine == engine
    close(result.model, accumulated(data, 3), rtol=1e-6)
    whole = train(net(), data, engine=engine, run_dir=None, **settings)
    close(result.model, whole.model)
    assert result.history[-1]["train_loss"] == pytest.approx(whole.history[-1]["train_loss"], rel=1e-5)


def test_metrics_of_a_step_are_means_over_the_parts(train: Train, data: Data) -> None:
    def step(model: nn.Module, batch: Data) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = model(batch[0])
        some = {"some": torch.tensor(3.0)} if batch[1].any() else {"others": torch.tensor(4.0)}
        return cross_entropy(outputs, batch[1]), {"mean": outputs.mean(), **some}

    seen: dict[int, list[float]] = {1: [], 4: []}
    for parts, means in seen.items():
        engine = bow.Engine("eager", accumulate=parts)
        keep = Behind(lambda run, means=means: means.extend(run.replicas.last.metrics["mean"].tolist()))
        result = train(net(), data, step=step, engine=engine, callbacks=[keep], run_dir=None, validation=data)
    assert seen[1] == pytest.approx(seen[4], rel=1e-4, abs=1e-6)
    assert result.history[-1]["train_some"] == pytest.approx(3.0)  # though not all parts have it


def test_what_is_kept_for_the_backward_pass_is_that_of_a_part(train: Train, data: Data) -> None:
    sizes: list[list[int]] = []

    def step(model: nn.Module, batch: Data) -> Tensor:
        kept: list[int] = []
        sizes.append(kept)

        def keep(tensor: Tensor) -> Tensor:
            kept.extend(tensor.shape[:1])
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            return cross_entropy(model(batch[0]), batch[1])

    train(net(), data, step=step, engine=bow.Engine("eager", accumulate=4), batch_size=16, steps=1, learners=1)
    assert [max(kept) for kept in sizes[-4:]] == [8] * 4  # the layers' width, and not the batch's 16


def test_dropout_draws_anew_in_every_part(train: Train) -> None:
    seen: list[Tensor] = []

    def step(model: nn.Module, batch: Data) -> Tensor:
        outputs = nn.functional.dropout(model(batch[0]), 0.5)
        seen.append(outputs.detach() == 0)
        return outputs.square().mean()

    data = torch.ones(16, 5), torch.zeros(16)
    train(nn.Linear(5, 64), data, step=step, engine=bow.Engine("eager", accumulate=2), batch_size=16, learners=1)
    assert not torch.equal(seen[-1], seen[-2])


def test_members_take_parts(train: Train, data: Data) -> None:
    engine = bow.Engine("eager", accumulate=2)
    run = bow.Run(train(net(), data).run_dir / "sweep", progress=False)
    swept = bow.sweep(net, data, cross_entropy, variants=bow.grid(seed=[0, 1]), optimizer=SGD, engine=engine, run=run)
    torch.set_num_threads(1)
    alone = train(net, data, engine=engine, learners=1, batch_size=16, optimizer=SGD, seed=1, run_dir=None)
    assert swept[1].model is not None
    close(swept[1].model, alone.model, rtol=0)


def test_more_parts_than_samples_are_as_many_as_samples() -> None:
    assert [share for _, share in parts_of({"x": torch.ones(2, 3), "scale": torch.ones(())}, 5)] == [0.5, 0.5]


def test_parts_that_cannot_be_are_refused(train: Train, data: Data) -> None:
    with pytest.raises(SettingError, match="accumulate must be a whole number of at least 1, got 0"):
        bow.Engine("graph", accumulate=0)
    with pytest.raises(SettingError, match=r'accumulate=2 takes .* engine "fused" cannot vectorise'):
        bow.Engine("fused", accumulate=2)


def by_name(named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    named = list(named)
    decayed = [p for name, p in named if name.endswith("weight") and not name.startswith("1.")]
    others = [p for name, p in named if not (name.endswith("weight") and not name.startswith("1."))]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.003}], lr=0.01)


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_groups_by_name_are_those_of_the_plain_loop(train: Train, data: Data, engine: str) -> None:
    result = train(net(), data, optimizer=by_name, learners=1, engine=engine, epochs=2, batch_size=8)
    model = net()
    optimizer = by_name(model.named_parameters())
    for inputs, labels in dealt(data, 8, epochs=2):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    close(result.model, model)


def test_torchs_own_pairs_work_and_resume(train: Train, data: Data) -> None:
    settings = {"optimizer": lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9), "checkpoint_every": 4}
    whole = train(net(), data, epochs=2, run_dir=None, **settings)
    train(net(), data, epochs=1, **settings)
    close(train(net(), data, epochs=2, resume="auto", **settings).model, whole.model, rtol=0)
    close(whole.model, train(net(), data, epochs=2, optimizer=SGD, run_dir=None).model, rtol=0)


def test_partials_are_asked_by_what_is_left(train: Train, data: Data) -> None:
    def make(scale: float, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for _, p in named_parameters], lr=scale)

    expected = train(net(), data, optimizer=functools.partial(torch.optim.SGD, lr=0.1), run_dir=None)
    close(train(net(), data, optimizer=functools.partial(make, 0.1)).model, expected.model, rtol=0)


def test_members_have_groups_by_name(train: Train, data: Data) -> None:
    run = bow.Run(train(net(), data).run_dir / "sweep", progress=False)
    swept = bow.sweep(
        net, data, cross_entropy, variants=bow.grid(seed=[0, 1]), optimizer=by_name, engine="eager", run=run
    )
    torch.set_num_threads(1)
    alone = train(net, data, optimizer=by_name, learners=1, batch_size=16, seed=0, run_dir=None)
    assert swept[0].model is not None
    close(swept[0].model, alone.model, rtol=0)


class Mixed(nn.Module):
    """A head in float32, whatever autocast says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(5, 64), nn.Linear(64, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.body(inputs).float()
        with torch.autocast("cpu", enabled=False):
            return self.head(hidden)  # type: ignore[no-any-return]


def test_gradients_in_float32_stay_in_float32_where_batches_come_in_parts(data: Data) -> None:
    gradients = []
    for parts in (1, 2):
        engine = bow.Engine("eager", precision="bfloat16", accumulate=parts)
        with closing(bow.Replicas(Mixed(), cross_entropy, learners=1, engine=engine, optimizer=SGD)) as replicas:
            replicas.round([tuple(each[:10] for each in data)])
            gradients.append(replicas.G[0, 64 * 6 : 64 * 6 + 64 * 3].clone())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
