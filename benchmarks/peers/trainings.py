"""Training functions of the contestants; those that other benchmarks also time are in `benchmarks.trainings`."""

import copy
import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

import bow
from benchmarks.harness import counted
from benchmarks.peers.referee import Referee, Watch
from benchmarks.peers.task import Job
from benchmarks.trainings import (
    WARM_UP,
    Data,
    GraphedTraining,
    PlainTraining,
    StepTraining,
    Training,
    compiled_step,
)
from bow.devices import cuda_device
from bow.training import train as train_learners
from bow.tuner.config import Objective, Tuner

if TYPE_CHECKING:
    from bow.training.run import TrainingLoop

LOCAL_STEPS = 8  # between two averagings of LocalSGD, as in accelerate's guide
MODELS = 2  # of an ensemble
WARM_UP_EPOCHS = 0.5  # with large batches


def plain(job: Job, compile: str | None = None) -> PlainTraining:
    """Plain PyTorch, or with a compiled model; the optimizer is not compiled."""
    return PlainTraining(job.build(), job.loss, job.batches(), job.make_optimizer, compile)


def train(job: Job) -> None:
    follow(job, plain(job))


def train_channels_last(job: Job) -> None:
    """With weights and images in `torch.channels_last`."""
    model = job.build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    follow(job, PlainTraining(model, job.loss, job.batches(is_last=True), job.make_optimizer))


def train_compiled(job: Job) -> None:
    """With `torch.compile`."""
    follow(job, plain(job, "default"))


def train_step(job: Job) -> None:
    """With a compiled function of weights, momenta and a batch: the whole step."""
    model = job.build()
    follow(job, StepTraining(model, job.batches(), compiled_step(model, job.loss, job.choice.lr)))


def train_graphed(job: Job) -> None:
    """Plain PyTorch with the whole step as one CUDA graph."""
    device = cuda_device(torch.device("cuda", 0))
    training = GraphedTraining(device, lambda: plain(job))
    with device.issuing():
        follow(job, training, WARM_UP * job.choice.batch_size)


def train_large_batch(job: Job) -> None:
    """With linear warm-up of the learning rate from 0.

    References:
        Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour, 2017.
    """
    warm_up, training = WARM_UP_EPOCHS * len(job.data.train[1]), plain(job)
    batch_size, lr = job.choice.batch_size, job.choice.lr

    def set_rate(samples: int) -> None:
        training.optimizer.param_groups[0]["lr"] = lr * min(1.0, (samples + batch_size) / warm_up)

    follow(job, training, before=set_rate)


def follow(job: Job, training: Training, samples: int = 0, before: Callable[[int], None] | None = None) -> None:
    """Train until the referee stops; `before` is called with the number of samples before every step."""
    while not job.referee.ends(training.model, samples):
        if before is not None:
            before(samples)
        samples += training()
    training.close()


def train_ensemble(job: Job) -> str:
    """Independent models at once, each on its own batches, as in PyTorch's tutorial on model ensembling.

    Samples are counted per model.
    """
    models = [job.build(1000 * index + job.task.seed) for index in range(MODELS)]
    parameters, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")
    optimizer = job.make_optimizer(parameters.values())

    def outputs_of(parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(skeleton, (parameters, buffers), (inputs,))
        return outputs

    def losses_of(parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return job.loss(outputs_of(parameters, buffers, inputs), targets)

    def predict(images: Tensor) -> Tensor:
        skeleton.eval()
        outputs = vmap(outputs_of, in_dims=(0, 0, None))(parameters, buffers, images)
        skeleton.train()
        return outputs.softmax(-1).mean(0)

    samples = 0
    for batches in zip(*(job.batches(stream) for stream in range(MODELS)), strict=True):
        inputs, targets = (torch.stack(tensors) for tensors in zip(*batches, strict=True))
        optimizer.zero_grad()
        losses: Tensor = vmap(losses_of)(parameters, buffers, inputs, targets)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        samples += targets.shape[1]
        if job.referee.ends(predict, samples):
            break
    return f"{MODELS} models, samples of each"


def train_lightning(job: Job) -> None:
    """With `Trainer.fit`, on the same batches as plain PyTorch; features that would cost time are disabled."""
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        """The model as a LightningModule."""

        def __init__(self) -> None:
            super().__init__()
            self.model = job.build()

        def training_step(self, batch: Data, batch_index: int) -> Tensor:
            inputs, targets = batch
            return job.loss(self.model(inputs), targets)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return job.make_optimizer(self.parameters())

    class Observer(lightning.Callback):  # type: ignore[misc]
        """Evaluates the model when it is due."""

        samples = 0

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Data, batch_index: int) -> None:
            self.samples += len(batch[1])
            if job.referee.ends(module.model, self.samples):
                trainer.should_stop = True

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    trainer = lightning.Trainer(
        accelerator="cpu" if job.task.device == "cpu" else "gpu",
        devices=1,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Observer()],
    )
    trainer.fit(Module(), train_dataloaders=job.batches())


