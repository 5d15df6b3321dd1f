"""User settings of the tuner."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypeAlias, get_args

from bow.errors import SettingError
from bow.tuner.record import EngineSetting
from bow.values import number, whole

# What to maximise: samples per second, or samples per second times statistical efficiency
Objective: TypeAlias = Literal["throughput", "goodput"]


@dataclass(frozen=True)
class Tuner:
    """Settings of the search for number of learners and engine where they are `"auto"`: `learners=Tuner(...)`.

    Args:
        learners: number of learners per device, if only the engine is to be chosen; `"auto"`: both are.
        objective: `"throughput"`: samples per second; `"goodput"`: samples per second times statistical efficiency, so
            that learners are added only where they help learning; the same with engine `fused` on a CPU, which does
            not expose gradients.
        threshold: relative gain of the objective that more learners must bring.
        share: the largest part of the expected training time that trials before the training may take.
        window_s: length of a measurement window while training, in seconds.
        online: whether the number of learners may change while training.
        cache: whether choices are stored on disk for later trainings of the same model on the same machine.
        pin: fix the choice of this training for all later ones of the same model, data and machine: they measure
            nothing, and their number of learners stays.
        pinned: a fixed choice: nothing is measured, and the number of learners stays.

    Raises:
        SettingError: a value outside its range.

    Example:
        >>> Tuner(objective="goodput", share=0.02).threshold
        0.03
    """

    learners: int | Literal["auto"] = "auto"
    _: KW_ONLY
    objective: Objective = "throughput"
    threshold: float = 0.03
    share: float = 0.05
    window_s: float = 1.0
    online: bool = True
    cache: bool = True
    pin: bool = False
    pinned: EngineSetting | None = None

    def __post_init__(self) -> None:
        if self.learners != "auto":
            whole("learners", self.learners, also='"auto"')
        if self.objective not in get_args(Objective):
            raise SettingError(f'objective must be "throughput" or "goodput", got {self.objective!r}')
        number("threshold", self.threshold, above=0, below=1, remedy="0.03 is 3 %")
        number("share", self.share, above=0, most=1, remedy="0.05 is 5 % of the training")
        number("window_s", self.window_s, above=0, remedy="1.0 is usual")
        for name in ("online", "cache", "pin"):
            if not isinstance(value := getattr(self, name), bool):
                raise SettingError(f"{name} must be True or False, got {value!r}")
        if self.pin and not self.cache:
            raise SettingError("pin=True keeps the choice on disk, which cache=False forbids; leave one of them out")
        if self.pinned is not None and not isinstance(self.pinned, EngineSetting):
            raise SettingError(
                f'pinned must be an EngineSetting such as EngineSetting("graph", learners=4), got {self.pinned!r}'
            )
