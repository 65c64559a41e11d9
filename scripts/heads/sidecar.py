"""The GGUF file that a head becomes, and the target that it belongs to. models/SIDECARS.md describes the format."""

import hashlib
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from heads.tensor import Refused, note, say, shape_text

TYPES = {"f32": Type.F32, "f16": Type.F16, "q8_0": Type.Q8_0, "q4_0": Type.Q4_0, "q4_1": Type.Q4_1}
KINDS = ("medusa", "eagle", "eagle3")
SAMPLE = 256  # rows that tell whether two tables are the same
COPY = 0.1  # energy of the difference over energy below which they are: 2-bit formats stay below, other weights are above 1


class Gguf:
    """Keys and tensors of a file."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        try:
            with open(path, "rb") as file:
                if file.read(4) != b"GGUF":
                    raise Refused(f"{path}: is not a GGUF file")
            self.reader = gguf.GGUFReader(self.path)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror or error}")
        except Refused:
            raise
        except Exception as error:  # the reader checks little, so a damaged file makes it fail in any way
            raise Refused(f"{path}: damaged GGUF file: {str(error)[:120] or type(error).__name__}")
        self.tensors = {t.name: t for t in self.reader.tensors}

    def value(self, key, kind):
        field = self.reader.fields.get(key)
        value = None if field is None else field.contents()
        if not isinstance(value, kind) or isinstance(value, bool):
            raise Refused(f"{self.path}: key {key} is {'missing' if field is None else 'of another type'}")
        return value

    def matrix(self, name):
        """A tensor in f32."""
        if name not in self.tensors:
            raise Refused(f"{self.path}: tensor {name} is missing")
        tensor = self.tensors[name]
        try:
            return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        except (NotImplementedError, ValueError):
            raise Refused(f"{self.path}: tensor {name} is {tensor.tensor_type.name}, which the gguf package does not widen")


class Head(Gguf):
    """A head that was written before."""

    def __init__(self, path, kind, target):
        super().__init__(path)
        for key, value in (("general.architecture", kind), ("spec.target.vocab_hash", target.vocab_hash)):
            if self.value(key, str) != value:
                raise Refused(f"{path}: key {key} is {self.value(key, str)}, must be {value}")
        self.ids = np.asarray(self.tensors["d2t"].data) if "d2t" in self.tensors else np.arange(target.vocab)
        if not 0 <= self.ids.min(initial=0) <= self.ids.max(initial=0) < target.vocab:
            raise Refused(f"{path}: tensor d2t has ids beyond the target's {target.vocab}")


class Target(Gguf):
    """What a head must know of the model it belongs to."""

    def __init__(self, path):
        super().__init__(path)
        self.architecture = self.value("general.architecture", str)
        if self.architecture in KINDS:
            raise Refused(
                f"{path}: key general.architecture is {self.architecture}, must be that of a target, not of a sidecar"
            )
        self.hidden = self.value(f"{self.architecture}.embedding_length", int)
        self.layers = self.value(f"{self.architecture}.block_count", int)
        self.tokenizer = self.value("tokenizer.ggml.model", str)
        tokens = self.reader.fields.get("tokenizer.ggml.tokens")
        if tokens is None or not len(tokens.data):
            raise Refused(f"{path}: key tokenizer.ggml.tokens is missing")
        self.vocab, digest = len(tokens.data), hashlib.sha256()
        for at in tokens.data:
            token = tokens.parts[at].tobytes()
            digest.update(len(token).to_bytes(4, "little") + token)
        self.vocab_hash = digest.hexdigest()

    def number(self, name, default=None):
        """A number of the architecture's own."""
        key = f"{self.architecture}.{name}"
        return self.value(key, (int, float)) if default is None or key in self.reader.fields else default

    def has_copy(self, tensor, names):
        """Whether the first of these tensors that the target has is this one, up to how it is quantised."""
        ours = next((self.tensors[name] for name in names if name in self.tensors), None)
        if ours is None or list(ours.shape[:1]) != [tensor.shape[1]]:
            return False
        ids = np.unique(np.linspace(0, min(tensor.shape[0], int(ours.shape[1])) - 1, SAMPLE).astype(int))
        try:
            held = gguf.quants.dequantize(ours.data[ids], ours.tensor_type).reshape(len(ids), -1)
        except (NotImplementedError, ValueError):
            return False
        theirs = tensor.rows(ids).floats().astype(np.float64)
        return float(((theirs - held) ** 2).sum()) <= COPY * float((theirs**2).sum())


