"""What a user can set about the devices of a training."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from bow.cluster.processes import Bucket, check_bucket
from bow.devices import StreamDevice


@dataclass(frozen=True)
class Devices:
    """The devices of a training, each of which is trained on by a process of its own.

    Args:
        count: `"cuda"`: all GPUs that there are; `"cpu"`: all cores as one device; `"auto"`: GPUs if there are any; or
            a number of devices, which without a GPU are as many shares of the cores.
        bucket_mb: sums between devices are split into parts of so many MiB, or into variables (`"variable"`); None: one
            AllReduce for all.

    Raises:
        SettingError: a size of parts that is none.

    Example:
        >>> Devices(2, bucket_mb=25).count
        2
    """

    count: int | Literal["auto", "cpu", "cuda"] | StreamDevice = "auto"
    _: KW_ONLY
    bucket_mb: Bucket = None

    def __post_init__(self) -> None:
        check_bucket(self.bucket_mb)
