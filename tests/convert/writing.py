"""Files of tensors as published checkpoints have them, written without torch."""

import io
import json
import math
import pickle
import sys
import types
import zipfile

import numpy as np

BF16 = "BF16"


def bits(values, form):
    """Values in the bytes of a type of safetensors."""
    if form == BF16:
        return (np.ascontiguousarray(values, "<f4").view(np.uint32) >> 16).astype("<u2")
    return np.ascontiguousarray(
        values, {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "BOOL": "?"}[form]
    )


def form_of(values, form):
    return {"f": form, "i": "I64", "b": "BOOL"}[values.dtype.kind]


def write_safetensors(path, tensors, form="F16"):
    header, blob = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        own = form_of(values, form)
        data = bits(values, own).tobytes()
        header[name] = {"dtype": own, "shape": list(values.shape), "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + blob)


STORAGES = {
    "F64": "DoubleStorage",
    "F32": "FloatStorage",
    "F16": "HalfStorage",
    BF16: "BFloat16Storage",
    "I64": "LongStorage",
    "I32": "IntStorage",
    "BOOL": "BoolStorage",
}


def stand_ins():
    """Modules named as torch's that hold no more than the names which its files refer to."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in STORAGES.values():
        setattr(torch, name, type(name, (), {"__module__": "torch"}))
    for name in ("_rebuild_tensor_v2", "_rebuild_parameter"):
        function = eval("lambda *arguments: None")  # a function of its own for each name
        function.__name__ = function.__qualname__ = name
        function.__module__ = "torch._utils"
        setattr(utils, name, function)
    return {"torch": torch, "torch._utils": utils}


class Stored:
    """A tensor that pickles as torch's do: a view of a storage."""

    def __init__(self, archive, key, form, count, offset, shape, strides, parameter=False):
        self.storage = types.SimpleNamespace(key=key, form=form, count=count)
        self.archive, self.view, self.parameter = archive, (offset, shape, strides), parameter

    def __reduce__(self):
        from collections import OrderedDict

        utils = sys.modules["torch._utils"]
        if self.parameter:
            inner = Stored(self.archive, self.storage.key, self.storage.form, self.storage.count, *self.view)
            return utils._rebuild_parameter, (inner, True, OrderedDict())
        offset, shape, strides = self.view
        return utils._rebuild_tensor_v2, (self.storage, offset, shape, strides, False, OrderedDict())


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        if isinstance(value, types.SimpleNamespace):
            return "storage", getattr(sys.modules["torch"], STORAGES[value.form]), value.key, "cpu", value.count
        return None


def contiguous(shape):
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def write_torch(path, tensors, form="F16", protocol=2, wrap=None, parameters=False):
    """What torch.save writes: arrays that are one object share a storage, transposed ones keep their strides."""
    from collections import OrderedDict

    saved = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update(stand_ins())
    try:
        entries, state, keys = [], OrderedDict(), {}
        for name, values in tensors.items():
            own = form_of(values, form)
            base = values.T if values.ndim == 2 and values.flags.f_contiguous and not values.flags.c_contiguous else values
            strides = contiguous(base.shape)
            if id(values) not in keys:
                keys[id(values)] = str(len(entries))
                # Values in front that belong to nobody, so that offsets count.
                entries.append(np.concatenate([bits(np.zeros(3, base.dtype), own), bits(base, own).reshape(-1)]))
            key = keys[id(values)]
            strides = strides if base is values else strides[::-1]
            state[name] = Stored(path, key, own, len(entries[int(key)]), 3, tuple(values.shape), strides, parameters)
        state._metadata = OrderedDict({"": {"version": 1}})
        out = io.BytesIO()
        Pickler(out, protocol).dump({wrap: state, "epoch": 3} if wrap else state)
        write_archive(path, out.getvalue(), [entry.tobytes() for entry in entries])
    finally:
        for name, module in saved.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def write_archive(path, data, entries, root="archive", compression=zipfile.ZIP_STORED, order=b"little"):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{root}/data.pkl", data)
        if order:
            archive.writestr(f"{root}/byteorder", order)
        for key, entry in enumerate(entries):
            archive.writestr(f"{root}/data/{key}", entry)
        archive.writestr(f"{root}/version", b"3\n")


def write_config(folder, **values):
    (folder / "config.json").write_text(json.dumps(values))
