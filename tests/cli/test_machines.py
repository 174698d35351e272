from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Weft
from tests.cost.files import SMALL
from weft.cost.machine import presets


def test_all_presets_are_listed(weft: Weft) -> None:
    outcome = weft("machines")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    heading, *lines = outcome.stdout.splitlines()
    assert heading.split() == ["machine", "memory", "bf16", "links,", "GB/s", "each", "way", "fitted"]
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(presets())
    listed = json.loads(weft("machines", "--json").stdout)["machines"]
    assert [machine["name"] for machine in listed] == list(presets())


@pytest.mark.parametrize("name", presets())
def test_a_machine_is_shown_with_the_sources_of_its_figures(weft: Weft, name: str) -> None:
    outcome = weft("machines", name)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith(f"{name}\n")
    found = json.loads(weft("machines", "--json", name).stdout)
    unsourced = [one["key"] for one in found["figures"] if not one["source"]]
    assert set(unsourced) <= {"name", "about", "mesh"}


def test_a_file_is_shown_as_it_is_written(weft: Weft) -> None:
    Path("mine.toml").write_text(SMALL.replace("gb_per_s = 10\n", "gb_per_s = 10  # [red]measured[/red]\n"))
    outcome = weft("machines", "mine.toml")
    lines = [line.split() for line in outcome.stdout.splitlines()]
    assert lines[0] == ["small"]
    assert ["gb_per_s", "10", "[red]measured[/red]"] in lines
    assert ["protocols", '["plain"]'] in lines
    assert ["fitted:", "1", "curve,", "1", "dtype"] in lines
    found = json.loads(weft("machines", "--json", "mine.toml").stdout)
    assert found["curves"] == [{"kind": "all_gather", "ranks": 2, "nodes": 1, "bytes": [1000, 100000]}]
    assert found["levels"][1] == {
        "name": "outer", "ranks": None, "gb_per_s": 10, "latency_us": 5, "efficiency": 0.5, "shared_by": 1,
        "mesh": False, "symmetric": False,
    }  # fmt: skip


def test_what_is_no_machine_exits_with_two(weft: Weft) -> None:
    Path("bad.toml").write_text(SMALL.replace("gb_per_s = 10\n", "gb_per_s = -10\n"))
    outcome = weft("machines", "bad.toml")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == "weft: bad.toml:24: level.gb_per_s: must be more than 0, not -10\n"
    unknown = weft("machines", "--json", "h100")
    assert unknown.exit_code == 2
    assert json.loads(unknown.stdout)["error"] == "MachineError"


def test_a_file_cannot_steer_the_terminal(weft: Weft) -> None:
    Path("odd.toml").write_text(SMALL.replace('"Two nodes of four."', '"\\u001b[31mred"'))
    assert "\x1b" not in weft("machines", "odd.toml").stdout


@pytest.mark.parametrize(
    "example", ["weft machines", "weft machines h100-ib400", "weft machines --json my-cluster.toml"]
)
def test_help_has_examples(weft: Weft, example: str) -> None:
    outcome = weft("machines", "--help")
    assert example in [line.strip() for line in outcome.stdout.splitlines()]
    assert "Exit codes: 0 " in " ".join(outcome.stdout.split())
