"""Importing weft is cheap: torch comes only with what needs it."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import weft
import weft.fx


def modules_after(code: str) -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(shown.stdout.split())


def test_importing_weft_and_working_on_text_does_not_import_torch() -> None:
    code = "import weft; p = weft.parse('weft 1\\nreturn'); weft.verify(p, p); import weft.pipeline, weft.analysis"
    assert not {"torch", "sympy", "numpy", "rich"} & modules_after(code)


def test_the_command_line_does_not_import_torch_for_text() -> None:
    assert "torch" not in modules_after("import weft.cli.opt, weft.cli.verify, weft.cli.plan")


def test_what_needs_torch_is_there_when_asked_for() -> None:
    assert "torch" in modules_after("import weft; weft.from_fx")


def test_the_passes_and_the_simulator_come_when_they_are_asked_for() -> None:
    late = {"weft.optimizer", "weft.passes", "weft.sim", "weft.fx", "weft.run"}
    assert not late & modules_after("import weft")
    assert late & modules_after("import weft; weft.optimize") == {"weft.optimizer", "weft.passes", "weft.sim"}


def test_to_run_a_program_takes_neither_dynamo_nor_dtensor() -> None:
    assert not {"torch._dynamo", "torch.distributed.tensor"} & modules_after("import weft; weft.to_fx, weft.from_fx")


@pytest.mark.parametrize("room", [weft, weft.fx])
def test_every_public_name_exists_and_stays_what_it_is(room: ModuleType) -> None:
    assert [name for name in room.__all__ if getattr(room, name) is not getattr(room, name)] == []
    assert [name for name in room.__all__ if isinstance(getattr(room, name), ModuleType)] == []


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'nothing'"):
        _ = weft.nothing


def test_verify_stays_the_function_after_its_room_was_imported() -> None:
    import weft.verify.ranks

    assert callable(weft.verify)
