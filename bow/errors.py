"""bow's exceptions, a single hierarchy, so that one `except` catches all user errors."""

import errno
import itertools
import os
import re
import sys
import traceback
import warnings

INSIDE = ("bow", "torch", "contextlib", "functools")  # modules through which a user's line leads to a warning
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_TERMINAL_CODE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_PLACE_IN_TORCH = re.compile(r"^\[enforce fail at [^\]]*\]\W*(err == 0\. *)?")


class BowError(Exception):
    """Base of bow's errors. The message is one sentence: what is wrong, the value, the remedy."""


class SettingError(BowError, ValueError):
    """An invalid setting, or combination of settings."""


class ModelError(BowError, ValueError):
    """A model that bow cannot replicate, such as one without trainable parameters."""


class OptimizerError(BowError, ValueError):
    """An optimizer that cannot be applied to the rows of the replica matrix."""


class DataError(BowError, ValueError):
    """Data that are missing, damaged, or of a shape that cannot be trained on."""


class LossError(BowError, ValueError):
    """A loss or step function whose result is not a scalar that depends on the parameters."""


class CaptureError(BowError, RuntimeError):
    """A training step that cannot be captured as a graph of operators."""


class GraphError(BowError, ValueError):
    """A step graph that is damaged, or that does not fit the tensors it is run on."""


class RuntimeUnavailableError(BowError, RuntimeError):
    """The native runtime, or a compiled region, cannot be built or loaded on this machine."""


class ScheduleError(BowError, ValueError):
    """A schedule that does not fit its operators, or that is damaged."""


class TopologyError(BowError, ValueError):
    """A topology that is impossible or damaged."""


class TimelineError(BowError, ValueError):
    """A timeline that is damaged or cannot be read."""


class DivergenceError(BowError, ArithmeticError):
    """Training that diverged to non-finite numbers and cannot continue."""


class DeviceMemoryError(BowError, RuntimeError):
    """A round that ran out of memory; the training's state is unchanged."""


class ClusterError(BowError, RuntimeError):
    """A process of a training on several devices that ended, hangs or cannot be reached."""


class CheckpointError(BowError, RuntimeError):
    """A checkpoint that is missing, damaged, or of another model."""


class RunDirectoryError(BowError, OSError):
    """A run directory that cannot be created, written or read."""


class MissingDependencyError(BowError, ImportError):
    """An optional package that a setting needs and that is not installed."""


def disk_reason(error: BaseException) -> str:
    """Return why a file cannot be read or written, without its path, also from errors wrapped by libraries.

    Example:
        >>> disk_reason(OSError(errno.ENOSPC, "No space left on device"))
        'the disk is full'
        >>> disk_reason(RuntimeError("I/O error: No space left on device (os error 28)"))
        'the disk is full'
    """
    known = error if isinstance(error, OSError) else error.__context__  # torch wraps it and adds a source location
    number = known.errno if isinstance(known, OSError) else None
    if number is None and (wrapped := _OS_ERROR.search(str(error))):
        number = int(wrapped[1])
    if number is not None:
        return _FULL.get(number) or os.strerror(number)
    return reason(error)


def reason(error: BaseException) -> str:
    r"""Return an error's message in one line: the first that is not merely `... raised:`, without terminal colours.

    Example:
        >>> reason(ValueError("backend raised:\nToo many dimensions: 5.\n\nHint: ..."))
        'Too many dimensions: 5'
        >>> reason(ValueError("\x1b[1mno such key\x1b[0m"))
        'no such key'
        >>> reason(RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate"))
        "DefaultCPUAllocator: can't allocate"
    """
    lines = [_PLACE_IN_TORCH.sub("", line.strip()) for line in _TERMINAL_CODE.sub("", str(error)).splitlines()]
    telling = [line for line in lines if line and not line.endswith("raised:")]
    return (telling or [type(error).__name__])[0].rstrip(".")


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the first line outside bow and torch, which is the user's."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe()))
    inside = itertools.takewhile(lambda frame: str(frame.f_globals.get("__name__")).split(".")[0] in INSIDE, frames)
    warnings.warn(message, category, stacklevel=1 + sum(1 for _ in inside))
