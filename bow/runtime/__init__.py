"""The local runtime: step graphs on executors, by a schedule."""

from bow.runtime.job import Affinity as Affinity
from bow.runtime.job import GraphCopy as GraphCopy
from bow.runtime.job import JobBuilder as JobBuilder
from bow.runtime.job import Label as Label
from bow.runtime.loading import NativeTeam as NativeTeam
from bow.runtime.loading import is_available as is_available
from bow.runtime.loading import is_built as is_built
from bow.runtime.loading import native as native
from bow.runtime.local import LocalRuntime as LocalRuntime
from bow.runtime.local import named as named
from bow.runtime.local import spans_of as spans_of
from bow.runtime.region import Region as Region
from bow.runtime.region import compile_region as compile_region
from bow.runtime.region import is_compiled as is_compiled
from bow.runtime.streams import StreamCapture as StreamCapture
from bow.runtime.streams import StreamRuntime as StreamRuntime
