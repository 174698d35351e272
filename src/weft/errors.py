"""Every error that Weft raises on purpose.

    WeftError
    ├── ParseError       text that is not a program, a pipeline or a plan; knows line and column
    ├── OptionError      a pass that does not exist, or an option that it does not take
    ├── ProgramError     an edit or a construction that would not be a Program
    ├── GraphError       a torch graph that cannot be imported, or a Program that cannot be lowered
    ├── PlanError        a plan made for another program, or that cannot be carried out
    ├── VerifyError      a Program that breaks a rule; lists every violation
    ├── PassError        a pass that failed; names it, its cause and where the reproducer is
    ├── CostError        a cost model that gives an impossible time; names the op
    ├── MachineError     a machine that does not exist, or a file that does not describe one; knows the line
    ├── ProfileError     a file that is no trace of torch.profiler, or has nothing in it that can be used
    └── AgreementError   ranks that cannot agree, or a rank that cannot learn what the others decided

    WeftWarning          an answer that Weft gives but would not swear to

The command line prints the message of a WeftError and nothing else; any other exception is a defect of Weft.
"""

from __future__ import annotations

_SHOWN = 120  # characters of an offending line that are worth showing


class WeftError(Exception):
    """The root: catch this to catch everything that Weft raises on purpose."""


class ParseError(WeftError):
    """Text that could not be read. `line` and `column` count from one; `expected` says what would have been right."""

    def __init__(self, expected: str, found: str, line: int, column: int, text: str, source: str = "<text>") -> None:
        self.expected, self.found = expected, found
        self.line, self.column, self.source = line, column, source
        super().__init__(f"{source}:{line}:{column}: expected {expected}, found {found}\n{_excerpt(text, column)}")


class OptionError(WeftError):
    """A pass name or an option that cannot be used as it was given."""


class ProgramError(WeftError):
    """An operation on a Program that would leave something that is not one."""


class GraphError(WeftError):
    """A graph that cannot cross between torch and Weft."""


class PlanError(WeftError):
    """A plan that does not belong to the program it is applied to."""


class VerifyError(WeftError):
    """A Program that breaks at least one rule. `violations` holds one entry per breach."""

    def __init__(self, violations: tuple[object, ...]) -> None:
        self.violations = violations
        count = f"{len(violations)} violation" + ("s" if len(violations) != 1 else "")
        super().__init__("\n\n".join([count, *map(str, violations)]))


class PassError(WeftError):
    """A pass that failed. `reproducer` is the path of a file that `weft opt` replays, if one was written.

    `options` are those that the run had and that the file does not hold, such as --machine.
    """

    def __init__(self, pass_text: str, cause: Exception, reproducer: str | None, options: tuple[str, ...] = ()) -> None:
        self.pass_text, self.cause, self.reproducer = pass_text, cause, reproducer
        # A WeftError explains itself; anything else needs its type to be understood.
        why = str(cause) if isinstance(cause, WeftError) else f"{type(cause).__name__}: {cause}"
        same = f", with the same {' and '.join(options)}," if options else ""
        replay = f"\nreplay it{same} with: weft opt {reproducer}" if reproducer else ""
        super().__init__(f"pass {pass_text} failed: {why}{replay}")


class CostError(WeftError):
    """A cost model that says of an op what cannot be: a time that is negative, infinite or no number."""


class MachineError(WeftError):
    """A machine that cannot be used. `line` counts from one, and is 0 where the file as a whole is at fault."""

    def __init__(self, reason: str, source: str, line: int = 0) -> None:
        self.reason, self.source, self.line = reason, source, line
        super().__init__(f"{source}:{line}: {reason}" if line else f"{source}: {reason}")


class ProfileError(WeftError):
    """A trace that cannot be used. `source` is the file."""

    def __init__(self, reason: str, source: str) -> None:
        self.reason, self.source = reason, source
        super().__init__(f"{source}: {reason}")


class AgreementError(WeftError):
    """Ranks that do not decide alike, or a rank that cannot tell whether they did."""


class WeftWarning(UserWarning):
    """Something that is answered by extrapolation or by default. Shown once for each place that it concerns."""


def _excerpt(text: str, column: int) -> str:
    """The part of a line around a column, with a caret under it. A line may be megabytes long."""
    start = max(0, column - 1 - _SHOWN // 2)
    shown = text[start : start + _SHOWN]
    left, right = ("…" if start else ""), ("…" if start + _SHOWN < len(text) else "")
    return f"  {left}{visible(shown)}{right}\n  {' ' * (len(left) + column - 1 - start)}^"


def visible(text: str) -> str:
    """The text without control characters, which would move the caret or the reader's terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "·" for c in text)
