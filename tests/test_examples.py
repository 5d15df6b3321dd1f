"""The doctests of public names; `make nightly` also runs those of the modules."""

import doctest
import importlib

import pytest

import bow

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(name: str) -> list[doctest.DocTest]:
    member = getattr(bow, name)
    module = importlib.import_module(member.__module__)
    found = doctest.DocTestFinder(exclude_empty=True).find(member, name, module=module)
    return [each for each in found if each.examples]


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", [name for name in bow.__all__ if examples(name)])
def test_it_comes_to_what_the_docstring_says(name: str, request: pytest.FixtureRequest) -> None:
    runner = doctest.DebugRunner(optionflags=FLAGS)
    for example in examples(name):
        example.globs["getfixture"] = request.getfixturevalue  # as with `--doctest-modules`
        runner.run(example)
