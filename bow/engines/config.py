"""User settings of engines."""

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from bow.engines.task_scheduler import Dispatch
from bow.errors import SettingError
from bow.schedule import Schedule
from bow.values import whole

EngineName: TypeAlias = Literal["auto", "eager", "fused", "graph", "streams"]

# Content of a CUDA graph of engine `graph`: one learner's task, or a whole round.
Capture: TypeAlias = Literal["auto", "learner", "round"]

# Order of the weights of convolutions in memory; None: that of the model.
MemoryFormat: TypeAlias = Literal["channels_last"] | None

ROUND_CAPTURED = "graph+round"  # the runner of `Engine("graph", capture="round")`


@dataclass(frozen=True)
class Engine:
    """How learning tasks run on a device.

    Args:
        name: `"eager"` (learners one after another), `"fused"` (all in one compiled task), `"graph"` (each on its own
            cores without Python's lock, or captured into CUDA graphs on a GPU), `"streams"` (each on its own Python
            thread, for models that cannot be captured), or `"auto"`: `bow.train` measures, `bow.sweep` takes
            `graph`, and elsewhere a rule decides (documented in `bow.engines.choice`).
        compile: compile the learning task with `torch.compile` (`fused` always does, `graph` does in a long training).
        capture: content of a CUDA graph of engine `graph`: the task of one `"learner"`, or a whole `"round"` of all
            learners with steps and averaging. `"auto"`: with `name="auto"` the faster one as measured; otherwise
            `"round"` for one learner, whose round is a whole training step, and `"learner"` for several.
        dispatch: `"fixed"`: batch j of a round is learner j's. `"first_come"`: between two synchronisation tasks, a
            free learner takes the next batch, in engines whose learners do not keep step (`"graph"` and `"streams"`);
            faster with stragglers, but results depend on the time that tasks take.
        offload: keep tensors saved for the backward pass in host memory, for models that do not fit otherwise
            (engines `"eager"` and `"streams"` on a GPU).
        accumulate: number of parts in which a learner's batch is computed, one after another, accumulating gradients;
            the step equals that of the whole batch to rounding if the loss is a mean over samples. For batches whose
            activations do not fit; batch norm sees the parts. Not available in `"fused"`.
        precision: `"bfloat16"` for autocast; None is the model's own dtype.
        memory_format: `"channels_last"` for the weights of convolutions, which is faster on some machines; results
            are equal to rounding. None is the model's own, and `bow.train` measures both where trials run
            engine `graph` on one CPU.
        schedule: which executors run the operators of a learning task in parallel, for engine `graph`: a
            `bow.Schedule`, a file written by `bow schedule`, or `"auto"`: `bow.train` profiles operators, times
            policies for some seconds, and uses the best one if it clearly beats running operators one after another.
            None: one executor for each learner.

    Raises:
        SettingError: an unknown value, or settings that exclude each other.

    Example:
        >>> Engine("graph", compile=True).dispatch
        'fixed'
    """

    name: EngineName = "auto"
    _: KW_ONLY
    compile: bool = False
    capture: Capture = "auto"
    dispatch: Dispatch = "fixed"
    offload: bool = False
    accumulate: int = 1
    precision: str | None = None
    memory_format: MemoryFormat = None
    schedule: Schedule | str | Path | None = None

    def __post_init__(self) -> None:
        if str(self.name) == "whole_round":
            raise SettingError('engine="whole_round" is now bow.Engine("graph", capture="round")')
        _check_choice("engine", self.name, EngineName)
        _check_choice("capture", self.capture, Capture)
        _check_choice("dispatch", self.dispatch, Dispatch)
        if whole("accumulate", self.accumulate) > 1 and self.name == "fused":
            raise SettingError(
                f'accumulate={self.accumulate} takes a gradient within a learning task, which engine "fused" cannot '
                'vectorise; use engine="graph" or "eager"'
            )
        if self.precision not in (None, "bfloat16"):
            raise SettingError(
                f'precision must be "bfloat16" or None (the dtype of the model), got {self.precision!r}; '
                "for float64 pass model.double()"
            )
        if self.memory_format not in (None, "channels_last"):
            raise SettingError(
                f'memory_format must be "channels_last" or None (that of the model), got {self.memory_format!r}'
            )
        for name in ("compile", "offload"):
            if not isinstance(value := getattr(self, name), bool):
                raise SettingError(f"{name} must be True or False, got {value!r}")
        if self.capture != "auto" and self.name != "graph":
            raise SettingError(
                f'capture="{self.capture}" is a setting of engine "graph", got engine {self.name!r}; name that engine'
            )
        if self.offload and self.compile:
            raise SettingError(
                "offload=True offloads tensors saved by autograd, which a compiled learning task (compile=True) hides; "
                "leave one of the two out"
            )

    @classmethod
    def of(cls, given: Any) -> "Engine":
        """Convert an engine or its name to an engine."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, str):
            raise SettingError(f'engine must be a name such as "graph", or a bow.Engine, got {given!r}')
        return cls(given)  # type: ignore[arg-type]

    @property
    def runner(self) -> str:
        """Name of the runner: that of the engine, or `graph+round` for a whole round in one CUDA graph."""
        return ROUND_CAPTURED if self.capture == "round" else self.name

    def run_by(self, runner: str, compile: bool = False, memory_format: MemoryFormat = None) -> "Engine":
        """Return these settings with a runner that was chosen, whether it compiles, and a chosen memory format."""
        name = "graph" if runner == ROUND_CAPTURED else runner
        capture = "round" if runner == ROUND_CAPTURED else "learner" if runner == "graph" else "auto"
        chosen = {"name": name, "capture": capture, "compile": compile}
        return replace(self, **chosen, memory_format=memory_format or self.memory_format)  # type: ignore[arg-type]


def _check_choice(name: str, value: object, choices: Any) -> None:
    options = get_args(choices)
    if value not in options:
        raise SettingError(f"{name} must be one of {', '.join(options)}, got {value!r}")


DEFAULT_ENGINE = Engine()
