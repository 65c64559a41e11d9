"""Checkpoints of draft heads as they are published: a file or a folder of safetensors, or of what torch.save writes.

Sizes are checked against the file before anything is read, so a damaged file costs no more than it holds.
"""

import json
import math
import pathlib

import numpy as np

from heads import torch_file
from heads.tensor import BF16, Refused, Tensor, dtype, shape_text, sizes

CONFIG_LIMIT = 1 << 20  # bytes of a config.json
HEADER_LIMIT = 1 << 26  # bytes of a safetensors header or an index
SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
NAMES = ("model.safetensors.index.json", "pytorch_model.bin.index.json", "model.safetensors", "pytorch_model.bin")

SAFETENSORS_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": BF16,
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


def read_json(path, limit):
    """An object of JSON from a file of no more than so many bytes."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise Refused(f"{path}: has more than {limit} bytes")
        value = json.loads(data)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}")
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path}: not JSON: {str(error)[:120]}")
    return value


class Config:
    """Keys of a config.json; what is nested under some of them counts as if it stood at the top."""

    NESTS = ("transformer_layer_config", "eagle_config", "text_config", "rope_parameters")

    def __init__(self, file, values):
        self.file, self.values = file, dict(values)
        for nest in self.NESTS:
            inner = self.values.get(nest)
            if isinstance(inner, dict):
                self.values.update((k, v) for k, v in inner.items() if v is not None or k not in self.values)

    def __contains__(self, key):
        return self.values.get(key) is not None

    def refuse(self, key, wanted):
        found = f"is {json.dumps(self.values[key])[:80]}" if key in self.values else "is missing"
        raise Refused(f"{self.file}: key {key} {found}, must be {wanted}")

    def integer(self, key, default=None, low=1, high=1 << 31):
        value = self.values.get(key)
        value = default if value is None else value
        if type(value) is not int or not low <= value < high:
            self.refuse(key, f"a whole number in {low} to {high - 1}")
        return value

    def number(self, key, default=None):
        value = self.values.get(key)
        value = default if value is None else value
        if type(value) not in (int, float) or not 0 < value < 1e30:
            self.refuse(key, "a positive number")
        return float(value)

    def flag(self, key, default=False):
        value = self.values.get(key)
        value = default if value is None else value
        if type(value) is not bool:
            self.refuse(key, "true or false")
        return value


class Checkpoint:
    """The tensors and the configuration of a file or a folder. Names may lose a prefix on the way."""

    def __init__(self, path, preferred=()):
        self.path = pathlib.Path(path)
        if not self.path.exists():
            raise Refused(f"{path}: no such file or folder")
        folder = self.path if self.path.is_dir() else self.path.parent
        config = folder / "config.json"
        values = read_json(config, CONFIG_LIMIT) if config.is_file() else {}
        if not isinstance(values, dict):
            raise Refused(f"{config}: must be an object")
        self.has_config = config.is_file()
        self.config = Config(config, values)
        self.tensors = {}
        for file in self.files(preferred):
            for name, tensor in read(file).items():
                if name in self.tensors:
                    raise Refused(f"{tensor} is in {self.tensors[name].file} too")
                self.tensors[name] = tensor
        if not self.tensors:
            raise Refused(f"{path}: holds no tensors")

    def files(self, preferred):
        if not self.path.is_dir():
            return self.shards(self.path) if self.path.name.endswith(".index.json") else [self.path]
        for name in (*preferred, *NAMES):
            file = self.path / name
            if file.is_file():
                return self.shards(file) if name.endswith(".index.json") else [file]
        files = sorted(f for f in self.path.iterdir() if f.suffix in SUFFIXES and f.is_file())
        if len(files) != 1:
            found = ", ".join(f.name for f in files[:6]) or "none"
            raise Refused(
                f"{self.path}: must hold one of {', '.join((*preferred, *NAMES))} or a single file"
                f" *{', *'.join(SUFFIXES)}; found {found}"
            )
        return files

    @staticmethod
    def shards(index):
        value = read_json(index, HEADER_LIMIT)
        shards = value.get("weight_map") if isinstance(value, dict) else None
        if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
            raise Refused(f"{index}: key weight_map must map tensors to files")
        for name in shards.values():
            if pathlib.PurePath(name).name != name or not name.endswith(SUFFIXES):
                raise Refused(f"{index}: key weight_map names {name[:80]!r}, must name files *{', *'.join(SUFFIXES)} beside it")
        return [index.parent / name for name in sorted(set(shards.values()))]

    def rename(self, change):
        """Gives tensors the names that `change` makes of theirs; None drops one."""
        renamed = {}
        for old, tensor in self.tensors.items():
            name = change(old)
            if name is None:
                continue
            if name in renamed:
                raise Refused(f"{tensor} and {renamed[name].name} are both {name}")
            renamed[name] = tensor
        self.tensors = renamed

    def take(self, name, optional=False):
        """Takes a tensor out; what is left at the end was not understood."""
        tensor = self.tensors.pop(name, None)
        if tensor is None and not optional:
            raise Refused(f"{self.path}: tensor {name} is missing")
        return tensor

    def finish(self, known):
        """Refuses what nobody took."""
        for tensor in self.tensors.values():
            raise Refused(f"{tensor} is not understood; known are {known}")


def read(path):
    """The tensors of one file by name."""
    try:
        with open(path, "rb") as file:
            start = file.read(24)
        if start[:4] == b"PK\x03\x04":
            return torch_file.read(path)
        if start[:4] == b"GGUF":
            raise Refused(f"{path}: is a GGUF file already")
        if start.startswith(b"version https://git"):
            raise Refused(f"{path}: is a Git LFS pointer, not the file it stands for")
        if start[:1] == b"\x80":
            raise Refused(f"{path}: was saved by a torch older than 1.6, whose format is not supported; only zip files are")
        return read_safetensors(path, start)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}")


def read_safetensors(path, start):
    size = path.stat().st_size
    length = int.from_bytes(start[:8], "little")
    if len(start) < 10 or start[8:9] != b"{" or not 2 <= length <= min(size - 8, HEADER_LIMIT):
        raise Refused(f"{path}: is neither a safetensors file nor a zip file of torch")
    with open(path, "rb") as file:
        file.seek(8)
        header = file.read(length)
    try:
        header = json.loads(header)
    except (ValueError, RecursionError):
        raise Refused(f"{path}: the header is not JSON")
    base, tensors = 8 + length, {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        entry = entry if isinstance(entry, dict) else {}
        kind, shape, span = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not (sizes(shape) and sizes(span) and len(span) == 2):
            raise Refused(f"{path}: tensor {name}: dtype, shape and data_offsets are missing or damaged")
        if not isinstance(kind, str) or kind not in SAFETENSORS_TYPES:
            raise Refused(f"{path}: tensor {name} has type {str(kind)[:20]}; supported are {', '.join(SAFETENSORS_TYPES)}")
        kind, (begin, end) = SAFETENSORS_TYPES[kind], span
        if not begin <= end <= size - base or end - begin != math.prod(shape) * dtype(kind).itemsize:
            raise Refused(f"{path}: tensor {name} with shape {shape_text(shape)} has bytes {begin} to {end} of {size - base}")
        tensors[name] = Tensor(path, name, kind, shape, mapped(path, kind, shape, base + begin))
    return tensors


def mapped(path, kind, shape, offset):
    if 0 in shape:
        return lambda: np.zeros(shape, dtype(kind))
    return lambda: np.memmap(path, dtype(kind), "r", offset, tuple(shape))
