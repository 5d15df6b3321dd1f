"""What `python -m benchmarks tiles` says about its trainings."""

from collections.abc import Mapping
from typing import Any

from benchmarks.results import Table

# The strategy that was found may take at most so many times what data parallelism takes: turns differ by as much
SLOWER = 1.05


def table(values: Mapping[str, Any]) -> Table:
    """Strategies, in each precision."""
    rows = [
        [
            name,
            precision,
            f"{row['losses'][0]:.4f}",
            f"{row['losses'][-1]:.4f}",
            f"{row['loss_off']:.1e}",
            f"{row['weight_off']:.1e}",
            "{median:.1f} ({low:.1f} to {high:.1f})".format(**row["step_ms"]),
            f"{values['predicted_ms'][name]:.1f}" if precision == "float32" else "",
        ]
        for precision, of_all in values["trainings"].items()
        for name, row in of_all.items()
    ]
    columns = (
        "strategy",
        "type",
        "first loss",
        "last loss",
        "losses off",
        "weights off",
        "step, ms (quartiles)",
        "predicted, ms",
    )
    return Table(columns, rows, left=("strategy", "type"))


def told(values: Mapping[str, Any]) -> str:
    """What came of it, in two sentences."""
    off = {
        precision: max(row["loss_off"] for row in of_all.values()) for precision, of_all in values["trainings"].items()
    }
    times = {name: row["step_ms"]["median"] for name, row in values["trainings"]["float32"].items()}
    return (
        f"Over {values['settings']['steps']} steps no loss differs from that on one device by more than "
        f"{off['float32']:.1e} of it in float32, and {off['float64']:.1e} in float64. A step by the strategy found "
        f"takes {times['found'] / times['data parallel']:.2f} times what data parallelism takes, and "
        f"{times['found'] / times['one device']:.2f} times what one device takes."
    )


def misses(values: Mapping[str, Any], off: Mapping[str, float]) -> bool:
    """Whether losses differ by more than rounding, or the strategy found is slower than data parallelism."""
    trainings = values["trainings"]
    differ = any(row["loss_off"] > off[precision] for precision in trainings for row in trainings[precision].values())
    found, data = (trainings["float32"][name]["step_ms"]["median"] for name in ("found", "data parallel"))
    return differ or found > SLOWER * data


def markdown(values: Mapping[str, Any], environment: str) -> str:
    """The page `tiles.md`, from the same values as `tiles.json`."""
    settings = values["settings"]
    network = f"{settings['layers']} LSTM layers of {settings['hidden']} units, {values['parameters']:,} parameters"
    return f"""# A training by a strategy that was found

`{values["command"]}`, {values["date"][:10]}, {values["seconds"]:.0f} s. {environment}.

RNNLM (Jia et al., 2018, table 3) with {network} and {values["operators"]} operators
learns the characters of Python's help texts, {settings["batch"]} sequences of {settings["length"]} a step,
{settings["steps"]} steps, with SGD and momentum, by `bow.train(..., strategy=...)` on two processes with a core each.
{values["evaluated"]:,} strategies were simulated to find one, with {settings["costs"]} times of tiles and messages. All
trainings begin with the same weights and see the same batches; losses and weights are compared with those on one
device, as parts of the loss and of the largest weight. In float32 they trained in turn, {settings["turns"]} times; a
step's time is the median over all steps behind the first ten, with quartiles.

**{told(values)}**

{table(values).markdown()}"""
