"""What torch.save writes: a zip archive of storages with a pickle that says which tensors are in them.

The pickle is not run. `Machine` walks its opcodes, builds dicts, lists, numbers, text and tensors from them, and refuses
every other global by its name, so a file can do no more than be refused.
"""

import math
import pickletools
import re
import zipfile

import numpy as np

from heads.tensor import BF16, Refused, Tensor, dtype, shape_text, sizes

PICKLE_LIMIT = 1 << 24  # bytes of a pickle: a thousand tensors take a tenth of a megabyte

STORAGE_TYPES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": BF16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}


def read(path):
    """The tensors of a file by name."""
    try:
        archive = zipfile.ZipFile(path)
        pickles = [info for info in archive.infolist() if re.fullmatch(r"(.*/)?data\.pkl", info.filename)]
        if len(pickles) != 1:
            raise Refused(f"{path}: holds {len(pickles)} entries data.pkl, must hold one")
        root = pickles[0].filename[: -len("data.pkl")]
        order = member(archive, path, root + "byteorder", 16) if root + "byteorder" in archive.namelist() else b"little"
        if order.strip() != b"little":
            raise Refused(f"{path}: byteorder is {order[:16]!r}, must be little")
        data = member(archive, path, pickles[0].filename, PICKLE_LIMIT)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        raise Refused(f"{path}: damaged zip file: {str(error)[:120]}")
    return state_dict(data, path, archive, root)


def member(archive, path, name, limit=None):
    """The bytes of an entry. Entries are stored, not compressed, so none is longer than the file."""
    try:
        info = archive.getinfo(name)
        if info.compress_type != zipfile.ZIP_STORED:
            raise Refused(f"{path}: entry {name} is compressed, must be stored")
        if limit is not None and info.file_size > limit:
            raise Refused(f"{path}: entry {name} has {info.file_size} bytes, at most {limit} are read")
        data = archive.read(info)
    except KeyError:
        raise Refused(f"{path}: entry {name} is missing")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise Refused(f"{path}: entry {name} is damaged: {str(error)[:120]}")
    if len(data) != info.file_size:
        raise Refused(f"{path}: entry {name} is shorter than the archive says")
    return data


class Global:
    """A name that a pickle refers to; it stands for nothing that could be run."""

    def __init__(self, name):
        self.name = name


class Storage:
    def __init__(self, kind, key, count):
        self.kind, self.key, self.count = kind, key, count


class View:
    """A tensor of a pickle: part of a storage."""

    def __init__(self, storage, offset, shape, strides):
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides


GLOBALS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {name}" for name in STORAGE_TYPES),
}
PLAIN = "only tensors, dicts and lists are read"
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
LITERALS = {
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "LONG4",
    "INT",
    "LONG",
    "BINFLOAT",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
    "UNICODE",
}
MARK = object()


