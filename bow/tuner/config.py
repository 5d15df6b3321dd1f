"""What a user can set about tuning."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypeAlias, get_args

from bow.errors import SettingError
from bow.tuner.trial import EngineSetting
from bow.values import number, whole

# What is to be high: samples per second, or samples per second times what a sample is worth
Objective: TypeAlias = Literal["throughput", "goodput"]


@dataclass(frozen=True)
class Tuner:
    """How the number of learners and the engine are found where they are `"auto"`: `bow.train(learners=Tuner(...))`.

    Args:
        learners: a number of learners of each device, where only the engine is to be found; `"auto"`: both are.
        objective: `"throughput"`: samples per second; `"goodput"`: samples per second times statistical efficiency, so
            that learners are not added where they would not help learning; engine `fused` on a CPU shows nothing of
            that, so that both are the same there.
        threshold: what more learners have to bring, as a part of the objective.
        share: the largest part of the expected training time that trials before the training may take.
        window_s: seconds of training that are measured together while training.
        online: whether learners may come and go while training.
        cache: whether choices are kept on disk for later trainings of the same model on the same machine.
        pin: fix the choice of this training for all later ones of the same model, data and machine: they measure
            nothing, and learners stay as many.
        pinned: a choice that is fixed: nothing is measured, and learners stay as many.

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
        number("threshold", self.threshold, above=0, below=1, remedy="0.03 is 3%")
        number("share", self.share, above=0, most=1, remedy="0.05 is 5% of the training")
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
