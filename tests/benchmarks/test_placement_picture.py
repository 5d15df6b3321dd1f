"""Pictures of placements."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.placement_picture import COLOURS, TRANSPARENT, placement_svg
from bow.planning.placement.groups import module_groups
from tests.planning.placement.placed_steps import unrolled

NAMES = ("cpu", "gpu0", "gpu1")


def boxes(picture: str) -> list[ElementTree.Element]:
    rectangles = [each for each in ElementTree.fromstring(picture).iter() if each.tag.endswith("rect")]
    return [each for each in rectangles if len(each)]


def test_every_group_has_a_box_in_the_row_of_its_layer_and_the_colour_of_its_device():
    groups = module_groups(unrolled(steps=3, layers=2))
    devices = tuple(number % 3 for number in range(len(groups)))
    drawn = boxes(placement_svg(groups, devices, NAMES, processors=(0,)))
    assert len(drawn) == len(groups)
    told = {each[0].text: each for each in drawn}
    for number, group in enumerate(groups.groups):
        box = told[f"{group.name} on {NAMES[devices[number]]}"]
        assert box.get("fill") == (TRANSPARENT, *COLOURS)[devices[number]]
    heights = {group.layer: set() for group in groups.groups}
    for number, group in enumerate(groups.groups):
        heights[group.layer].add(told[f"{group.name} on {NAMES[devices[number]]}"].get("y"))
    assert all(len(each) == 1 for each in heights.values())
    assert len({min(each) for each in heights.values()}) == len(heights)


def test_steps_stand_beneath_each_other():
    groups = module_groups(unrolled(steps=3, layers=2))
    told = {each[0].text: each.get("x") for each in boxes(placement_svg(groups, (1,) * len(groups), NAMES))}
    assert told["lstm.cells.0@2 on gpu0"] == told["lstm.cells.1@2 on gpu0"]
    assert told["lstm.cells.0@1 on gpu0"] != told["lstm.cells.0@2 on gpu0"]


def test_names_are_escaped():
    groups = module_groups(unrolled(steps=2))
    picture = placement_svg(groups, (0,) * len(groups), ("<&>", "b", "c"), title="a < b")
    assert boxes(picture)
