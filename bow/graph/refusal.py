"""Why a step cannot be captured, in one sentence; and torch kept from printing meanwhile."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

from bow.errors import CaptureError, reason

# The names of torch's exceptions while it runs a model on tensors without values, and what each means.
_MEANINGS = {
    "DataDependentOutputException": "reads a tensor's value in Python (.item(), int(), bool() or an if on a tensor)",
    "GuardOnDataDependentSymNode": "branches in Python on a tensor's value",
    "UserError": "branches in Python on a tensor's value",
    "DynamicOutputShapeException": "makes a tensor whose shape depends on values (nonzero, unique, masked_select)",
    "UnsupportedFakeTensorException": "uses a kind of tensor that has no shape without values",
    "UnsupportedOperatorException": "uses an operator that cannot run without values",
}


EAGER = 'use engine="eager"'
"""What can be done instead, where learners are to train; a step that was to be split is trained whole instead."""

REMEDY = "write the step with tensor operations only"


def refusal(model: str, cause: str, remedy: str = REMEDY, instead: str = EAGER) -> CaptureError:
    """The error for a step that cannot be captured."""
    return CaptureError(f"{model} cannot be captured because its step {cause}; {remedy}, or {instead}")


def refused(model: str, error: BaseException, instead: str = EAGER) -> CaptureError:
    """The error for a step during which torch raised `error`."""
    kind = type(error).__name__
    if kind in _MEANINGS:
        function = getattr(error, "func", None)
        return refusal(model, _MEANINGS[kind] + (f", in {function}" if function is not None else ""), instead=instead)
    if any(sign in str(error) for sign in (".numpy()", "data_ptr", "FakeTensor", "tolist()")):
        return refusal(model, f"needs the values of its tensors outside torch ({reason(error)})", instead=instead)
    if "Generator" in str(error):
        return refusal(model, "draws from a torch.Generator", "use torch's default random number generator", instead)
    return refusal(model, f"fails ({reason(error)})", "run it once on this batch without capture to see where", instead)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out warnings, which the user's own run of the model has shown, torch's logs, and the graphs it prints."""
    loggers = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.startswith("torch") and isinstance(logger, logging.Logger) and not logger.disabled
    ]
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger in loggers:
            logger.disabled = False
