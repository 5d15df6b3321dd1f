"""Read and write device topologies as YAML or JSON; the topologies shipped with bow."""

import dataclasses
import importlib.resources
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import yaml

from bow.errors import TopologyError
from bow.files import save_text
from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link
from bow.values import given_path

NETWORK = "network"  # the switch that connects the nodes
_Described = TypeVar("_Described", DeviceKind, Link)
SETTINGS = ("overlap", "sum_us", "passing")  # of a topology as a whole, optional
_KEYS = {"name", "kinds", "devices", "switches", "links", "nodes", "network", *SETTINGS}


def shipped_topologies() -> tuple[str, ...]:
    folder = importlib.resources.files("bow.conf") / "topology"
    return tuple(sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")))


def load_topology(source: str | Path, nodes: int | None = None) -> DeviceTopology:
    """Read a topology from a file, or a shipped one by name."""
    shipped = isinstance(source, str) and source in shipped_topologies()
    try:
        if shipped:
            text = (importlib.resources.files("bow.conf") / "topology" / f"{source}.yaml").read_text(encoding="utf-8")
        else:
            text = given_path("the topology", source, TopologyError).read_text(encoding="utf-8")
        data = yaml.safe_load(text)
    except OSError as error:
        raise TopologyError(
            f"topology {str(source)!r} cannot be read ({error.strerror or error}); give a file, or one of "
            f"{', '.join(shipped_topologies())}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TopologyError(f"topology {str(source)!r} is not YAML; correct it") from error
    described = data if nodes is None or not isinstance(data, Mapping) else {**data, "nodes": nodes}
    try:
        return topology_from_dict(described)
    except TopologyError as error:
        raise TopologyError(f"topology {str(source)!r}: {error}") from error


def topology_from_dict(data: object) -> DeviceTopology:
    if not isinstance(data, Mapping):
        raise TopologyError(f"a topology must be a mapping with devices and links, got {type(data).__name__}")
    _check_keys("a topology", data, needed=(), known=_KEYS)
    try:
        return _read(data)
    except TopologyError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TopologyError(
            f"the topology is damaged ({type(error).__name__}: {error}); see conf/topology for examples"
        ) from error


def topology_to_dict(topology: DeviceTopology) -> dict[str, Any]:
    """Return the input of `topology_from_dict`, with every device and link written out."""
    kinds = {device.kind.name: device.kind for device in topology.devices}
    return {
        "name": topology.name,
        "kinds": {name: _fields(kind, leave_out="name") for name, kind in kinds.items()},
        "devices": {device.name: {"kind": device.kind.name, "node": device.node} for device in topology.devices},
        "switches": list(topology.switches),
        "links": [{"between": list(link.ends), **_fields(link, leave_out="ends")} for link in topology.links],
        **{name: getattr(topology, name) for name in SETTINGS},
    }


def save_topology(topology: DeviceTopology, path: str | Path) -> None:
    text = yaml.safe_dump(topology_to_dict(topology), sort_keys=False, allow_unicode=True)
    save_text("the topology", path, text, TopologyError)


def _read(data: Mapping[str, Any]) -> DeviceTopology:
    kinds = {
        str(name): _build(DeviceKind, f"kind {str(name)!r}", fields, name=str(name))
        for name, fields in _mapping("kinds", data.get("kinds"), "names to device kinds").items()
    }
    nodes = data.get("nodes", 1)
    if not isinstance(nodes, int) or nodes < 1:
        raise TopologyError(f"nodes must be a whole number of at least 1, got {nodes!r}")
    prefixes = [f"node{node}." for node in range(nodes)] if nodes > 1 else [""]
    devices = tuple(
        _device(prefix + str(name), kind, kinds, node)
        for node, prefix in enumerate(prefixes)
        for name, kind in _mapping("devices", data.get("devices"), "names to kinds").items()
    )
    switches = [prefix + str(name) for prefix in prefixes for name in _list("switches", data.get("switches"))]
    links = [link for prefix in prefixes for each in _list("links", data.get("links")) for link in _links(each, prefix)]
    if data.get("network") is not None and nodes > 1:
        switches.append(NETWORK)
        links += _to_network(_mapping("network", data["network"], "names to values"), prefixes)
    settings = {name: data[name] for name in SETTINGS if name in data}
    return DeviceTopology(str(data.get("name", "unnamed")), devices, tuple(links), tuple(switches), **settings)


def _device(name: str, described: str | Mapping[str, Any], kinds: Mapping[str, DeviceKind], node: int) -> Device:
    what = f"device {name!r}"
    given = {"kind": described} if isinstance(described, str) else described
    fields = _mapping(what, given, "kind and node to values; or give its kind alone")
    _check_keys(what, fields, needed={"kind"}, known={"kind", "node"})
    kind, node = str(fields["kind"]), fields.get("node", node)
    if not isinstance(node, int):
        raise TopologyError(f"node of {what} must be a whole number, got {node!r}")
    if kind not in kinds:
        raise TopologyError(f"{what} is of kind {kind!r}, which is not defined; add it to kinds")
    return Device(name, kinds[kind], node)


def _links(described: object, prefix: str) -> Iterator[Link]:
    fields = _mapping("a link", described, "between, latency_us and gb_per_s to values")
    if "between" not in fields:
        raise TopologyError(f"a link lacks 'between', got {fields}; list the devices and switches that it connects")
    between: object = fields.pop("between")
    if not _is_list(between) or len(between) < 2:
        raise TopologyError(f"between must list two or more devices or switches, got {between!r}")
    ends = [prefix + str(name) for name in between]
    lines = [tuple(ends)] if fields.get("shared") else itertools.combinations(ends, 2)
    what = f"the link between {' and '.join(map(str, between))}"
    yield from (_build(Link, what, fields, ends=each) for each in lines)


def _to_network(fields: dict[str, Any], prefixes: Iterable[str]) -> Iterator[Link]:
    if "from" not in fields:
        raise TopologyError("network lacks 'from'; name the device or switch of each node that connects to it")
    start = str(fields.pop("from"))
    for prefix in prefixes:
        yield _build(Link, "network", fields, ends=(prefix + start, NETWORK))


def _build(of: type[_Described], what: str, described: object, **given: Any) -> _Described:
    """Build a device kind or a link from a file's fields and from given ones."""
    fields = _mapping(what, described, "names to values")
    own = [field for field in dataclasses.fields(of) if field.name not in given]
    needed = {field.name for field in own if field.default is dataclasses.MISSING}
    _check_keys(what, fields, needed, {field.name for field in own})
    return of(**given, **fields)


def _check_keys(what: str, fields: Mapping[str, Any], needed: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(str(key) for key in set(fields) - set(known))
    if unknown:
        raise TopologyError(f"{what} has no {unknown[0]!r}; its keys are {', '.join(sorted(known))}")
    missing = sorted(set(needed) - set(fields))
    if missing:
        raise TopologyError(f"{what} lacks {missing[0]!r}; add it")


def _mapping(what: str, value: object, of: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TopologyError(f"{what} must be a mapping of {of}, got {value!r}")
    return dict(value)


def _list(what: str, value: object) -> Sequence[Any]:
    if value is None:
        return ()
    if not _is_list(value):
        raise TopologyError(f"{what} must be a list, got {value!r}")
    return value


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _fields(of: DeviceKind | Link, leave_out: str) -> dict[str, Any]:
    return {name: value for name, value in vars(of).items() if name != leave_out}
