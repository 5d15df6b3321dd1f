"""Modules, data and callbacks of Lightning, beside its own trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

import bow
from benchmarks.models import let_torchvision_be_imported
from bow.errors import SettingError
from bow.observe import read_records

let_torchvision_be_imported()  # which Lightning imports where it is there
pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings("ignore")

INPUTS = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(24) % 3
EPOCHS = 3


@pytest.fixture(scope="module")
def pl() -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lightning.pytorch as pl
    return pl


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(INPUTS, LABELS), batch_size=4)


@pytest.fixture
def kinds(pl: Any) -> Any:
    """Module and data module, as users write them."""

    class Net(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, kind: str = "plain") -> None:
            super().__init__()
            self.save_hyperparameters()
            torch.manual_seed(0)
            self.kind = kind
            self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layers(inputs)  # type: ignore[no-any-return]

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            inputs, targets = batch
            outputs = self(inputs)
            loss = cross_entropy(outputs, targets)
            self.log("train_loss", loss, prog_bar=True)
            self.log_dict({"train_acc": (outputs.argmax(1) == targets).float().mean()}, on_epoch=True)
            return {"loss": loss} if self.kind == "groups" else loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            inputs, targets = batch
            self.log("val_loss", cross_entropy(self(inputs), targets), batch_size=len(inputs))

        def configure_optimizers(self) -> Any:
            if self.kind == "plain":
                return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            first, others = self.layers[0].parameters(), self.layers[2].parameters()
            optimizer = torch.optim.AdamW([{"params": first, "lr": 0.01}, {"params": others}], lr=0.03)
            if self.kind == "epoch":
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]
            if self.kind == "step":
                scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=9)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
            return optimizer

    class Data(pl.LightningDataModule):  # type: ignore[misc,name-defined]
        def setup(self, stage: str) -> None:
            self.stage = stage

        def train_dataloader(self) -> Any:
            assert self.stage == "fit"
            return loader()

        def val_dataloader(self) -> Any:
            return loader()

    return Net, Data


def trained(module: Any, data: Any, path: Path, **settings: Any) -> bow.Result:
    given = {"learners": 1, "engine": "eager", "devices": "cpu", "epochs": EPOCHS, **settings}
    return bow.lightning.train(module, data, run=bow.Run(path / "run", progress=False), **given)  # type: ignore[no-any-return]


def by_lightning(pl: Any, module: Any, data: Any, *callbacks: Any) -> Any:
    trainer = pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, callbacks=list(callbacks),
    )  # fmt: skip
    trainer.fit(module, data)
    return trainer


@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize("kind", ["plain", "groups", "epoch", "step"])
def test_one_learner_is_what_lightnings_trainer_comes_to(
    kind: str, engine: str, pl: Any, kinds: Any, tmp_path: Path
) -> None:
    net, data = kinds
    result = trained(net(kind), data(), tmp_path, engine=engine)
    expected = net(kind)
    trainer = by_lightning(pl, expected, data())
    assert result.engine == engine
    assert type(result.model) is net
    for own, other in zip(result.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)
    assert result.metrics["val_loss"] == pytest.approx(float(trainer.callback_metrics["val_loss"]), rel=1e-5)
    assert result.metrics["loss"] == result.metrics["val_loss"]
    assert result.metrics["train_acc"] == pytest.approx(float(trainer.callback_metrics["train_acc"]), rel=1e-5)


def test_what_training_steps_log_is_the_mean_that_lightning_has(pl: Any, kinds: Any, tmp_path: Path) -> None:
    net, _ = kinds

    def training_step(self: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        outputs = self(inputs)
        self.log("acc", (outputs.argmax(1) == targets).float().mean(), on_step=True, on_epoch=True)
        self.log("largest", outputs.max(), on_epoch=True)
        return cross_entropy(outputs, targets)

    made, data = type("Logging", (net,), {"training_step": training_step}), DataLoader(TensorDataset(INPUTS, LABELS), 7)
    result = trained(made(), data, tmp_path, validation=loader())
    module = made()
    trainer = by_lightning(pl, module, data)  # whose last batch has three samples, which count as three
    for name in ("acc", "largest"):
        assert result.metrics[f"train_{name}"] == pytest.approx(float(trainer.callback_metrics[name]), rel=1e-5)
    records = read_records(result.run_dir / "metrics.jsonl")
    assert [each["train_acc"] for each in records if each["kind"] == "epoch"] == [
        e["train_acc"] for e in result.history
    ]
    stop = pl.callbacks.EarlyStopping("acc", min_delta=10.0, patience=1, mode="max")
    assert trained(made(), data, tmp_path / "b", validation=loader(), callbacks=[stop], epochs=9).stopped == "patience"


def test_learners_side_by_side_learn(kinds: Any, tmp_path: Path) -> None:
    net, _ = kinds
    module = net()
    before = module.layers[0].weight.clone()
    result = trained(module, (INPUTS, LABELS), tmp_path, learners=2, batch_size=4, epochs=20, validation=loader())
    assert result.metrics["val_loss"] < result.history[0]["val_loss"] < 1.2
    assert torch.equal(module.layers[0].weight, before)


def test_callbacks_hear_of_rounds_epochs_and_values(pl: Any, kinds: Any, tmp_path: Path) -> None:
    heard: list[Any] = []

    class Listening(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            heard.append(("start", type(pl_module).__name__, trainer.max_epochs))

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            heard.append(("batch", batch_idx, trainer.global_step))

        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            heard.append(("validation", trainer.current_epoch, sorted(trainer.callback_metrics)))

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.should_stop = trainer.current_epoch == 1

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            heard.append(("end", trainer.global_step))

    net, data = kinds
    result = trained(net(), data(), tmp_path, callbacks=[Listening()])
    names = ["train_acc", "train_loss", "val_loss"]
    assert [each for each in heard if each[0] != "batch"] == [
        ("start", "Net", EPOCHS), ("validation", 0, names), ("validation", 1, names), ("end", 12),
    ]  # fmt: skip
    assert [each[1:] for each in heard if each[0] == "batch"] == [(index, index + 1) for index in range(12)]
    assert len(result.history) == 2


def test_callbacks_are_told_of_all_the_epochs_that_a_round_completes(pl: Any, kinds: Any, tmp_path: Path) -> None:
    heard: list[Any] = []

    class Counting(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            heard.append((trainer.current_epoch, trainer.global_step))

    data = DataLoader(TensorDataset(INPUTS, LABELS), batch_sampler=BatchSampler(range(24), 4, drop_last=False))
    trained(kinds[0](), data, tmp_path, callbacks=[Counting()], learners=12, epochs=6)
    assert heard == [(0, 0), (2, 1), (4, 2)]


def test_callbacks_hear_of_every_epoch_of_a_training_in_steps(pl: Any, kinds: Any, tmp_path: Path) -> None:
    heard: list[Any] = []

    class Counting(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            heard.append((trainer.max_epochs, trainer.current_epoch, trainer.global_step))

    net, data = kinds
    trained(net(), data(), tmp_path, callbacks=[Counting()], steps=18)  # rounds, six of which are an epoch
    assert heard == [(-1, 0, 0), (-1, 1, 6), (-1, 2, 12)]
    trainer = pl.Trainer(max_steps=18, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, callbacks=[Counting()])  # fmt: skip
    trainer.fit(net(), data())
    assert heard[3:] == heard[:3]


def test_the_loss_that_a_module_logs_is_not_that_of_the_validation_data(pl: Any, kinds: Any, tmp_path: Path) -> None:
    heard: list[Any] = []

    class Listening(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            heard.append((trainer.callback_metrics.get("loss"), trainer.callback_metrics["val_loss"]))

    def training_step(self: Any, batch: Any) -> Tensor:
        loss = cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        return loss

    net, data = kinds
    trained(changed(net, training_step=training_step), data(), tmp_path, callbacks=[Listening()], epochs=1)
    ((loss, validation_loss),) = heard
    assert loss is None
    assert validation_loss > 0


def test_early_stopping_is_bows(pl: Any, kinds: Any, tmp_path: Path) -> None:
    net, data = kinds
    stop = pl.callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=1)
    result = trained(net(), data(), tmp_path, callbacks=[stop], epochs=9)
    assert (result.stopped, len(result.history)) == ("patience", 2)


def test_callbacks_count_epochs_and_rounds_on_where_a_training_resumes(pl: Any, kinds: Any, tmp_path: Path) -> None:
    heard: list[Any] = []

    class Counting(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            heard.append((trainer.current_epoch, trainer.global_step))

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            heard.append((trainer.current_epoch, trainer.global_step))

    net, data = kinds
    run = bow.Run(tmp_path / "run", progress=False, checkpoint_every=6, resume="auto")
    for epochs in (2, 4):
        bow.lightning.train(
            net(), data(), callbacks=[Counting()], epochs=epochs, learners=1, engine="eager", devices="cpu", run=run
        )
    assert heard == [(0, 0), (0, 6), (1, 12), (2, 12), (2, 18), (3, 24)]


def on_a_plateau(top: dict[str, Any], **settings: Any) -> Any:
    def configure_optimizers(self: Any) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, **settings} if settings else scheduler,
        } | top

    return configure_optimizers


@pytest.mark.parametrize(
    ("top", "settings", "validates", "supported"),
    [
        ({"monitor": "val_acc"}, {}, True, "monitor='val_loss'"),
        ({"monitor": "val_loss"}, {}, True, None),
        ({}, {"monitor": "loss"}, True, "monitor='val_loss'"),
        ({}, {"monitor": "val_loss", "interval": "step"}, True, "monitor='loss' or 'train_loss'"),
        ({}, {"monitor": "val_loss"}, False, "monitor='loss' or 'train_loss'"),
        ({}, {"monitor": "loss"}, False, None),
        ({}, {"monitor": "train_loss", "interval": "step"}, True, None),
    ],
)
def test_a_plateau_is_of_the_value_that_is_monitored(
    top: dict[str, Any], settings: dict[str, Any], validates: bool, supported: str | None, kinds: Any, tmp_path: Path
) -> None:
    net, data = kinds
    module = changed(net, configure_optimizers=on_a_plateau(top, **settings))
    given = data() if validates else loader()
    if supported is None:
        trained(module, given, tmp_path)
        return
    with pytest.raises(SettingError, match=f"unsupported scheduler settings.*monitor.*; supported: .*{supported}"):
        trained(module, given, tmp_path)


def changed(net: Any, **methods: Any) -> Any:
    return type("Changed", (net,), methods)()


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"automatic_optimization": False}, "automatic_optimization=False"),
        ({"on_train_epoch_end": lambda self: None}, "has on_train_epoch_end, which"),
        ({"optimizer_step": lambda self, *given: None}, "has optimizer_step, which"),
        ({"training_step": lambda self, batch, batch_idx: self.layers(batch[0]).sum() * (batch_idx % 2)}, "batch_idx"),
        ({"training_step": lambda self, batch: self.layers(batch[0]).sum() * self.current_epoch}, "current_epoch"),
        ({"training_step": lambda self, batch: {"other": batch[0]}}, "training_step returned no loss"),
        ({"validation_step": lambda self, batch: None}, "validation_step returned no loss; return it, or log it"),
        (
            {"validation_step": lambda self, batch: self.log_dict({"b_loss": 1.0, "a_loss": 2.0})},
            "validation_step logs b_loss, a_loss, which is ambiguous",
        ),
        ({"training_step": lambda self, batch: self.log("a", 1.0, reduce_fx="sum")}, "logged with reduce_fx='sum'"),
        (
            {"validation_step": lambda self, batch: self.log("val_loss", 1.0, batch_size=3)},
            "logged with batch_size=3, and its mean is over samples, of which the batch has 4; leave batch_size out",
        ),
        (
            {"configure_optimizers": lambda self: [torch.optim.SGD(self.parameters()) for _ in "ab"]},
            "returned 2 optimi",
        ),
        ({"configure_optimizers": lambda self: self.trainer.max_steps}, "configure_optimizers fails"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_taken_over_is_refused_by_name(
    methods: dict[str, Any], message: str, kinds: Any, tmp_path: Path
) -> None:
    net, data = kinds
    with pytest.raises(SettingError, match=message):
        trained(changed(net, **methods), data(), tmp_path)


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_a_metric_is_logged_as_a_value_of_the_batch(engine: str, kinds: Any, tmp_path: Path) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    accuracy, (net, data) = torchmetrics.classification.MulticlassAccuracy(3, average="micro"), kinds

    def stateful(self: Any, batch: Any) -> Tensor:
        self.log("acc", accuracy)
        return cross_entropy(self(batch[0]), batch[1])

    def of_the_batch(self: Any, batch: Any) -> Tensor:
        inputs, targets = batch
        outputs = self(inputs)
        self.log("acc", torchmetrics.functional.accuracy(outputs, targets, task="multiclass", num_classes=3))
        return cross_entropy(outputs, targets)

    with pytest.raises(SettingError, match=r"'acc' is a stateful metric, .*torchmetrics\.functional"):
        trained(changed(net, training_step=stateful), data(), tmp_path, engine=engine)
    validation = bow.Validation(loader(), metrics=[accuracy])
    with pytest.raises(SettingError, match=r"metrics=.* would not be computed: .* in a LightningModule's validation_"):
        trained(changed(net, training_step=of_the_batch), data(), tmp_path, engine=engine, validation=validation)
    module = changed(net, training_step=of_the_batch, validation_step=of_the_batch)
    result = trained(module, data(), tmp_path, engine=engine, epochs=1)
    with torch.no_grad():
        expected = accuracy(result.model(INPUTS), LABELS)
    assert result.metrics["acc"] == pytest.approx(float(expected))
    assert 0 <= result.metrics["train_acc"] <= 1


def test_callbacks_and_arguments_that_cannot_be_taken_over_are_refused(pl: Any, kinds: Any, tmp_path: Path) -> None:
    net, data = kinds
    with pytest.raises(SettingError, match="ModelCheckpoint writes Lightning checkpoints"):
        trained(net(), data(), tmp_path, callbacks=[pl.callbacks.ModelCheckpoint()])
    with pytest.raises(SettingError, match="takes optimizer from the module"):
        trained(net(), data(), tmp_path, optimizer=torch.optim.SGD)
    with pytest.raises(SettingError, match="module must be a LightningModule, got Linear"):
        trained(nn.Linear(2, 2), data(), tmp_path)
    with pytest.raises(SettingError, match="Net has no train_dataloader; pass data="):
        trained(net(), None, tmp_path)

    class Curious(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.strategy  # noqa: B018

    with pytest.raises(SettingError, match=r"trainer\.strategy, which bow\.lightning\.train does not have"):
        trained(net(), data(), tmp_path, callbacks=[Curious()])

    class Accumulating(pl.Callback):  # type: ignore[misc,name-defined]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.accumulate_grad_batches = 4

    with pytest.raises(
        SettingError, match=r"sets trainer\.accumulate_grad_batches, which bow\.lightning\.train does not"
    ):
        trained(net(), data(), tmp_path, callbacks=[Accumulating()])
    unheard = pl.callbacks.LambdaCallback(on_train_batch_start=print, on_train_epoch_end=print)
    with pytest.raises(SettingError, match="LambdaCallback has on_train_batch_start, which"):
        trained(net(), data(), tmp_path, callbacks=[unheard])
    with pytest.raises(SettingError, match=r"EarlyStopping monitors 'loss'.*; monitor 'val_loss' or 'train_loss'"):
        trained(net(), data(), tmp_path, callbacks=[pl.callbacks.EarlyStopping("loss")])
