"""Integrations are there when they are asked for, and their examples come to what they say."""

import doctest
import importlib

import pytest

import bow
from benchmarks.models import let_torchvision_be_imported

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.filterwarnings("ignore:::lightning")
@pytest.mark.parametrize("name", bow._INTEGRATIONS)
def test_examples(name: str, request: pytest.FixtureRequest) -> None:
    if name == "lightning":
        let_torchvision_be_imported()  # which Lightning imports where it is there
    pytest.importorskip(name)
    module = importlib.import_module(bow._INTEGRATIONS[name])
    assert getattr(bow, name) is module
    assert name in dir(bow)
    assert name not in bow.__all__
    runner = doctest.DebugRunner(optionflags=FLAGS)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__):
        example.globs["getfixture"] = request.getfixturevalue
        runner.run(example)
