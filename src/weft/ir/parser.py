"""From text to Program. Syntax only: whether the program makes sense is `verify`'s business."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

from weft.ir.args import Arg, Const, Device, Dict, Dtype, Function, Opaque, Ref, Slice, Tuple
from weft.ir.dims import Dim, Expr, call, symbol
from weft.ir.lexer import Line, is_digits
from weft.ir.program import Collective, Group, Op, Program
from weft.ir.specs import DTYPES, SCALARS, ScalarSpec, Spec, TensorSpec
from weft.ir.targets import FUSED, STARTS, traits_of
from weft.ir.traits import Traits

T = TypeVar("T")

_DEEPEST = 100  # nesting beyond this is garbage, and would overflow Python's stack
_SIZE_FUNCTIONS = ("max", "min", "mod")
_CONSTRUCTORS = ("slice", "complex", "opaque")
_MOST_RANKS = 1 << 20
_MOST_TERMS = 1000
_LARGEST = 10**4000
_MOST_ELEMENTS = 2**63  # torch has no larger tensors, and bytes and times have to be floats
_WORDS: dict[str, Arg] = {"None": None, "True": True, "False": False, "inf": math.inf, "nan": math.nan}


def parse(text: str, source: str = "<text>") -> Program:
    """The Program that `text` describes. Raises ParseError with line, column and what was expected.

    `source` names the text in errors, usually its file.
    """
    return _Parser(source).program(text)


class _Parser:
    def __init__(self, source: str) -> None:
        self.source = source
        self.groups: dict[str, Group] = {}
        self.symbols: dict[str, Expr] = {}
        self.depth = 0

    def program(self, text: str) -> Program:
        ops: list[Op] = []
        history: list[str] = []
        outputs: tuple[Arg, ...] | None = None
        rank: int | None = None
        versioned = False
        # splitlines() would also cut at characters that may stand inside a comment.
        lines = text.split("\n")
        for number, content in enumerate(lines, start=1):
            line = Line(content.removesuffix("\r"), number, self.source)
            if not line.next:
                continue
            if not versioned:
                self.version(line)
                versioned = True
            elif outputs is not None:
                raise line.error("nothing after 'return'")
            elif line.kind == "value":
                ops.append(self.op(line))
            elif line.accept("history"):
                history.append(line.string("the pass that made this program, quoted"))
            elif line.accept("rank"):
                rank = self.rank(line, rank)
            elif line.accept("group"):
                self.group(line)
            elif line.accept("symbol"):
                self.symbol(line)
            elif line.accept("return"):
                outputs = self.listing(line, self.arg, end="")
            else:
                raise line.error("an op (%name: type = target(...)), 'group', 'symbol', 'rank', 'history' or 'return'")
            line.end()
        if outputs is None:
            wanted = "'return' and the outputs" if versioned else "'weft 1'"
            raise Line("", len(lines), self.source).error(wanted, found="the end of the file")
        return Program(tuple(ops), outputs, tuple(history), rank=rank)

    def version(self, line: Line) -> None:
        if not line.accept("weft"):
            raise line.error("'weft 1', the first line of every program")
        if line.next != "1":
            raise line.error("version 1 of the text form, the only one that this Weft reads")
        line.take()

    def rank(self, line: Line, known: int | None) -> int:
        if known is not None:
            raise line.error("the rank once")
        return line.integer("the rank whose program this is")

    def group(self, line: Line) -> None:
        at = line.mark()
        name = line.name("the name of the group")
        if name in self.groups:
            raise line.error("each group once", found=f"'{name}' again", at=at)
        line.expect("=")
        ranks: list[int] = []
        while True:
            at = line.mark()
            first = line.integer("a rank")
            last = line.integer("the last rank") if line.accept("..") else first
            step = line.integer("a step") if line.accept("by") else 1
            if step < 1 or last < first or (last - first) // step >= _MOST_RANKS - len(ranks):
                raise line.error(f"a rising range of at most {_MOST_RANKS} ranks", at=at)
            ranks += range(first, last + 1, step)
            if not line.accept(","):
                break
        self.groups[name] = Group(name, tuple(ranks))

    def symbol(self, line: Line) -> None:
        at = line.mark()
        name = line.expect_kind("name", "the name of the symbol")
        if name in _WORDS or name in DTYPES or name in _SIZE_FUNCTIONS or name in _CONSTRUCTORS:
            raise line.error("a name that is no dtype or literal", at=at)
        if name in self.symbols:
            raise line.error("each symbol once", found=f"'{name}' again", at=at)
        line.expect("=")
        self.symbols[name] = symbol(name, line.integer("its hint"))

    def op(self, line: Line) -> Op:
        name = self.value(line)
        line.expect(":")
        out = self.specs(line)
        line.expect("=")
        target = line.name("a target such as aten.mm.default")
        line.expect("(")
        args: list[Arg] = []
        kwargs: dict[str, Arg] = {}
        self.listing(line, lambda line: self.argument(line, args, kwargs), end=")")
        said = self.collective(line, target)
        traits = self.traits(line) if line.accept("{") else traits_of(target)
        sources = self.listing(line, self.value, end="") if line.accept("from") else ()
        comm, inside = (said, None) if target in STARTS else (None, said)
        return Op(name, target, tuple(args), kwargs, out, traits, comm, _origin(line), sources, inside)

    def collective(self, line: Line, target: str) -> Collective | None:
        kind = STARTS.get(target) or FUSED.get(target)
        if kind is None:
            return None
        reduce_op = "" if line.next == "over" else line.expect_kind("name", "'over' and a group, or a reduction")
        line.expect("over")
        at = line.mark()
        name = line.name("the name of a group")
        if name not in self.groups:
            raise line.error("a group that was declared at the top", at=at)
        return Collective(kind, self.groups[name], reduce_op)

    def traits(self, line: Line) -> Traits:
        found: dict[str, Any] = {}

        def word(line: Line) -> None:
            if line.next in ("views", "mutates"):
                name = line.take()
                line.expect("(")
                found[name] = self.listing(line, _argument_key, end=")")
            elif line.next in ("copies", "random", "matmul", "communicates", "barrier"):
                found[line.take()] = True
            else:
                line.expect("pure")

        self.listing(line, word, end="}")
        return Traits(**found)

    def specs(self, line: Line) -> tuple[Spec, ...]:
        if line.accept("("):
            return self.listing(line, self.spec, end=")")
        return (self.spec(line),)

    def spec(self, line: Line) -> Spec:
        at = line.mark()
        dtype = line.expect_kind("name", "a type such as bf16[4096,512]")
        if not line.accept("["):
            if dtype not in SCALARS:
                raise line.error(f"a dtype with a shape, or one of {', '.join(SCALARS)}", at=at)
            value = self.dim(line) if line.accept("(") else None
            if value is not None:
                line.expect(")")
            return ScalarSpec(dtype, value)
        if dtype not in DTYPES:
            raise line.error(f"a dtype ({', '.join(DTYPES)})", at=at)
        shape, strides = self.dims(line), None
        if line.accept(";"):
            strides = self.dims(line)
            if len(strides) != len(shape):
                raise line.error(f"{len(shape)} strides", found=str(len(strides)))
        if math.prod(abs(size) or 1 for size in shape if isinstance(size, int)) > _MOST_ELEMENTS:
            raise line.error("a shape that is not beyond all bounds", at=at)
        line.expect("]")
        device = line.take()[1:] if line.kind == "device" else ""
        return TensorSpec(shape, dtype, strides, device)

    def dims(self, line: Line) -> tuple[Dim, ...]:
        if line.next in ("]", ";"):
            return ()
        found = [self.dim(line)]
        while line.accept(","):
            found.append(self.dim(line))
        return tuple(found)

    # Arguments

    def argument(self, line: Line, args: list[Arg], kwargs: dict[str, Arg]) -> None:
        at = line.mark()
        key = line.keyword()
        if key is None:
            args.append(self.arg(line))
        elif key in kwargs:
            raise line.error("each keyword once", found=f"'{key}' again", at=at)
        else:
            kwargs[key] = self.arg(line)

    def arg(self, line: Line) -> Arg:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise line.error(f"at most {_DEEPEST} levels of nesting")
        found = self.nested(line)
        self.depth -= 1
        return found

    def nested(self, line: Line) -> Arg:
        kind = line.kind
        if kind == "value":
            return Ref(self.value(line))
        if kind == "string":
            return line.string()
        if kind == "device":
            return Device(line.take()[1:])
        if kind == "function":
            return Function(line.take()[1:])
        if line.accept("["):
            return self.listing(line, self.arg, end="]")
        if line.accept("{"):
            return Dict(self.listing(line, self.entry, end="}"))
        if kind == "name" and line.next not in self.symbols and line.next not in _SIZE_FUNCTIONS:
            return self.word(line)
        return self.number(line)

    def word(self, line: Line) -> Arg:
        at, text = line.mark(), line.take()
        if text in _WORDS:
            return _WORDS[text]
        if text in DTYPES:
            return Dtype(text)
        if text.startswith("torch."):
            return Const(text)
        if text not in _CONSTRUCTORS:
            raise line.error("a value, a literal or a declared symbol", at=at)
        line.expect("(")
        match text, self.listing(line, self.arg, end=")"):
            case "slice", (start, stop, step):
                return Slice(start, stop, step)
            case "complex", (float(real), float(imaginary)):
                return complex(real, imaginary)
            case "opaque", (str(key), str(shown)):
                return Opaque(key, shown)
        raise line.error("slice(a, b, c), complex(re, im) or opaque(key, text)", at=at)

    def number(self, line: Line) -> Arg:
        """A float, a size, or a tuple: all three may begin with a sign or a parenthesis."""
        digits = line.peek() if line.next == "-" else line.next
        if digits in ("inf", "nan") or (is_digits(digits[:1]) and not is_digits(digits)):
            sign = -1.0 if line.accept("-") else 1.0
            return sign * float(line.take())
        if line.next != "(":
            if not is_digits(digits) and digits not in self.symbols and digits not in (*_SIZE_FUNCTIONS, "("):
                raise line.error("an argument")
            return self.dim(line)
        # `(a, b)` is a tuple and `(a + b)//2` a size: a comma or an empty pair tells.
        start = line.mark()
        line.take()
        items = self.listing(line, self.arg, end=")")
        if len(items) == 1 and line.last() != ",":
            line.reset(start)
            return self.dim(line)
        return Tuple(items)

    def entry(self, line: Line) -> tuple[str, Arg]:
        key = line.string("a key in quotes")
        line.expect(":")
        return key, self.arg(line)

    # Sizes: sums of products of atoms

    def dim(self, line: Line) -> Dim:
        total = self.term(line)
        while line.next in ("+", "-"):
            sign = line.take()
            term = self.term(line)
            total = total + term if sign == "+" else total - term
        return total

    def term(self, line: Line) -> Dim:
        value = self.factor(line)
        while line.next in ("*", "//"):
            operator = line.take()
            at = line.mark()
            right = self.factor(line)
            if operator != "*" and right == 0:
                raise line.error("a divisor that is not zero", found="0", at=at)
            value = value * right if operator == "*" else value // right
            terms = [value] if isinstance(value, int) else [factor for _, factor in value.terms]
            if len(terms) > _MOST_TERMS or max(map(abs, terms)) > _LARGEST:
                raise line.error("a size that is not beyond all bounds", at=at)
        return value

    def factor(self, line: Line) -> Dim:
        if line.next == "-":
            negative = False
            while line.accept("-"):  # a loop: there may be millions
                negative = not negative
            return -self.factor(line) if negative else self.factor(line)
        if line.accept("("):
            value = self.nested_dim(line)
            line.expect(")")
            return value
        text = line.next
        if is_digits(text):
            return line.integer()
        if text in _SIZE_FUNCTIONS:
            line.take()
            line.expect("(")
            left = self.nested_dim(line)
            line.expect(",")
            right = self.nested_dim(line)
            line.expect(")")
            if text == "mod" and right == 0:
                raise line.error("a divisor that is not zero", found="0")
            return left % right if text == "mod" else call(text, left, right)
        if text not in self.symbols:
            raise line.error("a size: a number or a symbol that was declared at the top")
        line.take()
        return self.symbols[text]

    def nested_dim(self, line: Line) -> Dim:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise line.error(f"at most {_DEEPEST} levels of nesting")
        value = self.dim(line)
        self.depth -= 1
        return value

    # Small parts

    def value(self, line: Line) -> str:
        at = line.mark()
        text = line.expect_kind("value", "a value such as %x")[1:]
        name = line.unquote(text, at) if text[0] == '"' else text
        if not name:
            raise line.error("a name that is not empty", at=at)
        return name

    def listing(self, line: Line, item: Callable[[Line], T], end: str) -> tuple[T, ...]:
        """Items between commas, up to `end`; an empty `end` is the end of the line."""
        items: list[T] = []
        while True:
            if line.accept(end) if end else not line.next:
                return tuple(items)
            items.append(item(line))
            if not line.accept(","):
                if end:
                    line.expect(end)
                return tuple(items)


def _argument_key(line: Line) -> int | str:
    return line.integer() if is_digits(line.next) else line.name("the position or the keyword of an argument")


def _origin(line: Line) -> str:
    """What the trailing comment says."""
    if not line.comment.startswith('"'):
        return line.comment
    try:
        return str(json.loads(line.comment))
    except ValueError:
        return line.comment
