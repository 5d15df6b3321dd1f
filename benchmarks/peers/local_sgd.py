"""accelerate's LocalSGD: processes that train by themselves, and average their weights every so many steps."""

import torch

from benchmarks.peers.task import Job

STEPS = 8  # Between two averagings, as in accelerate's guide


def train(job: Job) -> str:
    """Train as one of the processes; that of rank 0 has the clock and is evaluated."""
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True)
    model = job.build()
    model, optimizer = accelerator.prepare(model, job.make_optimizer(model.parameters()))
    samples = 0
    accelerator.wait_for_everyone()
    job.referee.start()  # again: before that, processes waited for each other to start
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=STEPS) as local_sgd:
        for step, (inputs, targets) in enumerate(job.batches(job.rank), 1):
            optimizer.zero_grad()
            accelerator.backward(job.loss(model(inputs), targets))
            optimizer.step()
            local_sgd.step()
            samples += len(targets) * accelerator.num_processes
            if step % STEPS == 0 and job.referee.is_due(samples) and _ends(job, model, samples):
                break
    return f"{accelerator.num_processes} processes"


def _ends(job: Job, model: torch.nn.Module, samples: int) -> bool:
    """What the process of rank 0 decides; the others wait for it."""
    is_over = job.referee.look(model, samples) if job.rank == 0 else job.referee.skip(samples)
    flag = torch.tensor(is_over)
    torch.distributed.broadcast(flag, src=0)
    return bool(flag)
