import os
from pathlib import Path

import pytest

from bow.devices import available_cores, core_sets, parse_cores, physical_first
from bow.devices import cores as device
from bow.errors import SettingError


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A machine of these cores; `siblings` are the hardware threads that share a physical core."""

    def machine(count: int, siblings: list[str] | None = None) -> None:
        monkeypatch.setattr(device, "available_cores", lambda: tuple(range(count)))
        monkeypatch.setattr(device, "_TOPOLOGY", tmp_path)
        for shared in siblings or []:
            for core in parse_cores(shared):
                folder = tmp_path / f"cpu{core}" / "topology"
                folder.mkdir(parents=True)
                (folder / "thread_siblings_list").write_text(f"{shared}\n")

    return machine


def test_cores_are_those_that_the_process_may_use() -> None:
    if hasattr(os, "sched_getaffinity"):
        assert set(available_cores()) == os.sched_getaffinity(0)
    assert list(available_cores()) == sorted(available_cores())


def test_systems_without_affinity_have_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert available_cores() == tuple(range(os.cpu_count() or 1))


def test_sets_are_disjoint_and_neighbouring(cores) -> None:
    cores(8)
    assert core_sets(3, 2) == [(0, 1), (2, 3), (4, 5)]
    assert core_sets([1, 3, 2]) == [(0,), (1, 2, 3), (4, 5)]
    assert core_sets(0, 1) == []


@pytest.mark.parametrize("siblings", [["0,4", "1,5", "2,6", "3,7"], ["0-1", "2-3", "4-5", "6-7"]])
def test_physical_cores_come_before_their_second_threads(cores, siblings: list[str]) -> None:
    cores(8, siblings)
    taken = [core for group in core_sets(2, 2) for core in group]
    assert all(len(set(parse_cores(shared)) & set(taken)) == 1 for shared in siblings)
    assert sorted(core for group in core_sets(4, 2) for core in group) == list(range(8))


def test_a_core_that_the_process_may_not_use_is_not_taken_for_its_sibling(cores) -> None:
    cores(8, ["0,4", "1,5", "2,6", "3,7"])
    assert physical_first((1, 4, 5, 7)) == [1, 4, 7, 5]


def test_more_than_there_is_is_refused_in_one_sentence(cores) -> None:
    cores(4)
    with pytest.raises(SettingError, match="3 executors with 2 threads need 6 cores, this process has 4; use fewer"):
        core_sets(3, 2)
    with pytest.raises(SettingError, match="2 executors with 4, 1 threads need 5 cores"):
        core_sets([4, 1])


def test_lists_of_cores_are_read_as_linux_writes_them() -> None:
    assert parse_cores("0-2,8,10-11\n") == (0, 1, 2, 8, 10, 11)
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cores("")


@pytest.mark.parametrize(("text", "expected"), [("150000 100000\n", 1), ("max 100000\n", None), ("200000 100000", 2)])
def test_a_containers_share_of_processor_time_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: int | None
) -> None:
    monkeypatch.setattr(device, "_CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5, 6})
    assert device.available_cores() == (4, 5, 6)
    (tmp_path / "cpu.max").write_text(text)
    assert len(device.available_cores()) == (expected or 3)
