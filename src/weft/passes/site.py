"""Where several collectives become one: new ops go to the launch, or before the first use of a member."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weft.analysis.windows import Window
from weft.ir.args import Arg, Dtype, Ref
from weft.ir.dims import Dim
from weft.ir.editor import Editor
from weft.ir.program import Collective, Op, Program
from weft.ir.specs import DTYPES, Spec, TensorSpec
from weft.ir.targets import traits_of

Place = tuple[int, int, int]  # a position of the program; before it (0), the op there (1), behind it (2); and a number


@dataclass(frozen=True)
class Bucket:
    """Collectives to be merged, the position behind which they are launched, and the way, one of `merging.WAYS`."""

    members: tuple[Window, ...]
    launch: int
    way: str


@dataclass
class Site:
    """Where a bucket is built. New ops go to the launch or before the first use of a member, each behind the last."""

    program: Program
    editor: Editor
    bucket: Bucket
    places: dict[str, Place]  # of every op: what the program is sorted by in the end
    numbers: Iterator[int]
    starts: list[Op] = field(init=False)
    comm: Collective = field(init=False)

    def __post_init__(self) -> None:
        self.starts = [member.start for member in self.bucket.members]
        comm = self.starts[0].comm
        assert comm is not None, "a start communicates"
        self.comm = comm

    @property
    def at_launch(self) -> tuple[int, int]:
        return self.bucket.launch, 2

    def before_use(self, member: Window | None = None) -> tuple[int, int]:
        """Before the first op that uses the result of a member, or of any of them."""
        return member.used if member is not None else min(one.used for one in self.bucket.members), 0

    def before_overwritten(self) -> tuple[int, int]:
        """Before the first op that writes to what any member sends."""
        return min(member.overwritten for member in self.bucket.members), 0

    def waits(self, member: Window) -> list[str]:
        family = [self.program.ops[position] for position in member.family]
        return [op.name for op in family if op.is_wait]

    def add(
        self, where: tuple[int, int], name: str, target: str, *args: Arg, out: Sequence[Spec], of: Sequence[str] = ()
    ) -> Ref:
        """Put in a new op, which stands for the ops `of`. It comes from where they do."""
        comm = self.comm if target == self.starts[0].target else None
        origin = self.program[of[0]].origin if of else ""
        own = self.editor.free_name(name)
        return self.put(where, Op(own, target, args, {}, tuple(out), traits_of(target), comm, origin, tuple(of)))

    def put(self, where: tuple[int, int], op: Op) -> Ref:
        """Put in a new op, under its name or one like it."""
        ref = self.editor.insert_before(self.program.ops[0].name, op)  # the order is settled at the end
        self.places[ref.name] = (*where, next(self.numbers))
        return ref

    def move(self, position: int, where: tuple[int, int]) -> None:
        """Put an op of the program elsewhere."""
        self.places[self.program.ops[position].name] = (*where, next(self.numbers))

    def spec(self, ref: Ref) -> TensorSpec:
        # A wait that another bucket took away is still named by those that use it, and is replaced in the end.
        (spec,) = (self.program if ref.name in self.program else self.editor)[ref.name].out
        assert isinstance(spec, TensorSpec)
        return spec

    def view(
        self, where: tuple[int, int], name: str, value: Ref, shape: tuple[Dim, ...], of: Sequence[str] = ()
    ) -> Ref:
        """A value in another shape: itself if it has that, a view where its layout allows it, else a copy."""
        spec = self.spec(value)
        if spec == TensorSpec(shape, spec.dtype) and not of:
            return value
        target = "aten.view.default" if spec.strides is None else "aten.reshape.default"
        return self.add(where, name, target, value, shape, out=(TensorSpec(shape, spec.dtype),), of=of)

    def cast_view(self, where: tuple[int, int], name: str, value: Ref, dtype: str) -> Ref:
        """The bytes of a flat value as another dtype."""
        spec = self.spec(value)
        if spec.dtype == dtype:
            return value
        size = spec.numel * DTYPES[spec.dtype] // DTYPES[dtype]
        return self.add(where, name, "aten.view.dtype", value, Dtype(dtype), out=(TensorSpec((size,), dtype),))
