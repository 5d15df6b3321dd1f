"""What the paper states in its text, figure by figure: plain data.

Only numbers that its text gives are here; what its plots show beyond that is not. Where a value is a quotient, both
numbers that it is made of are stated beside it.

References:
    Budea: TensorBow, supporting small-batch training in TensorFlow, 2019, chapter 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Measure: TypeAlias = Literal["samples_per_s", "time_s", "epochs"]

# Which of our measurements: values of its fields. A batch size may be a word: the "best" one, "half" of that, or the
# "small" one
Pick: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Ratio:
    """Which of our measurements is divided by which."""

    of: Pick
    over: Pick
    measure: Measure = "samples_per_s"


@dataclass(frozen=True)
class Range:
    """The time to the target with batch sizes from `low` to `high`: the longest over the shortest."""

    low: int
    high: int


# What of ours stands beside a statement
Question: TypeAlias = Ratio | Range | Literal["best batch size", "reached", "never reached"]


@dataclass(frozen=True)
class Statement:
    """One thing that the paper says."""

    what: str  # was measured, in the words of this project
    value: str  # as the paper gives it
    ours: Question | None = None  # what stands beside it; None where there is no counterpart


@dataclass(frozen=True)
class Characteristics:
    """A row of Table 5.1."""

    model: str
    data: str
    data_mb: float
    model_mb: float
    operators: int


HARDWARE = (
    "4 NVIDIA GeForce GTX Titan X (Pascal) of 12 GB on PCIe 3.0 x16, 2 Intel Xeon E5-2640 v4, CUDA 10.0, "
    "TensorFlow 1.12 (section 5.1)"
)

SETUPS: dict[str, str] = {
    "5.1": "ResNet-32 on CIFAR-10, TensorFlow on 1 GPU, to 80% test accuracy within 80 epochs",
    "5.2": "the trainings of figure 5.1",
    "5.3": "LeNet on MNIST, TensorFlow on 1 GPU, to 99% test accuracy within 100 epochs",
    "5.4": "LeNet on MNIST, 1 GPU, to 99% test accuracy",
    "5.5": "the trainings of figure 5.4",
    "5.6": "logistic regression on MNIST, batch 16, 1 GPU, no synchronisation",
    "5.7": "ResNet-32, batch 32, 1 GPU, no synchronisation, 5 runs",
    "5.8": "LeNet, batch 32, 1 GPU, no synchronisation, 5 runs",
    "5.9": "ResNet-32, batch 32, 1 to 4 GPUs",
    "5.10": "ResNet-32, 1 GPU",
    "5.11": "LeNet, 1 GPU",
    "5.12": "ResNet-32, 1 GPU",
    "5.13": "ResNet-32, 2 GPUs",
    "table5.1": "MNIST and CIFAR-10; operators of TensorFlow's dataflow graph",
}

PLAIN: Pick = {"system": "pytorch"}
ONE, TWO, THREE, FOUR = ({"learners": learners} for learners in (1, 2, 3, 4))
SMA, ALONE = {"sync": "SMA"}, {"sync": "independent"}


def on(devices: int, learners: int) -> Pick:
    """So many learners on each of so many devices."""
    return {"devices": devices, "learners": learners}


STATEMENTS: dict[str, tuple[Statement, ...]] = {
    "5.1": (
        Statement("best batch size", "256", "best batch size"),
        Statement("batch sizes that never reach the target", "1,024", "never reached"),
        Statement("time with batch sizes 128 to 512", "approximately the same", Range(128, 512)),
    ),
    "5.2": (
        Statement(
            "throughput of batch 1,024 over batch 256",
            "1.10 (3,300 over 3,000 images/s, both \u201caround\u201d)",
            Ratio({"batch_size": 1024}, {"batch_size": 256}),
        ),
        Statement("batch sizes that never reach the target", "1,024", "never reached"),
    ),
    "5.3": (
        Statement("best batch size", "16", "best batch size"),
        Statement(
            "time with half the best batch size over the best",
            "1.74 (934 s over 536 s)",
            Ratio({"batch_size": "half"}, {"batch_size": "best"}, "time_s"),
        ),
        Statement("batch sizes that reach the target", "only 8 and 16 (caption)", "reached"),
        Statement("batch sizes that never reach the target", "all above 16", "never reached"),
    ),
    "5.4": (
        Statement(
            "time of bow, 1 learner, over plain, both with the best batch size",
            "almost identical",
            Ratio({"learners": 1, "batch_size": "best"}, {**PLAIN, "batch_size": "best"}, "time_s"),
        ),
        Statement(
            "time of bow, 3 learners and small batch, over plain with the best batch size",
            "0.71 (382 s over 536 s)",
            Ratio({"learners": 3, "batch_size": "small"}, {**PLAIN, "batch_size": "best"}, "time_s"),
        ),
        Statement(
            "time of bow, 3 learners, over 1 learner, both with the small batch",
            "below 1, not stated as a number",
            Ratio({"learners": 3, "batch_size": "small"}, {"learners": 1, "batch_size": "small"}, "time_s"),
        ),
    ),
    "5.5": (
        Statement(
            "epochs of bow, 1 learner, with the small batch over the best batch size",
            "below 1 (\u201cmuch better\u201d), not stated as a number",
            Ratio({**ONE, "batch_size": "small"}, {**ONE, "batch_size": "best"}, "epochs"),
        ),
        Statement(
            "epochs of bow, 3 learners, over 1 learner, both with the small batch",
            "below 1, not stated as a number",
            Ratio({"learners": 3, "batch_size": "small"}, {"learners": 1, "batch_size": "small"}, "epochs"),
        ),
    ),
    "5.6": (
        Statement("throughput of 2 learners over 1", "above 1, not stated as a number", Ratio(TWO, ONE)),
        Statement("TensorFlow with more streams", "decreases slightly"),
    ),
    "5.7": (
        Statement("throughput of 2 learners over 1", "more than 1.43", Ratio(TWO, ONE)),
        Statement("throughput of 3 learners over 2", "1.10", Ratio(THREE, TWO)),
        Statement("throughput of 4 learners over 3", "drops slightly", Ratio(FOUR, THREE)),
    ),
    "5.8": (
        Statement(
            "throughput of 1 learner over plain",
            "1.49 (13,000 over 8,700 images/s)",
            Ratio(ONE, PLAIN),
        ),
        Statement("throughput of 2 learners over 1", "more than 1.51", Ratio(TWO, ONE)),
        *(
            Statement(
                f"throughput of {learners} learners over {learners - 1}",
                "around 1.1, of means",
                Ratio({"learners": learners}, {"learners": learners - 1}),
            )
            for learners in range(3, 9)
        ),
        Statement(
            "throughput of 8 learners over 4",
            "up to 8 \u201cwithout affecting the performance\u201d",
            Ratio({"learners": 8}, FOUR),
        ),
    ),
    "5.9": (
        Statement(
            "1 device: throughput of 1 learner over plain", "1.04 (1,109 over 1,062 images/s)", Ratio(on(1, 1), PLAIN)
        ),
        Statement("1 device: throughput of 2 learners over 1", "1.39", Ratio(on(1, 2), on(1, 1))),
        Statement(
            "1 learner each: throughput of 2 devices over 1",
            "1.76 (1,949 over 1,109 images/s)",
            Ratio(on(2, 1), on(1, 1)),
        ),
        Statement("2 devices: throughput of 2 learners each over 1", "1.32", Ratio(on(2, 2), on(2, 1))),
        Statement(
            "throughput of 4 devices with 1 learner over 2 devices with 2", "identical", Ratio(on(4, 1), on(2, 2))
        ),
        Statement("4 devices: throughput of 2 learners each over 1", "1.35", Ratio(on(4, 2), on(4, 1))),
    ),
    "5.10": (
        *(
            Statement(
                f"batch {batch}: throughput of 1 learner over plain",
                "on par",
                Ratio({**ONE, "batch_size": batch}, {**PLAIN, "batch_size": batch}),
            )
            for batch in (32, 64)
        ),
        *(
            Statement(
                f"batch {batch}: throughput of 2 learners over 1",
                value,
                Ratio({**TWO, "batch_size": batch}, {**ONE, "batch_size": batch}),
            )
            for batch, value in (
                (32, "more than 1.40"),
                (64, "more than 1.40"),
                (128, "just over 1.22"),
                (256, "just over 1.22"),
            )
        ),
    ),
    "5.11": (
        Statement(
            "2 learners: throughput with SMA over none",
            "0.80 (15,405 over 19,175 images/s), the largest decrease",
            Ratio({**TWO, **SMA}, {**TWO, **ALONE}),
        ),
    ),
    "5.12": (
        Statement(
            "2 learners: throughput with SMA over none",
            "0.98 (1,435 over 1,458 images/s)",
            Ratio({**TWO, **SMA}, {**TWO, **ALONE}),
        ),
        Statement(
            "3 learners: throughput with SMA over none",
            "0.90 (1,585 over 1,753 images/s)",
            Ratio({**THREE, **SMA}, {**THREE, **ALONE}),
        ),
    ),
    "5.13": (
        *(
            Statement(
                f"2 devices, {learners} learner{'s' if learners > 1 else ''} each: throughput with SMA over none",
                "about 0.5",
                Ratio({**on(2, learners), **SMA}, {**on(2, learners), **ALONE}),
            )
            for learners in (1, 2)
        ),
        *(
            Statement(
                f"2 devices, {words}: throughput of 2 learners each over 1",
                "the gain \u201cremains constant\u201d, with SMA and without",
                Ratio({**on(2, 2), **sync}, {**on(2, 1), **sync}),
            )
            for words, sync in (("no synchronisation", ALONE), ("SMA", SMA))
        ),
        Statement("TensorFlow with NCCL on several devices", "a decrease of more than 30%"),
    ),
}

# Table 5.1
CHARACTERISTICS = (
    Characteristics("Logistic regression", "MNIST", 179.45, 0.0314, 65),
    Characteristics("LeNet", "MNIST", 179.45, 4.24, 169),
    Characteristics("ResNet-32", "CIFAR-10", 703.12, 1.79, 2748),
)
