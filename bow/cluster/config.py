"""User settings for the devices of a training."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from bow.cluster.processes import Bucket, check_bucket
from bow.devices import StreamDevice


@dataclass(frozen=True)
class Devices:
    """The devices of a training; each is trained on by its own process.

    Args:
        count: `"cuda"`: all GPUs; `"cpu"`: all cores as one device; `"auto"`: GPUs if there are any, else the CPU; or a
            number of devices, which without a GPU are equal shares of the cores.
        bucket_mb: size in MiB of the buckets in which sums between devices are sent, or one bucket per variable
            (`"variable"`); None: one AllReduce for all.

    Raises:
        SettingError: `bucket_mb` is not a valid size.

    Example:
        >>> Devices(2, bucket_mb=25).count
        2
    """

    count: int | Literal["auto", "cpu", "cuda"] | StreamDevice = "auto"
    _: KW_ONLY
    bucket_mb: Bucket = None

    def __post_init__(self) -> None:
        check_bucket(self.bucket_mb)
