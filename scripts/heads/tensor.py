"""Arrays of a checkpoint that are read when they are asked for, and the errors of converters."""

import pathlib
import re
import sys

import numpy as np

# Bits of 16-bit floats with 8 bits of exponent, which numpy has no type for.
BF16 = "bf16"


class Refused(Exception):
    """What cannot be converted, and why, in one line."""


def say(text):
    """One line on stderr, whatever is in the names that it quotes."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text)
    line = line if len(line) <= 1000 else line[:1000] + "..."
    print(f"{pathlib.Path(sys.argv[0]).stem}: {line}", file=sys.stderr)


def note(text):
    """Says something about a conversion that is no error."""
    say(f"note: {text}")


def dtype(kind):
    return np.dtype("<u2" if kind == BF16 else kind)


def shape_text(shape):
    return "[" + ", ".join(map(str, shape)) + "]"


def sizes(values):
    return isinstance(values, list) and len(values) <= 8 and all(type(v) is int and 0 <= v < 1 << 48 for v in values)


class Tensor:
    """A named array of a checkpoint, not read yet."""

    def __init__(self, file, name, kind, shape, load):
        self.file, self.name, self.kind, self.shape, self.load = file, name, kind, tuple(shape), load

    def __str__(self):
        return f"{self.file}: tensor {self.name}"

    def expect(self, *shape):
        """This tensor, if it has that shape; -1 stands for any length."""
        if len(shape) != len(self.shape) or 0 in self.shape or any(w not in (-1, s) for w, s in zip(shape, self.shape)):
            wanted = shape_text("any" if w == -1 else w for w in shape)
            raise Refused(f"{self} has shape {shape_text(self.shape)}, must have {wanted}")
        return self

    def changed(self, shape, change):
        """The same tensor with its values rearranged when they are read."""
        return Tensor(self.file, self.name, self.kind, shape, lambda: change(self.load()))

    def rows(self, ids):
        """The rows of these indices, or of a slice."""
        count = len(range(*ids.indices(self.shape[0]))) if isinstance(ids, slice) else len(ids)
        return self.changed((count, *self.shape[1:]), lambda values: values[ids])

    def floats(self):
        """The values in f32."""
        values = self.load()
        if self.kind == BF16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        elif values.dtype.kind != "f":
            raise Refused(f"{self} holds {self.kind} values, must hold floats (F64, F32, F16 or BF16)")
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
        if not np.isfinite(values).all():
            raise Refused(f"{self} holds a NaN or an infinity")
        return values.reshape(self.shape)

    def integers(self):
        """The values as 64-bit integers; whole floats pass."""
        values = self.floats() if self.kind == BF16 or dtype(self.kind).kind == "f" else self.load()
        if (values != np.trunc(values)).any() if values.dtype.kind == "f" else False:
            raise Refused(f"{self} holds fractions, must hold whole numbers")
        return values.astype(np.int64).reshape(self.shape)
