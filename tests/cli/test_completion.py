"""What the shell completes."""

from __future__ import annotations

import pytest
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from weft.cli import main
from weft.cost.machine import presets
from weft.optimizer import PRESETS
from weft.passes import PASSES


def completed(*words: str, shell: type[ShellComplete] = BashComplete) -> list[tuple[str, str]]:
    """What the last of the words may become, and what kind of thing that is."""
    complete = shell(main, {}, "weft", "_WEFT_COMPLETE")
    return [(item.value, item.type) for item in complete.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize("shell", [BashComplete, ZshComplete, FishComplete])
def test_machines_are_completed_in_every_shell(shell: type[ShellComplete]) -> None:
    assert completed("explain", "-m", "h100", shell=shell) == [("h100-eth100", "plain"), ("h100-ib400", "plain")]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("plan", "--machine", ""), presets()),
        (("machines", "gb2"), ("gb200-nvl72",)),
        (("opt", "-p", "sink"), ("sink_waits",)),
        (("opt", "-p", ""), tuple(PASSES)),
        (("opt", "-p", "sink_waits,ho"), ("sink_waits,hoist_starts",)),
        (("opt", "--preset", ""), tuple(PRESETS)),
        (("plan", "-p", "sa"), ("safe",)),
        (("plan", "-p", "de"), ("default", "dedupe")),
        (("plan", "--sweep", "m"), ("machine=", "memory-limit=")),
        (("plan", "--sweep", "machine=h100-ib400,gb2"), ("machine=h100-ib400,gb200-nvl72",)),
    ],
)
def test_options_with_known_values_are_completed(words: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert completed(*words) == [(value, "plain") for value in found]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("explain", "-m", "my-cl"), "file"),
        (("explain", "st"), "file"),
        (("verify", "before.weft", "af"), "file"),
        (("simulate", "--profile", "ra"), "file"),
        (("opt", "--plan", "pl"), "file"),
        (("plan", "--out", "re"), "dir"),
    ],
)
def test_files_are_left_to_the_shell(words: tuple[str, ...], kind: str) -> None:
    assert completed(*words) == [(words[-1], kind)]