class Machine:
    """Runs the opcodes of a pickle that build plain data, tensors included."""

    def __init__(self, path):
        self.path, self.stack, self.memo = path, [], {}

    def run(self, data):
        try:
            for opcode, argument, at in pickletools.genops(data):
                if opcode.name == "STOP":
                    return self.stack.pop()
                self.step(opcode.name, argument, at)
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError):
            pass
        raise Refused(f"{self.path}: the pickle is damaged")

    def since_mark(self):
        at = len(self.stack) - 1
        while self.stack[at] is not MARK:
            at -= 1
            if at < 0:
                raise IndexError
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def step(self, name, argument, at):
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            pass
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in LITERALS:
            stack.append(argument)
        elif name == "MARK":
            stack.append(MARK)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_TUPLE":
            stack.append(())
        elif name == "TUPLE":
            stack.append(tuple(self.since_mark()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            items = tuple(stack[-count:])
            if len(items) != count:
                raise IndexError
            stack[-count:] = [items]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else self.since_mark()
            self.top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self.since_mark()
            self.fill(self.top(dict), items)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            if name == "STACK_GLOBAL":
                argument = f"{stack.pop(-2)} {stack.pop()}"
            if argument not in GLOBALS:
                found = argument.replace(" ", ".")[:120]
                raise Refused(f"{self.path}: the pickle names {found!r}, which is refused; {PLAIN}")
            stack.append(Global(argument))
        elif name == "BINPERSID":
            stack.append(self.storage(stack.pop()))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(self.call(stack.pop(), arguments))
        elif name == "BUILD":
            if not (isinstance(stack.pop(), dict) and isinstance(stack[-1], dict)):
                raise TypeError
        else:
            raise Refused(f"{self.path}: the pickle uses {name} at byte {at}, which is refused; {PLAIN}")

    def top(self, kind):
        if not isinstance(self.stack[-1], kind):
            raise TypeError
        return self.stack[-1]

    @staticmethod
    def fill(target, items):
        if len(items) % 2:
            raise ValueError
        for key, value in zip(items[::2], items[1::2]):
            if not isinstance(key, (str, int)):
                raise TypeError
            target[key] = value

    @staticmethod
    def storage(identity):
        word, kind, key, _, count = identity
        kind = STORAGE_TYPES[kind.name.split()[1]]
        if word != "storage" or not sizes([count]) or not isinstance(key, str):
            raise TypeError
        return Storage(kind, key, count)

    @staticmethod
    def call(function, arguments):
        if function.name == "collections OrderedDict":
            if arguments != ():
                raise TypeError
            return {}
        if function.name == "torch._utils _rebuild_parameter" and isinstance(arguments[0], View):
            return arguments[0]
        if function.name != "torch._utils _rebuild_tensor_v2":
            raise TypeError
        storage, offset, shape, strides = arguments[:4]
        if not (isinstance(storage, Storage) and sizes([offset]) and sizes(list(shape)) and sizes(list(strides))):
            raise TypeError
        if len(shape) != len(strides):
            raise ValueError
        return View(storage, offset, tuple(shape), tuple(strides))


def state_dict(data, path, archive, root):
    """The tensors of a pickle."""
    found = Machine(path).run(data)
    for nest in ("state_dict", "model_state_dict", "model", "module"):
        if isinstance(found, dict) and isinstance(found.get(nest), dict):
            found = found[nest]
    if not isinstance(found, dict):
        raise Refused(f"{path}: holds a {type(found).__name__}, must hold a dict of tensors")
    tensors = {}
    for name, view in found.items():
        if not isinstance(view, View):
            continue
        if not isinstance(name, str):
            raise Refused(f"{path}: a tensor is named by a number, must be named by text")
        storage, count = view.storage, math.prod(view.shape)
        last = view.offset + sum((s - 1) * t for s, t in zip(view.shape, view.strides))
        if count > storage.count or (count and last >= storage.count):
            raise Refused(f"{path}: tensor {name} with shape {shape_text(view.shape)} exceeds its storage of {storage.count}")
        entry = f"{root}data/{storage.key}"
        try:
            held = archive.getinfo(entry).file_size
        except KeyError:
            raise Refused(f"{path}: entry {entry} is missing, which tensor {name} is in")
        if held != storage.count * dtype(storage.kind).itemsize:
            raise Refused(f"{path}: entry {entry} has {held} bytes, tensor {name} needs {storage.count} values of it")
        tensors[name] = Tensor(path, name, storage.kind, view.shape, viewed(archive, path, entry, view))
    return tensors


def viewed(archive, path, entry, view):
    def load():
        kind = dtype(view.storage.kind)
        values = np.frombuffer(member(archive, path, entry), kind)
        strides = [stride * kind.itemsize for stride in view.strides]
        if 0 in view.shape:
            return np.zeros(view.shape, kind)
        return np.lib.stride_tricks.as_strided(values[view.offset :], view.shape, strides)

    return load
