"""Hardware and versions beside every number."""

import platform
from dataclasses import asdict
from pathlib import Path

import torch

import bow
from bow.bench.environment import inspect_environment


def test_the_environment_names_hardware_and_versions_but_no_place_on_this_machine() -> None:
    environment = inspect_environment()
    assert environment.cores >= 1
    assert environment.memory_gib > 0.1
    assert environment.processor
    assert (environment.python, environment.torch) == (platform.python_version(), torch.__version__)
    assert environment.bow == bow.__version__
    assert str(Path.cwd()) not in str(asdict(environment))
    assert environment.processor in str(environment)
