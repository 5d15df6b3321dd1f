"""PyTorch with large batches.

References:
    Goyal et al., Accurate, large minibatch SGD: training ImageNet in 1 hour, 2017.
"""

from benchmarks.peers.plain import run
from benchmarks.peers.task import Job

WARM_UP_EPOCHS = 0.5


def train(job: Job) -> None:
    """Train with a learning rate that warms up linearly from 0."""
    warm_up = WARM_UP_EPOCHS * len(job.data.train[1])
    batch_size, lr = job.choice.batch_size, job.choice.lr
    run(job, job.build(), rate=lambda samples: lr * min(1.0, (samples + batch_size) / warm_up))