def train_local_sgd(job: Job) -> str:
    """As one of accelerate's processes, which average their weights; rank 0 has the clock and is evaluated."""
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True)
    model = job.build()
    model, optimizer = accelerator.prepare(model, job.make_optimizer(model.parameters()))
    samples = 0
    accelerator.wait_for_everyone()
    job.referee.start()  # restart: processes waited for each other
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=LOCAL_STEPS) as local_sgd:
        for step, (inputs, targets) in enumerate(job.batches(job.rank), 1):
            optimizer.zero_grad()
            accelerator.backward(job.loss(model(inputs), targets))
            optimizer.step()
            local_sgd.step()
            samples += len(targets) * accelerator.num_processes
            if step % LOCAL_STEPS == 0 and job.referee.is_due(samples) and _ends(job, model, samples):
                break
    return f"{accelerator.num_processes} processes"


def _ends(job: Job, model: torch.nn.Module, samples: int) -> bool:
    """Rank 0 decides; the others wait for its decision."""
    is_over = job.referee.look(model, samples) if job.rank == 0 else job.referee.skip(samples)
    flag = torch.tensor(is_over)
    torch.distributed.broadcast(flag, src=0)
    return bool(flag)


def train_bow(job: Job, objective: Objective = "throughput") -> str:
    """With `bow.train`, as a user calls it, with the number of learners for the highest throughput."""
    task, watch = job.task, BowWatch(job.referee)
    with tempfile.TemporaryDirectory() as folder:
        result = train_learners(
            job.build(),
            job.data.train,
            job.loss,
            optimizer=job.make_optimizer,
            batch_size=job.choice.batch_size,
            epochs=task.epochs,
            devices="cuda" if task.device == "cuda" else "cpu",
            # The tuner measures in every training: choices cached on disk are not used.
            learners=Tuner(objective=objective, cache=False),
            validation=bow.Validation(job.data.validation, metrics=(watch,), every=task.evaluate_every),
            callbacks=(watch,),
            run=bow.Run(Path(folder) / "run", progress=False),
            seed=task.seed,
        )
    return f"{result.engine}, {counted(result.learners, 'learner')}"


def train_for_goodput(job: Job) -> str:
    """With the number of learners for the highest goodput: throughput times statistical efficiency."""
    return train_bow(job, "goodput")


class BowWatch(Watch):
    """The common metric: bow's own evaluation calls it, so it stops the clock itself."""

    def __init__(self, referee: Referee) -> None:
        self._referee = referee
        self._run: TrainingLoop | None = None
        super().__init__()

    def on_train_start(self, run: "TrainingLoop") -> None:
        self._run = run

    def reset(self) -> None:
        super().reset()
        if self._run is not None:
            self._referee.pause()

    def compute(self) -> float:
        accuracy = super().compute()
        if self._run is not None:
            if self._referee.note(self._run.samples, accuracy, self.is_finite):
                self._run.stop()
            self._referee.resume()
        return accuracy
