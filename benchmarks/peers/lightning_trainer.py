"""Lightning: the plain fit loop of its Trainer, with what would cost time besides training switched off."""

import logging
import warnings
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.task import Job, Samples


def train(job: Job) -> None:
    """Train by `Trainer.fit`, on the same batches as plain PyTorch."""
    import lightning

    class Module(lightning.LightningModule):  # type: ignore[misc]
        """The model, as Lightning wants it."""

        def __init__(self) -> None:
            super().__init__()
            self.model = job.build()

        def training_step(self, batch: Samples, batch_index: int) -> Tensor:
            inputs, targets = batch
            return job.loss(self.model(inputs), targets)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return job.make_optimizer(self.parameters())

    class Watch(lightning.Callback):  # type: ignore[misc]
        """Has the model evaluated where that is due."""

        samples = 0

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Samples, batch_index: int) -> None:
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
        callbacks=[Watch()],
    )
    trainer.fit(Module(), train_dataloaders=job.batches())
