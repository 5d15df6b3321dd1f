"""Choices on disk: found again, never half written, and pins win."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bow.errors import SettingError
from bow.tuner import CachedChoice, ChoiceCache, EngineSetting
from tests.forked import FORKED

ROOT = Path(__file__).parents[2]
DESCRIPTION = {"model": {"weight": [10, 784], "bias": [10]}, "batch": (16, 784), "cpu": "EPYC", "cores": 2, "lr": 0.1}
SETTING = EngineSetting("graph", learners=4, threads=1)


@pytest.fixture
def cache(tmp_path: Path) -> ChoiceCache:
    return ChoiceCache(tmp_path / "choices")


def file_of(cache: ChoiceCache) -> Path:
    (path,) = cache.folder.iterdir()
    return path


def test_a_choice_is_found_again_with_its_table(cache: ChoiceCache) -> None:
    assert cache.find(DESCRIPTION) is None
    rows = ({"engine": "graph", "learners": 4, "samples_per_s": 812.5},)
    assert cache.store(DESCRIPTION, CachedChoice(SETTING, rows))
    assert ChoiceCache(str(cache.folder)).find(dict(reversed(DESCRIPTION.items()))) == CachedChoice(SETTING, rows)


@pytest.mark.parametrize("change", [{"cores": 3}, {"model": {"weight": [10, 785], "bias": [10]}}, {"torch": "2.13.0"}])
def test_what_differs_in_anything_is_something_else(cache: ChoiceCache, change: dict[str, Any]) -> None:
    cache.store(DESCRIPTION, CachedChoice(SETTING))
    assert cache.find({**DESCRIPTION, **change}) is None


def test_the_last_choice_replaces_the_one_before(cache: ChoiceCache) -> None:
    for learners in (4, 8):
        cache.store(DESCRIPTION, CachedChoice(EngineSetting("graph", learners)))
    found = cache.find(DESCRIPTION)
    assert found is not None
    assert found.setting.learners == 8
    assert len(list(cache.folder.iterdir())) == 1


def test_a_pin_wins_until_its_file_is_deleted(cache: ChoiceCache) -> None:
    cache.pin(DESCRIPTION, SETTING)
    cache.store(DESCRIPTION, CachedChoice(EngineSetting("eager")))
    assert cache.find(DESCRIPTION) == CachedChoice(SETTING, pinned=True)
    (pin,) = cache.folder.glob("*.pin.json")
    pin.unlink()
    assert cache.find(DESCRIPTION) == CachedChoice(EngineSetting("eager"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "null",
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace('"learners": 4', '"learners": 0'),
        lambda text: text.replace('"learners": 4', '"learners": "many"'),
        lambda text: text.replace('"engine"', '"motor"'),
        lambda text: text.replace("EPYC", "Xeon"),
        lambda text: text.replace('"rows": []', '"rows": 3'),
        lambda text: "\xff\xfe\0",  # no UTF-8
    ],
)
def test_a_damaged_file_counts_as_none_and_is_replaced(cache: ChoiceCache, damage: Any) -> None:
    cache.store(DESCRIPTION, CachedChoice(SETTING))
    path = file_of(cache)
    path.write_text(damage(path.read_text()), "latin-1")
    assert cache.find(DESCRIPTION) is None
    cache.store(DESCRIPTION, CachedChoice(SETTING))
    assert cache.find(DESCRIPTION) == CachedChoice(SETTING)


def test_a_damaged_pin_does_not_hide_the_choice(cache: ChoiceCache) -> None:
    cache.pin(DESCRIPTION, EngineSetting("eager"))
    file_of(cache).write_text("{")
    cache.store(DESCRIPTION, CachedChoice(SETTING))
    assert cache.find(DESCRIPTION) == CachedChoice(SETTING)


def test_a_write_that_fails_leaves_the_old_choice_and_no_part(cache: ChoiceCache, monkeypatch) -> None:
    cache.store(DESCRIPTION, CachedChoice(SETTING))

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.warns(UserWarning, match=r"cannot be kept in .*choices \(the disk is full\); make it writable"):
        assert not cache.store(DESCRIPTION, CachedChoice(EngineSetting("eager")))
    assert cache.find(DESCRIPTION) == CachedChoice(SETTING)
    assert len(list(cache.folder.iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_no_reason_to_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = ChoiceCache(tmp_path / "file" / "choices")
    assert cache.find(DESCRIPTION) is None
    with pytest.warns(UserWarning, match="the tuner's choice cannot be kept"):
        assert not cache.store(DESCRIPTION, CachedChoice(SETTING))
    with pytest.raises(SettingError, match="the pin cannot be kept"):
        cache.pin(DESCRIPTION, SETTING)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object(), b"text"])
def test_descriptions_are_of_plain_values(cache: ChoiceCache, value: Any) -> None:
    with pytest.raises(SettingError, match="a description takes plain values only"):
        cache.find({"value": value})


WRITER = """
import json, sys
from bow.tuner import CachedChoice, ChoiceCache, EngineSetting

folder, description, learners = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
for _ in range(200):
    rows = [{"n": learners}] * learners
    assert ChoiceCache(folder).store(description, CachedChoice(EngineSetting("graph", learners), rows))
"""


def test_several_processes_write_and_nobody_reads_a_part(cache: ChoiceCache) -> None:
    cache.store(DESCRIPTION, CachedChoice(EngineSetting("graph", 1), rows=[{"n": 1}]))
    command = [*FORKED, "-c", WRITER, str(cache.folder), json.dumps(DESCRIPTION)]
    writers = [subprocess.Popen([*command, learners], cwd=ROOT) for learners in ("10", "50", "300")]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        found = cache.find(DESCRIPTION)
        assert found is not None
        assert found.rows == ({"n": found.setting.learners},) * found.setting.learners
        seen.add(found.setting.learners)
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(seen) > 1
    assert len(list(cache.folder.iterdir())) == 1
