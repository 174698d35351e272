"""A training script as `weft plan` takes it: `mesh_for` says how ranks are laid out, `build` makes the step."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import weft
from weft.errors import WeftError
from weft.ir.notebook import shown
from weft.ir.program import Program

if TYPE_CHECKING:  # a program in the text form is planned without torch
    from torch.distributed.device_mesh import DeviceMesh

_NAME = "weft_planned_script"  # not "__main__": what a script does when it is run is not wanted
_PROTOCOL = (
    "a script needs two functions: mesh_for(world_size), which returns the names and sizes of the mesh, and "
    "build(mesh), which returns the training step and a tuple of what it is called with"
)
_LONGEST = 300  # characters of an error message that are worth a place in one paragraph


@dataclass(frozen=True)
class Script:
    """The two functions of a script. They are the user's: what they raise becomes a WeftError that says where."""

    path: str
    mesh_for: Callable[[int], object]
    build: Callable[[Any], object]

    def mesh(self, world_size: int) -> dict[str, int]:
        """The names and sizes of the mesh for so many ranks; WeftError if they are for another number."""
        with self.users_code(f"mesh_for({world_size})"):
            found = self.mesh_for(world_size)
        match found:
            case Mapping() if found and all(isinstance(name, str) and _is_size(size) for name, size in found.items()):
                mesh = dict(found)
            case _:
                wanted = 'must return names and sizes, such as {"data": 64}'
                raise WeftError(f"{self.path}: mesh_for({world_size}) {wanted}, not {shown(repr(found), 80)}")
        if (ranks := prod(mesh.values())) != world_size:
            raise WeftError(
                f"{self.path}: mesh_for({world_size}) returned a mesh of {ranks} ranks ({mesh_text(mesh)}); "
                "give a --world-size that it can lay out"
            )
        return mesh

    def capture(self, world_size: int, progress: Callable[[str, int], None]) -> Program:
        """The step for so many ranks, captured on this machine without them."""
        with weft.planning(self.mesh(world_size)) as mesh:
            step, args = self.built(mesh)
            with self.users_code("the step"):
                return weft.capture(step, args, progress=progress)

    def built(self, mesh: DeviceMesh) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The step, and what it is called with."""
        with self.users_code("build"):
            made = self.build(mesh)
        match made:
            case (step, tuple(args) | list(args)) if callable(step):
                return step, tuple(args)
        wanted = "build must return the step and a tuple of what it is called with"
        raise WeftError(f"{self.path}: {wanted}, not {shown(repr(made), 80)}")

    def users_code(self, what: str) -> AbstractContextManager[None]:
        """What is raised inside, by code of the script's, becomes a WeftError that says where."""
        return _users(self.path, what)


@contextmanager
def opened(path: str) -> Iterator[Script]:
    """The script in a file. Its code is run, with its folder on the path, and what it prints goes to standard error."""
    try:
        os.stat(path)  # before `resolve`, which raises what it likes about a loop of links
    except OSError as error:
        raise WeftError(f"cannot read {path}: {error.strerror}") from None
    if not os.path.isfile(path):
        raise WeftError(f"cannot read {path}: {'Is a directory' if os.path.isdir(path) else 'Not a file'}")
    file = Path(path).resolve()
    old_path, old_argv = list(sys.path), sys.argv
    sys.path.insert(0, str(file.parent))
    sys.argv = [path]
    try:
        with redirect_stdout(sys.stderr):
            yield _script(path, file)
    finally:
        sys.path[:], sys.argv = old_path, old_argv
        sys.modules.pop(_NAME, None)


def mesh_text(mesh: Mapping[str, int]) -> str:
    """Such as data=8 x tensor=8."""
    return shown(" x ".join(f"{name}={size}" for name, size in mesh.items()))


def _script(path: str, file: Path) -> Script:
    module = _loaded(path, file)
    names = ("mesh_for", "build")
    mesh_for, build = (getattr(module, name, None) for name in names)
    missing = [name for name, one in zip(names, (mesh_for, build), strict=True) if not callable(one)]
    if mesh_for is None or build is None or missing:
        raise WeftError(f"{path} has no function {' and no function '.join(missing)}: {_PROTOCOL}")
    return Script(path, mesh_for, build)


def _loaded(path: str, file: Path) -> ModuleType:
    """The script as a module. It is compiled here, not imported: nothing is written beside it."""
    module = ModuleType(_NAME)
    module.__file__ = str(file)
    sys.modules[_NAME] = module  # dataclasses and pickles look their module up
    with _users(path, "the script"):
        exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    return module


@contextmanager
def _users(path: str, what: str) -> Iterator[None]:
    """Code of the user's: what it raises is told in one paragraph, with the line of the script and the last line."""
    try:
        yield
    except WeftError:
        raise
    except (Exception, SystemExit) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        own = [frame for frame in frames if Path(frame.filename) == Path(path).resolve()]
        lines = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in (*own[-1:], *frames[-1:])]
        at = f" at {', in '.join(dict.fromkeys(lines))}" if lines else ""
        message = shown(str(error).strip().split("\n")[0], _LONGEST)
        why = f"{type(error).__name__}{': ' * bool(message)}{message}"
        raise WeftError(f"{path}: {what} failed{at}: {why}") from error


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size > 0
