"""METIS as the second partitioner."""

from __future__ import annotations

import sys

import pytest

from benchmarks.placement_machine import k80_machine
from bow.errors import MissingDependencyError
from bow.planning.placement.baselines import metis
from tests.planning.placement.placed_steps import evaluator
from tests.planning.placement.test_scotch import two_chains


def test_chains_are_not_cut():
    pytest.importorskip("pymetis")
    placed = metis(evaluator(two_chains()))
    assert len(set(placed[:4])) == len(set(placed[4:8])) == 1
    assert {placed[0], placed[4]} == {1, 2}


def test_the_same_seed_gives_the_same_parts():
    pytest.importorskip("pymetis")
    assert metis(evaluator(two_chains()), seed=3) == metis(evaluator(two_chains()), seed=3)


def test_one_part_needs_no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    assert set(metis(evaluator(two_chains(), topology=k80_machine(1)))) == {1}


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        metis(evaluator(two_chains()))
