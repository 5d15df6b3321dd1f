"""A fake GPU for tests: operators run on the CPU, and their ordering by events is checked."""

from bow.testing.fake_device import CaptureRuleError as CaptureRuleError
from bow.testing.fake_device import FakeDevice as FakeDevice
from bow.testing.fake_device import RaceError as RaceError
from bow.testing.fake_device import Wait as Wait
