"""Models side by side as PyTorch's tutorial on model ensembling has them: `stack_module_state` and `vmap`."""

import copy

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from benchmarks.peers.task import Job

MODELS = 2


def train(job: Job) -> str:
    """Train independent models at once, on batches of their own; samples are those that each of them sees."""
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