class Sidecar:
    """Keys and tensors in the order in which they are written. Tensors are read, quantised and written one by one."""

    def __init__(self, kind, target, path, type_name, name):
        if target.path.exists() and pathlib.Path(path).exists() and target.path.samefile(path):
            raise Refused(f"{path}: is the target, must be another file")
        self.kind, self.target, self.path, self.type = kind, target, pathlib.Path(path), TYPES[type_name]
        self.parts, self.narrow = [], set()
        self.writer = gguf.GGUFWriter(None, kind)
        self.writer.add_string("general.name", name)
        if self.type not in (Type.F32, Type.F16):
            self.writer.add_quantization_version(2)
        self.writer.add_string("spec.target.architecture", target.architecture)
        self.writer.add_uint32("spec.target.hidden_size", target.hidden)
        self.writer.add_uint32("spec.target.vocab_size", target.vocab)
        self.writer.add_string("spec.target.tokenizer", target.tokenizer)
        self.writer.add_string("spec.target.vocab_hash", target.vocab_hash)
        self.writer.add_string("spec.feature", "residual_in" if kind == "eagle3" else "post_norm")

    def key(self, name):
        return f"{self.kind}.{name}"

    def matrix(self, name, tensor, type_name=None):
        """Adds a matrix in the type that was asked for, or in F16 where its rows are no whole blocks."""
        kind, width = TYPES[type_name] if type_name else self.type, tensor.shape[-1]
        if width % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = Type.F16
            if width not in self.narrow:
                note(f"matrices with rows of {width} values are written in F16: {self.type.name} needs multiples of 32")
            self.narrow.add(width)
        self.parts.append((name, tensor.shape, kind, tensor.floats, tensor))

    def vector(self, name, tensor):
        self.parts.append((name, tensor.shape, Type.F32, tensor.floats, tensor))

    def values(self, name, values):
        """Adds numbers that are at hand, in F32 or, if they are whole, I32."""
        kind = Type.I32 if values.dtype.kind == "i" else Type.F32
        self.parts.append((name, values.shape, kind, lambda: values, None))

    def reduced(self, ids):
        """Says which ids of the target the rows of the output matrices stand for."""
        self.writer.add_uint32("spec.draft_vocab_size", len(ids))
        self.values("d2t", ids)

    def write(self):
        """Writes the file, whole or not at all, and says what it holds."""
        unfinished = self.path.with_name(f".{self.path.name}.part")
        try:
            for name, shape, kind, _, _ in self.parts:
                block, size = gguf.GGML_QUANT_SIZES[kind]
                count = int(np.prod(shape, dtype=np.int64))
                self.writer.add_tensor_info(name, shape, np.dtype("<f4"), count // block * size, raw_dtype=kind)
            self.writer.write_header_to_file(unfinished)
            self.writer.write_kv_data_to_file()
            self.writer.write_ti_data_to_file()
            for _, _, kind, load, tensor in self.parts:
                self.writer.write_tensor_data(packed(load(), kind, tensor))
            self.writer.close()
            unfinished.replace(self.path)
        except OSError as error:
            raise Refused(f"{self.path}: {error.strerror or error}")
        finally:
            for file in self.writer.fout or []:
                file.close()
            unfinished.unlink(missing_ok=True)
        size = self.path.stat().st_size
        note(f"{self.path}: {self.kind}, {len(self.parts)} tensors, {size / 1e6:.1f} MB")


def packed(values, kind, tensor):
    """Values in the bytes of a type."""
    if kind == Type.I32:
        return values.astype("<i4")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        data = gguf.quants.quantize(np.ascontiguousarray(values, np.float32), kind)
    if kind != Type.F32 and np.abs(values).max(initial=0) > 65504:
        raise Refused(f"{tensor} has values beyond {kind.name}'s range; use --type f32")
    return data


def padding(vocab):
    """How many rows a table may have more or fewer than a vocabulary has tokens and still be of the same one."""
    return min(512, vocab // 16)


def fitted(tensor, target, ids):
    """Rows of an output matrix and the ids they stand for: those given, or all, whether padded or cut short at the end.

    Returns the tensor, and ids or None if the rows are the target's vocabulary.
    """
    rows, spare = tensor.shape[0], padding(target.vocab)
    if ids is not None:
        if rows == len(ids):
            return tensor, ids
        if target.vocab <= rows <= target.vocab + spare:
            note(f"{tensor.name}: of {rows} rows the {len(ids)} that the head's vocabulary lists are taken")
            return tensor.rows(ids), ids
        if 0 < rows - len(ids) <= spare:
            note(f"{tensor.name}: {rows - len(ids)} rows of padding are dropped")
            return tensor.rows(slice(len(ids))), ids
        raise Refused(
            f"{tensor} has shape {shape_text(tensor.shape)}, must have {len(ids)} rows as the head's vocabulary,"
            f" or all {target.vocab} of the target's"
        )
    if rows == target.vocab:
        return tensor, None
    if abs(rows - target.vocab) > spare:
        raise Refused(
            f"{tensor} has shape {shape_text(tensor.shape)}, but {target.path} has {target.vocab} tokens:"
            " made for another vocabulary, or its table of ids is missing"
        )
    if rows > target.vocab:
        note(f"{tensor.name}: {rows - target.vocab} rows of padding are dropped")
        return tensor.rows(slice(target.vocab)), None
    note(f"{tensor.name}: the last {target.vocab - rows} tokens of the target have no rows and are never drafted")
    return tensor, np.arange(rows, dtype=np.int64)


def checked_ids(ids, target, where):
    """Absolute ids, each in the target's vocabulary and there once."""
    wrong = fault(ids, target.vocab)
    if wrong:
        raise Refused(f"{where}: {wrong}")
    return ids


def fault(ids, vocab):
    """What is wrong with ids, if anything."""
    if ids.ndim != 1 or not len(ids):
        return f"has shape {shape_text(ids.shape)}, must be a list of ids"
    outside = np.flatnonzero((ids < 0) | (ids >= vocab))
    if len(outside):
        return f"entry {outside[0]} stands for id {ids[outside[0]]}, must lie in 0..{vocab}"
    known, first = np.unique(ids, return_index=True)
    if len(known) != len(ids):
        again = np.setdiff1d(np.arange(len(ids)), first)[0]
        return f"entry {again} stands for id {ids[again]}, which an earlier one does"
    return None


def run(main):
    """Runs a converter; what it refuses becomes one line and status 1."""
    try:
        main()
    except Refused as refused:
        say(f"error: {refused}")
        sys.exit(1)
    except MemoryError:
        say("error: not enough memory")
        sys.exit(1)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)
