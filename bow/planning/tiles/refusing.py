"""Why a step cannot be divided into operators, in one sentence."""

import functools

from bow.graph.refusal import REMEDY as REMEDY
from bow.graph.refusal import refusal as _refusal
from bow.graph.refusal import refused as _refused

_INSTEAD = "train without a strategy"

refusal = functools.partial(_refusal, instead=_INSTEAD)
"""The error for a step that cannot be captured."""

refused = functools.partial(_refused, instead=_INSTEAD)
"""The error for a step during which torch raised something."""
